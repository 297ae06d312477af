"""Memory layout: rows begin at cache lines, and rules do not depend on it."""

from __future__ import annotations

import pytest
import torch

from gyroscope._linalg import memory
from gyroscope.rules import RULES, parse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 15, 16, 17, 31, 32, 79_510, 79_504])
def test_rows_begin_at_cache_lines_an_odd_number_apart(d: int, dtype: torch.dtype) -> None:
    table = memory.table(5, d, torch.empty(0, dtype=dtype))
    assert table.shape == (5, d) and table.dtype == dtype and table.stride(1) == 1
    apart = table.stride(0) * table.element_size()
    assert apart % 64 == 0 and apart // 64 % 2 == 1 and table.stride(0) - d < 2 * 64 // table.element_size()
    assert table.data_ptr() % 64 == 0
    assert not table.as_strided((5 * table.stride(0),), (1,)).any()  # nothing that was there before goes to a file


def test_other_devices_get_plain_matrices() -> None:
    table = memory.table(5, 17, torch.empty(0, device="meta"))
    assert table.shape == (5, 17) and table.is_contiguous() and table.device.type == "meta"


@pytest.mark.parametrize("name", sorted(RULES))
def test_rules_do_not_depend_on_the_row_stride(name: str) -> None:
    """A run gives its rule a matrix with gaps between the rows, which may hold anything."""
    rule, f = parse(name), 1
    n = max(rule.min_workers(f), 9)
    rows = torch.randn(n, 37, generator=torch.Generator().manual_seed(1))
    table = memory.table(n, 37, rows)
    table.as_strided((n, table.stride(0)), (table.stride(0), 1)).fill_(torch.nan)
    table.copy_(rows)
    if "trusted" in rule.uses:
        pytest.skip("needs what the server holds")
    assert torch.equal(rule(table, f).vector, rule(rows, f).vector)
