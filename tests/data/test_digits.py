"""The digits are those of scikit-learn, whether or not its file is where it is expected."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from gyroscope.simulation.data import digits


@pytest.mark.parametrize("found", [True, False])
def test_they_are_what_scikit_learn_gives(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    expected, expected_labels = load_digits(return_X_y=True)
    if found:
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # importing it now fails
    else:
        monkeypatch.setattr(digits, "stored", lambda: None)
    images, labels = digits.load()
    np.testing.assert_array_equal(images, expected, strict=True)
    np.testing.assert_array_equal(labels, expected_labels, strict=True)
