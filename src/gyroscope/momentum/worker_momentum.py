"""`WorkerMomentum`: from a gradient to the row that its worker sends. The momentum recursion stands here, once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, RowsError
from gyroscope.momentum.non_finite_gradients import accumulate


class WorkerMomentum:
    """Accumulate gradients: m <- mu * m + (1 - dampening) * g, and send m (with Nesterov's look-ahead, g + mu * m).

    One object serves one worker, whose gradients are vectors (d,), or many workers at once, (h, d), a row each.

    A gradient that is not finite, or that would make m overflow, is sent as it is, for the rule to leave out, and is
    not accumulated: it costs its worker one round and nothing later. This is the only place that decides so.

    The default, without dampening, is the paper's. With `dampening=mu` the row is an average that keeps the gradients'
    scale; then a learning rate 1 / (1 - mu) times as large gives the same steps.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> momentum = gy.WorkerMomentum(mu=0.5)
        >>> for gradient in ([1.0, 2.0], [1.0, float("nan")], [1.0, 2.0]):
        ...     print(momentum.update(torch.tensor(gradient)))
        tensor([1., 2.])
        tensor([1., nan])
        tensor([1.5000, 3.0000])
    """

    def __init__(self, mu: float = 0.9, *, nesterov: bool = False, dampening: float = 0.0) -> None:
        """Begin without a past.

        Args:
            mu: the momentum factor, 0 <= mu < 1.
            nesterov: send g + mu * m instead of m.
            dampening: how much of each gradient is left out of the sum, 0 <= dampening <= 1.

        Raises:
            ConfigError: a factor is out of range.
        """
        self.mu, self.nesterov, self.dampening = check_mu(mu), nesterov, dampening
        if isinstance(dampening, bool) or not isinstance(dampening, (int, float)) or not 0 <= dampening <= 1:
            raise ConfigError(f"dampening must be from 0 to 1 (use mu for an average), got {dampening!r}")
        self.buffer: Tensor | None = None
        """(h, d) or (d,): m, or None before the first update."""
        self._withheld: dict[int, Tensor] = {}
        """The momentum of rows whose place in a shared `out` holds a gradient that was not accumulated."""

    def update(self, gradient: Tensor, out: Tensor | None = None) -> Tensor:
        """Accumulate a gradient and return the row to send.

        Args:
            gradient: (d,) for one worker, (h, d) for many. It does not change.
            out: where to write what is sent. Without `nesterov`, and on a CPU, m itself then stays in this memory:
                do not write to it before the next update.

        Returns:
            What is sent, of the gradient's shape: `out`, or new memory.

        Raises:
            RowsError: the gradient is no floating-point tensor, or its shape is not that of the gradients before it.
        """
        if not isinstance(gradient, Tensor) or not gradient.is_floating_point():
            raise RowsError(
                "a gradient must be a floating-point tensor, one vector for each worker, got "
                f"{gradient.dtype if isinstance(gradient, Tensor) else 'a ' + type(gradient).__name__}: join those of "
                "a model's parameters with torch.nn.utils.parameters_to_vector, convert arrays with torch.from_numpy"
            )
        gradient = gradient.detach()
        buffer = self._buffer_for(gradient, out)
        finite = accumulate(_matrix(buffer), _matrix(gradient), self.mu, 1.0 - self.dampening)
        if buffer is out:
            if finite is not None:
                for row in (~finite).nonzero().flatten().tolist():
                    self._withheld[row] = _matrix(buffer)[row].clone()
                    _matrix(buffer)[row] = _matrix(gradient)[row]
            return out
        return self._sent(gradient, buffer, finite, out)

    def preview(self, gradient: Tensor) -> Tensor:
        """Return what `update` would return, and change nothing."""
        self._give_back()
        buffer = torch.zeros_like(gradient) if self.buffer is None else self.buffer.clone()
        finite = accumulate(_matrix(buffer), _matrix(gradient), self.mu, 1.0 - self.dampening)
        return self._sent(gradient, buffer, finite, None)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the momentum, as a copy; empty before the first update."""
        if self.buffer is None:
            return {}
        buffer = self.buffer.clone()
        for row, kept in self._withheld.items():
            _matrix(buffer)[row] = kept
        return {"momentum": buffer}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state_dict` returned."""
        buffer = state.get("momentum")
        self.buffer, self._withheld = None if buffer is None else buffer.clone(), {}

    def _buffer_for(self, gradient: Tensor, out: Tensor | None) -> Tensor:
        """Return the momentum of the updates before this one, in `out` where it may stay there."""
        if self.buffer is not None and self.buffer.shape != gradient.shape:
            raise RowsError(
                f"the momentum has the shape {tuple(self.buffer.shape)} of the gradients before, got a gradient of "
                f"shape {tuple(gradient.shape)}: use one WorkerMomentum for each model"
            )
        self._give_back()
        if self.buffer is None:
            self.buffer = torch.zeros_like(gradient, requires_grad=False)
        if out is not None and out is not self.buffer and not self.nesterov and out.device.type == "cpu":
            out.copy_(self.buffer)
            self.buffer = out
        return self.buffer

    def _give_back(self) -> None:
        """Put the momentum that was withheld from a shared `out` back into it."""
        for row, kept in self._withheld.items():
            assert self.buffer is not None
            _matrix(self.buffer)[row] = kept
        self._withheld = {}

    def _sent(self, gradient: Tensor, buffer: Tensor, finite: Tensor | None, out: Tensor | None) -> Tensor:
        if self.nesterov:
            sent = torch.add(gradient, buffer, alpha=self.mu, out=out)
        else:
            sent = buffer.clone() if out is None else out.copy_(buffer)
        if finite is not None:
            _matrix(sent).copy_(torch.where(finite.unsqueeze(1), _matrix(sent), _matrix(gradient)))
        return sent


def check_mu(mu: float) -> float:
    """Return the momentum factor, or raise a ConfigError where there is no such factor."""
    if isinstance(mu, bool) or not isinstance(mu, (int, float)) or not 0 <= mu < 1:
        raise ConfigError(f"mu must be at least 0 and below 1, got {mu!r}")
    return mu


def _matrix(rows: Tensor) -> Tensor:
    return rows if rows.dim() == 2 else rows.view(1, -1)
