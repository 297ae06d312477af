"""The Trainer of transformers trains a small GPT-2 on four ranks, although one has a broken GPU.

    torchrun --nproc-per-node 4 examples/hugging_face_trainer.py

`--plain` leaves out the callback: then the same fault ruins the model. The text ships with Python: its help pages.
"""

from __future__ import annotations

import sys
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gyroscope.integrations.hugging_face import RobustCallback

CONTEXT, FAULTY = 32, 3


def main(plain: bool = False, **options: Any) -> tuple[Trainer, Any, float]:
    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    code = torch.tensor([letters.index(letter) for letter in text[: 2000 * CONTEXT]]).view(-1, CONTEXT)
    pieces = [{"input_ids": piece, "labels": piece} for piece in code]

    torch.manual_seed(0)
    # The usual initializer_range, 0.02, is for wide models: in this one it makes the gradients of sound ranks jump.
    shape = {"vocab_size": len(letters), "n_positions": CONTEXT, "n_embd": 48, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.1, use_cache=False))
    arguments = TrainingArguments(
        use_cpu=True,
        ddp_backend="gloo",
        adam_beta1=0.0,
        learning_rate=3e-3,
        report_to="none",
        **{"max_steps": 60, "save_strategy": "no", "output_dir": "runs/trainer", **options},
    )
    trainer = Trainer(model, arguments, train_dataset=pieces[:-200])
    if arguments.process_index == FAULTY:
        broken = model.lm_head.register_forward_hook(lambda module, given, output: output * float("nan"))
    callback = RobustCallback(trainer, rule="median", f=1)
    if not plain:
        trainer.add_callback(callback)  # what makes it robust
    trainer.train()

    if arguments.process_index == FAULTY:
        broken.remove()
    with torch.no_grad():
        loss = float(model.eval()(input_ids=code[-200:], labels=code[-200:]).loss)
    if trainer.is_world_process_zero():
        print(f"test loss {loss:.3f}  {'' if plain else callback.job.report()}", flush=True)
    return trainer, callback.job, loss


if __name__ == "__main__":
    main("--plain" in sys.argv)
