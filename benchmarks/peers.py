"""Other libraries' rules, where they are installed. They are never needed, and only measured.

torchjd comes with the extra `bench`. ByzFL asks for torchvision, which asks for a torch of its own, so it is not part
of the extra: `pip install --no-deps byzfl` puts it beside the torch that is there. Its aggregators need neither.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

Rule = Callable[[Tensor], Tensor]


def rules(n: int, f: int) -> dict[str, Rule]:
    """Their rules for n rows of which f may be Byzantine, by "library Name"."""
    found: dict[str, Rule] = {}
    byzfl = _byzfl()
    if byzfl is not None:
        found["byzfl Median"] = byzfl.Median()
        found["byzfl TrMean"] = byzfl.TrMean(f)
        found["byzfl MultiKrum"] = byzfl.MultiKrum(f)
    torchjd = _torchjd()
    if torchjd is not None:
        found["torchjd TrimmedMean"] = torchjd.TrimmedMean(f)
        found["torchjd Krum"] = torchjd.Krum(f, n - f - 2)
    return found


def versions() -> dict[str, str]:
    """Which of them are here."""
    known = {}
    for name in ("byzfl", "torchjd"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            known[name] = "not installed"
    return known


def _byzfl() -> Any:
    """ByzFL's aggregators alone: the package as a whole imports torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return None
    before = sys.modules.get("byzfl")
    sys.modules["byzfl"] = before or importlib.util.module_from_spec(spec)  # made, not executed
    try:
        return importlib.import_module("byzfl.aggregators.aggregators")
    except ImportError:
        return None
    finally:
        if before is None:
            del sys.modules["byzfl"]  # whoever imports it later gets the real one


def _torchjd() -> Any:
    try:
        return importlib.import_module("torchjd.aggregation")
    except ImportError:
        return None
