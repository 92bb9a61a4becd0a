"""The passes that compile kernels: with the parts of numba that they know, and without."""

from __future__ import annotations

import pytest

from gptrs_backend_numba.codegen import numba_passes
from gptrs_backend_numba.codegen.machine_code import Linker
from gptrs_backend_numba.codegen.numba_compiler import machine_code


def total(count: int, step: int) -> int:
    result = 0
    for i in range(count):
        if i % 2:
            result += step
        else:
            step = step - 1
    return result


def test_kernels_compile_where_numba_lacks_what_is_not_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Linker().link(machine_code(total, ()))(5, 7) == total(5, 7)
    monkeypatch.setattr(numba_passes, "_PARTS", ("renamed_in_a_newer_numba",))
    monkeypatch.delattr(numba_passes, "_assign_once")
    assert Linker().link(machine_code(total, ()))(5, 7) == total(5, 7)
