"""The passes that compile kernels: with the parts of numba that they know, and without."""

from __future__ import annotations

import pytest

from gptrs_backend_numba.codegen import kernel_target
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
    monkeypatch.setattr(kernel_target, "_PARTS", ("renamed_in_a_newer_numba",))
    monkeypatch.delattr(kernel_target, "_assign_once")
    assert Linker().link(machine_code(total, ()))(5, 7) == total(5, 7)
