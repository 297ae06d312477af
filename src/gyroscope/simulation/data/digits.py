"""Read the small digits inside scikit-learn without importing it.

Its import takes seconds, because it imports SciPy and pandas: too long for one table of numbers, most of all where
every worker is a process of its own.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyroscope._core.optional import extra

_FILE = Path("datasets", "data", "digits.csv.gz")


def load() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (1797, 64) values from 0 to 16 and their (1797,) labels, as `sklearn.datasets.load_digits` does."""
    path = stored()
    if path is None:
        with extra("lab", "the task digits"):
            from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return images, labels
    table = np.loadtxt(path, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def stored() -> Path | None:
    """Return the file in which scikit-learn keeps them; None where its version keeps them elsewhere."""
    package = importlib.util.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or ()
    return next((path for folder in folders if (path := Path(folder) / _FILE).is_file()), None)
