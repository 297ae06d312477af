"""Robust training with the Trainer of transformers: a callback that registers gy.ddp on the model that it wraps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.optional import extra
from gyroscope.distributed.robust_ddp import RobustDDP
from gyroscope.integrations.accelerate import load, robust, save
from gyroscope.rules import Rule

with extra("hugging-face", "gyroscope.integrations.hugging_face"):
    from transformers import TrainerCallback

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


class RobustCallback(TrainerCallback):
    """Aggregates the gradients of a Trainer's model by a robust rule, in place of the mean.

        trainer = Trainer(model, TrainingArguments(adam_beta1=0.0), train_dataset=data)
        trainer.add_callback(RobustCallback(trainer, rule="median", f=1))
        trainer.train()

    The Trainer wraps the model in `train`, and shows callbacks only what is inside: so this one takes the Trainer. Its
    checkpoints hold the job's state in a file per rank. A run that resumes finds it if the checkpoint lies where it was
    saved, in `output_dir`; else it warns and begins without momentum.
    """

    job: RobustDDP | None = None
    """Verdicts on the ranks, and a state to save; None before training."""

    def __init__(self, trainer: Trainer, rule: Rule | str = "median", f: int = 1, **options: Any) -> None:
        """Remember what to register.

        Args:
            trainer: the Trainer to which this callback is added.
            rule: a rule or its spec, feasible for f of all ranks.
            f: how many ranks may have wrong gradients.
            options: further options of `gy.ddp`.
        """
        self._trainer, self._options = trainer, {"rule": rule, "f": f, **options}
        self._registered: nn.Module | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Register gy.ddp, unless the model is wrapped as it was in an earlier training.

        Raises:
            InfeasibleError: the rule cannot tolerate f of that many ranks.
            ConfigError: the Trainer has not wrapped the model in a DistributedDataParallel.
        """
        model = self._trainer.model_wrapped
        if model is not self._registered:
            self.job, self._registered = robust(self._trainer.accelerator, model, **self._options), model
        if self.job is not None and state.global_step > 0:
            load(self.job, _folder(args, state))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Put this rank's state into the checkpoint that the Trainer has just written."""
        if self.job is not None:
            save(self.job, _folder(args, state))


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
