"""A text that ships with Python: the help pages of the language, as numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gyroscope.simulation.data.batches import Split

TEST_SHARE = 0.1


class Text(NamedTuple):
    """The characters that occur, and windows of the text: inputs, and the same shifted by one as targets."""

    letters: str
    train: Split
    test: Split


def load(context: int, stride: int = 8) -> Text:
    """Cut the text into windows of so many characters; the last tenth of it is for testing.

    Args:
        context: characters of a window.
        stride: characters from one training window to the next. Windows for testing do not overlap.
    """
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    letters = "".join(sorted(set(text)))
    numbers = {letter: number for number, letter in enumerate(letters)}
    codes = torch.tensor([numbers[letter] for letter in text])
    end = round(len(codes) * (1 - TEST_SHARE))
    return Text(letters, _windows(codes[:end], context, stride), _windows(codes[end:], context, context))


def _windows(codes: Tensor, context: int, stride: int) -> Split:
    pieces = codes.unfold(0, context + 1, stride)
    return Split(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())
