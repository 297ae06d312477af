"""What an attack over several rounds remembers: the parameters that it saw, and random signs that it keeps."""

from __future__ import annotations

from torch import Tensor

from gyroscope.attacks.base import AttackContext, normalized


def last_update(context: AttackContext) -> Tensor | None:
    """Return the direction of the server's last update: length 1, float64, with the sign that rows have.

    It is minus the displacement of the parameters since the attack's last round; the adversary need not know the
    learning rate. None in the attack's first round, and if nobody tells the adversary the parameters; zeros if they
    did not move.
    """
    now, before = context.parameters, context.state.get("parameters")
    if now is None:
        return None
    context.state["parameters"] = now.clone()
    return None if before is None else normalized(before.double() - now.double())


def kept_signs(context: AttackContext, like: Tensor) -> Tensor:
    """Return the random signs that the attack draws in its first round and keeps."""
    if "signs" not in context.state:
        context.state["signs"] = context.signs(like)
    return context.state["signs"]
