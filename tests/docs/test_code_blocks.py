"""Every code block of the site is run by a test, or stands in a list of those that cannot run, with the reason.

The pages in docs/tutorials and docs/how-to have tests of their own. test_documents.py runs the Python blocks.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from markdown_it import MarkdownIt

from gyroscope._core.optional import parse_toml
from gyroscope.cli import main, parser

ROOT = Path(__file__).resolve().parents[2]
TESTED_BY_THEMSELVES = ("tutorials", "how-to")
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name not in TESTED_BY_THEMSELVES]

BUILT = {"{eval-rst}", "{toctree}"}
"""Blocks that the site's build runs (test_site.py)."""
ELSEWHERE = {
    ("adding-a-rule.md", "[build-system]"): "test_adding_a_rule.py",
    ("deploy.md", "gyroscope keys init"): "test_deploy.py",
    ("deploy.md", "cat > run.toml"): "test_deploy.py",
    ("deploy.md", "gyroscope keys revoke worker-1"): "test_deploy.py",
    ("deploy.md", "kill $server"): "test_deploy.py",
    ("deploy.md", "[Service]"): "test_deploy.py",
    ("distributed.md", '"""Four ranks'): "tests/distributed/test_robust_sgd.py",
    ("design.md", "src/gyroscope/"): "test_documents.py: a tree of folders",
    ("flower.md", "export FLWR"): "tests/flower/deployment.py sets them",
    ("flower.md", "flower-superlink"): "tests/flower/test_deployed.py and test_simulation.py, and the options below",
    ("flower.md", "[superlink."): "tests/flower/deployment.py writes such a file",
    ("flower.md", "flwr "): "tests/flower/test_deployed.py and test_simulation.py, and the options below",
}
"""Blocks that another test runs, by their page and how they begin."""
CANNOT_RUN = {
    ("design.md", "losses, gradients ="): "an outline of the round",
    ("servers.md", "n >= 3f + 3"): "a formula",
    ("performance.md", "mnist"): "what --profile printed",
    ("performance.md", "parameter server"): "what --profile printed",
    ("deploy.md", "useradd"): "changes the machine; the page says so",
    ("deploy.md", "python3 -m venv /opt"): "changes the machine; the page says so",
    ("deploy.md", "podman"): "there is no podman; test_deploy.py parses the commands in the Containerfile",
    ("deploy.md", "journalctl"): "needs systemd",
    ("flower.md", "server {"): "there is no nginx; the page says so",
}
"""Blocks that no test runs, and why."""


class Block(NamedTuple):
    page: Path
    language: str
    """Empty for an indented block."""
    text: str


@functools.cache
def blocks() -> list[Block]:
    return [
        Block(page, token.info.strip() if token.type == "fence" else "", token.content)
        for page in PAGES
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8"))
        if token.type in ("fence", "code_block")
    ]


def listed(block: Block, table: dict[tuple[str, str], str]) -> bool:
    return any(block.page.name == page and block.text.strip().startswith(start) for page, start in table)


def command_lines(block: Block) -> list[str]:
    """Return the commands of a block, without comments, each on one line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def parse_command(line: str) -> None:
    words = shlex.split(line.removesuffix(" ..."))[1:]
    if "--help" not in words:
        assert callable(parser().parse_args(words).run)


def find_module(line: str) -> None:
    flag, module = shlex.split(line)[1:3]
    found = importlib.util.find_spec(module)
    assert flag == "-m" and found and found.origin, module
    assert '__name__ == "__main__"' in Path(found.origin).read_text(encoding="utf-8")


def find_target(line: str) -> None:
    assert re.search(rf"^{line.split()[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), line


def find_extra(line: str) -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = re.findall(r"gyroscope\[([\w,-]+)\]", line)
    assert set(wanted.split(",")) <= set(project["optional-dependencies"])


def find_script(line: str) -> None:
    assert (ROOT / line.split()[-1]).is_file(), line


CHECKS: dict[str, Callable[[str], None]] = {
    "gyroscope": parse_command,
    "python": find_module,
    "make": find_target,
    "pip": find_extra,
    "torchrun": find_script,
}
"""What is asserted of a command, by its first word. Those of `gyroscope train` also run, below."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in (block for block in blocks() if block.page == page):
        if block.language in ("python", *BUILT) or listed(block, ELSEWHERE) or listed(block, CANNOT_RUN):
            continue
        if block.language == "diff":
            assert block in differences(), "a difference that no test applies"
            continue
        if block.language == "text":  # the examples of a command: prose, and commands that are indented
            lines = [line for line in block.text.splitlines() if line.startswith("    gyroscope ")]
            block = block._replace(text="\n".join(line.strip() for line in lines))
        for line in command_lines(block):
            program = line.split()[0]
            if program in ("openssl", "printf", "ssh-keygen") or block.text in FLOWER:
                continue  # run below
            assert program in CHECKS, f"no test runs this block of {page.name}: {block.text}"
            CHECKS[program](line)


