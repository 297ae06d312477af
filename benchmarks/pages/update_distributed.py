"""Run both scripts of docs/distributed.md, with and without the changed lines, and rewrite the accuracies there.

python -m benchmarks.pages.update_distributed
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pages import DOCS, markers

PAGE = DOCS / "distributed.md"
RANKS = 4


def scripts() -> tuple[str, str]:
    """Return the original script and the changed one, from the difference that the page shows."""
    (difference,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    before, after = (
        "\n".join(line[1:] for line in difference.splitlines() if not line.startswith(left_out)) for left_out in "+-"
    )
    return before, after


def accuracy(script: str) -> float:
    """Run a script with torchrun and return the accuracy that it prints, in percent.

    Now and then torch aborts a rank at its exit, after `destroy_process_group` ("terminate called without an active
    exception"), also with DistributedDataParallel: the accuracy counts, and not the exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(path)]
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # torchrun ends the other ranks then
        finished = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=unbuffered)
    found = re.findall(r"accuracy ([\d.]+) %", finished.stdout)
    if len(found) != 1:
        raise RuntimeError(f"the script printed no accuracy, exit code {finished.returncode}: {finished.stderr}")
    return float(found[0])


def text(before: float, after: float) -> str:
    """Return the sentence of the page."""
    return (
        f"The original script ends at an accuracy of {before:.1f} %, as good as a guess; the changed one,\n"
        f"[examples/robust_sgd.py](../examples/robust_sgd.py), ends at {after:.1f} %."
    )


def stated() -> tuple[float, float]:
    """Return the two accuracies that the page states."""
    part = PAGE.read_text(encoding="utf-8").partition("<!-- accuracies begin -->")[2]
    before, after = re.findall(r"([\d.]+) %", part.partition("<!-- accuracies end -->")[0])
    return float(before), float(after)


def main() -> None:
    before, after = map(accuracy, scripts())
    markers.replace(PAGE, {"accuracies": text(before, after)})


if __name__ == "__main__":
    main()
