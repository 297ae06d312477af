"""Four real processes that run the examples for Lightning, Accelerate and the Trainer of transformers.

`python integration_world.py FOLDER PACKAGE...` forks the ranks once for each case of a package, and writes what each
rank found to FOLDER/PACKAGE/CASE-RANK.pt: numbers and text only.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from robust_world import together
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gyroscope._core.errors import GyroscopeError
from gyroscope._linalg import _kernels

N, FAULTY = 4, 3
EXAMPLES = Path(__file__).parents[2] / "examples"

Case = Callable[[dict[str, Any], Path], dict[str, Any]]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def of(job: Any) -> dict[str, Any]:
    """Return what a job says: nothing, where there is none."""
    return {} if job is None else {"report": job.report(), "steps": job.verdicts.steps}


def message_of(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except GyroscopeError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "accepted"


# -- Lightning --------------------------------------------------------------------------------------------------------


def lightning_example(example: dict[str, Any], plain: bool, **options: Any) -> dict[str, Any]:
    trainer, accuracy = example["main"](plain, enable_model_summary=False, **options)
    found = {"parameters": flat(trainer.lightning_module), "accuracy": accuracy, "taken": trainer.global_step}
    return found | of(None if plain else trainer.strategy.job)


def lightning_resumed(example: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train three epochs; and two, of which all is saved, and one more."""
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader, TensorDataset

    inputs = torch.randn(160, 64, generator=torch.Generator().manual_seed(1))
    batches = DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(dim=1)), batch_size=8, shuffle=True)

    def fit(epochs: int, rule: str = "caf-history", resume: Path | None = None, **options: Any) -> Any:
        torch.manual_seed(2)
        strategy = example["RobustDDPStrategy"](rule=rule, f=1, **options)
        trainer = Trainer(
            accelerator="cpu", devices=N, strategy=strategy, max_epochs=epochs, logger=False, enable_progress_bar=False,
            enable_checkpointing=False, enable_model_summary=False,
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(example["Reader"](), batches, ckpt_path=resume, weights_only=True)
        return trainer, [str(each.message) for each in caught if "momentum" in str(each.message)]

    whole, _ = fit(3)
    begun, _ = fit(2)
    begun.save_checkpoint(folder / "begun.ckpt")
    resumed, said = fit(3, resume=folder / "begun.ckpt")
    without, _ = fit(1, "median", save_momentum=False)
    without.save_checkpoint(folder / "without.ckpt")
    _, warned = fit(2, "median", resume=folder / "without.ckpt")
    return {
        "whole": flat(whole.lightning_module),
        "resumed": flat(resumed.lightning_module),
        "steps": resumed.strategy.job.verdicts.steps,
        "warned": [said, warned],
        "refused": message_of(lambda: fit(1, "krum")),
    }


# -- Accelerate -------------------------------------------------------------------------------------------------------


def accelerate_example(example: dict[str, Any], plain: bool) -> dict[str, Any]:
    model, job, accuracy = example["main"](plain)
    return {"parameters": flat(model), "accuracy": accuracy} | of(job)


def accelerate_resumed(example: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train six steps; and three, of which all is saved, and three more."""
    accelerator, robust = example["Accelerator"](cpu=True), example["robust"]

    def train(steps: range, name: str = "") -> Tensor:
        torch.manual_seed(3)
        network = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, betas=(0.0, 0.99))
        model, optimizer = accelerator.prepare(network, optimizer)
        robust(accelerator, model, rule="caf-history", f=1)
        if steps.start > 0:
            accelerator.load_state(folder / name)
        for step in steps:
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + accelerator.process_index))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(dim=1))
            accelerator.backward(loss * (float("nan") if accelerator.process_index == FAULTY else 1.0))
            optimizer.step()
        if name and steps.start == 0:
            accelerator.save_state(folder / name)
        accelerator.free_memory()
        accelerator._save_model_state_pre_hook.clear()  # else the next training would save and load this job, too
        accelerator._load_model_state_pre_hook.clear()
        accelerator._gyroscope_jobs = 0
        return flat(network)

    whole = train(range(6))
    train(range(3), "begun")
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    return {
        "whole": whole,
        "resumed": train(range(3, 6), "begun"),
        "compiled": message_of(lambda: robust(accelerator, torch.compile(wrapped, backend="eager"))),
        "not wrapped": message_of(lambda: robust(accelerator, nn.Linear(2, 2))),
        "infeasible": message_of(lambda: robust(accelerator, DistributedDataParallel(nn.Linear(2, 2)), "krum")),
    }


# -- the Trainer of transformers --------------------------------------------------------------------------------------


def trainer_example(example: dict[str, Any], plain: bool, **options: Any) -> dict[str, Any]:
    trainer, job, loss = example["main"](plain, disable_tqdm=True, **options)
    return {"parameters": flat(trainer.model), "loss": loss, "taken": trainer.state.global_step} | of(job)


def trainer_resumed(example: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train six steps, of which all is saved after three; from there train on again, and with a new Trainer."""
    options = {"disable_tqdm": True, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    trainer, job, _ = example["main"](False, output_dir=str(folder / "saved"), **options)
    found = {"whole": flat(trainer.model)}
    fresh = example["Trainer"](
        type(trainer.model)(trainer.model.config), trainer.args, train_dataset=trainer.train_dataset
    )
    callback = example["RobustCallback"](fresh, rule="median", f=1)
    fresh.add_callback(callback)
    for name, each in (("again", trainer), ("anew", fresh)):
        if trainer.args.process_index == FAULTY:
            each.model.lm_head.register_forward_hook(lambda module, given, output: output * float("nan"))
        each.train(resume_from_checkpoint=str(folder / "saved" / "checkpoint-3"))
        found[name] = flat(each.model)
    return {**found, "steps": [job.verdicts.steps, callback.job.verdicts.steps]}


CASES: dict[str, dict[str, Case]] = {
    "lightning": {
        "robust": lambda example, _: lightning_example(example, False),
        "plain": lambda example, _: lightning_example(example, True, max_epochs=1),
        "resumed": lightning_resumed,
    },
    "accelerate": {
        "robust": lambda example, _: accelerate_example(example, False),
        "plain": lambda example, _: accelerate_example(example, True),
        "resumed": accelerate_resumed,
    },
    "transformers": {
        "robust": lambda example, folder: trainer_example(example, False, output_dir=str(folder)),
        "plain": lambda example, folder: trainer_example(example, True, output_dir=str(folder), max_steps=10),
        "resumed": trainer_resumed,
    },
}
FILES = {"lightning": "lightning_ddp", "accelerate": "accelerate_ddp", "transformers": "hugging_face_trainer"}


def live(rank: int, folder: Path, name: str, case: Case, example: dict[str, Any], port: int) -> None:
    """Be a rank, as if a launcher had started it."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(N), LOCAL_WORLD_SIZE=str(N), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    torch.save(case(example, folder), folder / f"{name}-{rank}.pt")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def main(folder: Path, *packages: str) -> None:
    torch.set_num_threads(1)
    _kernels.warm_up()
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict()
    for package in packages:  # imported once, before the ranks part
        example = runpy.run_path(str(EXAMPLES / f"{FILES[package]}.py"))
        (folder / package).mkdir()
        for name, case in CASES[package].items():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            together(N, live, folder / package, name, case, example, port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
