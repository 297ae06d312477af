"""Load other libraries' rules, where they are installed, to compare their speed with ours.

torchjd comes with the extra `bench`. ByzFL is not part of it, because it requires torchvision and with it another
torch: install it with `pip install --no-deps byzfl`. Its aggregators do not use torchvision.
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
    """Return their rules for n rows of which f may be Byzantine, by "library Name"."""
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
    """Return the version of each library, or `not installed`."""
    known = {}
    for name in ("byzfl", "torchjd"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            known[name] = "not installed"
    return known


def _byzfl() -> Any:
    """Import ByzFL's aggregators alone: the package as a whole imports torchvision."""
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
            del sys.modules["byzfl"]  # a later import gets the real one


def _torchjd() -> Any:
    try:
        return importlib.import_module("torchjd.aggregation")
    except ImportError:
        return None
