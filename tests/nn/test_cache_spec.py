"""What layers keep, and which of them share pages."""

from __future__ import annotations

import pytest

from gptrs.errors import UsageError
from gptrs.nn import CacheGroup, CacheSpec, cache_groups


def test_layers_with_one_window_are_a_group():
    specs = [CacheSpec(2, 8, 100), CacheSpec(2, 8), CacheSpec(4, 8, 100), CacheSpec(2, 8, 7)]
    assert cache_groups(specs) == (
        CacheGroup(100, (0, 2)),
        CacheGroup(None, (1,)),
        CacheGroup(7, (3,)),
    )


@pytest.mark.parametrize("name", ["n_kv_heads", "head_dim", "window"])
def test_sizes_below_one_are_refused(name):
    sizes = {"n_kv_heads": 2, "head_dim": 4, "window": 3, name: 0}
    with pytest.raises(UsageError, match=f"needs `{name}` of at least 1, got 0"):
        CacheSpec(**sizes)
