"""The models of the built-in tasks."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(inputs: int, hidden: int = 100, classes: int = 10, relu_outputs: bool = False) -> nn.Sequential:
    """Return (inputs)-L(hidden)-R-L(classes)-S; with `relu_outputs` a further R before S, as in the paper's text."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
        *[nn.ReLU()] * relu_outputs,
        nn.LogSoftmax(dim=1),
    )


def cnn(width: float = 1.0, classes: int = 10) -> nn.Sequential:
    """Return the paper's network for 3x32x32 pictures.

    It is C(64)-R-B-C(64)-R-B-M-D-C(128)-R-B-C(128)-R-B-M-D-L(128)-R-D-L(10)-S.
    `width` scales the numbers of channels; the full width has 1,310,922 parameters.
    """
    narrow, wide = max(1, round(64 * width)), max(1, round(128 * width))

    layers: list[nn.Module] = []
    for channels_in, channels in ((3, narrow), (narrow, wide)):
        for inputs in (channels_in, channels):
            layers += [nn.Conv2d(inputs, channels, kernel_size=3, padding=1), nn.ReLU(), nn.BatchNorm2d(channels)]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(wide * 8 * 8, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, classes),
        nn.LogSoftmax(dim=1),
    )


class GPT(nn.Module):
    """A small transformer that predicts the next character from the last ones: (B, T) numbers -> (B, V, T) outputs."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = self.get_buffer("mask")[:length, :length]
        values = self.characters(x) + self.places(torch.arange(length, device=x.device))
        return self.out(self.layers(values, mask, is_causal=True)).transpose(1, 2)  # type: ignore[no-any-return]
