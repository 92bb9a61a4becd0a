"""Damage to JSON values: anything at any place replaced or deleted."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["x", "0", "f32[2]", "f32[]", "tanh", "cond", "AAAA", "@main", "", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "id", "type", "results", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """A copy of a JSON value with one thing in it replaced or deleted."""
    root = copy.deepcopy(value)
    container, key = draw(st.sampled_from(places(root)))
    if draw(st.booleans()):
        del container[key]
    else:
        container[key] = draw(VALUES)
    return root


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value with each key or index in it."""
    found: list[tuple[Any, Any]] = []
    keys = range(len(value)) if isinstance(value, list) else value
    for key in keys if isinstance(value, dict | list) else ():
        found.append((value, key))
        found.extend(places(value[key]))
    return found