def test_the_lists_name_blocks_that_exist() -> None:
    for page, start in [*ELSEWHERE, *CANNOT_RUN]:
        assert any(listed(block, {(page, start): ""}) for block in blocks()), f"{page} has no block {start!r}"


# -- what runs ------------------------------------------------------------------------------------------------------


def training_commands() -> list[str]:
    lines = [line for block in blocks() if not block.language or block.language == "text" for line in
             block.text.splitlines()]  # fmt: skip
    found = {line.strip().split(" #")[0].strip() for line in lines if line.strip().startswith("gyroscope train ")}
    no_run = ("--help", "--resume", "--config", "mine:", "trimmed-midrange")
    return sorted(line for line in found if not any(word in line for word in no_run))


@pytest.mark.slow
@pytest.mark.parametrize("command", training_commands())
def test_training_commands_train(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each for three rounds; a test in tests/docs compares the numbers of pages with what was measured."""
    monkeypatch.chdir(tmp_path)
    task = re.search(r"--task (\S+)", command)
    if task and task[1] not in ("digits", "text"):  # the same without a data set
        command = command.replace(task[0], "--task digits --workers 51" if "mnist" in task[1] else "--task digits")
    assert main([*shlex.split(command)[1:], "--steps", "3", "--out", "run", "--overwrite", "--quiet"]) == 0


FLOWER = [block.text for block in blocks() if block.page.name == "flower.md" and "import" in block.text]


def test_the_python_of_flower() -> None:
    pytest.importorskip("flwr", reason="pip install 'gyroscope[flower]'")
    from flwr.clientapp import ClientApp

    asked: dict[str, Any] = {}

    class Strategy:
        """Takes the place of the strategy in the line that starts it, for which a SuperLink would have to run."""

    strategy, app = FLOWER
    first, last = strategy.strip().rsplit("\n", 1)
    names: dict[str, Any] = {"ClientApp": ClientApp}
    exec(compile(first, "docs/flower.md", "exec"), names)
    assert str(names["strategy"].rule) == "krum" and callable(names["strategy"].start)
    names["strategy"] = Strategy()
    names["strategy"].start = lambda **given: asked.update(given)
    names["grid"], names["arrays"] = object(), object()
    exec(compile(last, "docs/flower.md", "exec"), names)
    assert asked["num_rounds"] == 20 and asked["grid"] is names["grid"]
    exec(compile(app, "docs/flower.md", "exec"), names)
    assert isinstance(names["app"], ClientApp)


def test_the_certificates_of_flower(tmp_path: Path) -> None:
    """Run the commands that make certificates and keys; the server's certificate is the authority's."""
    (tmp_path / "keys").mkdir()
    makers = [block for block in blocks() if block.text.startswith(("openssl", "ssh-keygen"))]
    assert len(makers) == 2
    for block in makers:
        subprocess.run(["bash", "-ec", block.text], cwd=tmp_path, check=True, capture_output=True)
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "server.example.org", "server.pem"]
    assert b"OK" in subprocess.run(verify, cwd=tmp_path, check=True, capture_output=True).stdout
    assert (tmp_path / "keys" / "n0.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_the_options_of_flower_exist(program: str) -> None:
    pytest.importorskip("flwr", reason="pip install 'gyroscope[flower]'")
    lines = [line for block in blocks() if block.page.name == "flower.md" for line in command_lines(block)]
    wanted = {word for line in lines if line.startswith(program) for word in line.split() if word.startswith("--")}
    known = subprocess.run(
        [Path(sys.executable).with_name(program), "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert wanted and all(option in known for option in wanted)


def differences() -> list[Block]:
    """Return the changes to a DistributedDataParallel script that docs/ddp.md shows."""
    return [block for block in blocks() if block.page.name == "ddp.md" and block.language == "diff"]


@pytest.mark.parametrize("number", [0, 1], ids=["one line", "ranks that are started again"])
def test_the_changed_lines_of_ddp_run(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what the lines become, with one rank, which tolerates no other: f = 0."""
    monkeypatch.setenv("RANK", "0")
    lines = differences()[number].text.splitlines()
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    compile(before, "docs/ddp.md, before", "exec")
    after = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    for shown, here in {
        "f=1": "f=0",
        '"head-node", 29501, None, False': '"127.0.0.1", 0, None, True',
        "(store, rank, 5)": "(store, rank, 1)",
    }.items():
        after = after.replace(shown, here)
    if number == 0:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    inner = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    given = {
        "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
        "batch": lambda step: torch.full((4, 2), float(step)),
        "gy": importlib.import_module("gyroscope"),
        "loss_of": lambda model, batch: model(batch).square().mean(),
        "model": inner,
        "os": os,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "steps": 3,
        "torch": torch,
    }
    try:
        exec(compile(after, "docs/ddp.md", "exec"), given)
        given["loss_of"](given["model"], torch.ones(4, 2)).backward()
        assert given["job"].report().startswith(f"step {4 * number or 1}:")
    finally:
        torch.distributed.destroy_process_group()
