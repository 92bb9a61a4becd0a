"""Reads types from text for the tables of the IR tests."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gptrs.ir import TensorType, dtypes

TypesOf = Callable[[str], list[TensorType]]


@pytest.fixture
def types_of() -> TypesOf:
    """Turns `f32[2, 3] i1[]` into two tensor types."""

    def read(text: str) -> list[TensorType]:
        found = re.findall(r"(\w+)\[([^\]]*)\]", text)
        return [
            TensorType(dtypes.by_name(name), tuple(int(dim) for dim in dims.split(",") if dim))
            for name, dims in found
        ]

    return read
