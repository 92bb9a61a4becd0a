"""Kernels are object files that a process links and calls without numba."""

import subprocess
import sys
from pathlib import Path

import pytest

from gptrs_backend_numba.codegen.compiled import address_of_kernel, compiled, compiled_task
from gptrs_backend_numba.codegen.machine_code import Linker, MachineCode, decode

SUM = """
def kernel(count, first):
    numbers = np.empty(count, np.int64)
    for i in range(count):
        numbers[i] = first + i
    total = 0
    for i in range(count):
        total += numbers[i]
    return total
"""
"""A kernel that makes an array."""


def test_a_kernel_may_make_arrays() -> None:
    kernel = compiled(SUM)
    assert [kernel(count, 10) for count in (0, 1, 4, 100_000)] == [0, 10, 46, 5_000_950_000]


def test_a_kernel_without_memory_for_its_work_raises() -> None:
    with pytest.raises(MemoryError):
        compiled(SUM)(1 << 59, 0)


def test_arrays_begin_at_multiples_of_their_alignment_and_do_not_overlap() -> None:
    source = """
def kernel(length, wanted):
    x, y = np.zeros(length, np.float32), np.ones(length, np.float32)
    for i in range(length):
        if x[i] != 0 or y[i] != 1:
            return 1
    odd = (x.ctypes.data | y.ctypes.data) % wanted
    x[:1], y[:1] = 0, 0
    return odd
"""
    kernel = compiled(source)
    assert {kernel(length, 16) for length in (1, 3, 17, 1000, 100_003)} == {0}


def test_negative_numbers_and_addresses_pass_as_they_are() -> None:
    kernel = compiled("def kernel(a, b):\n    return a - b\n")
    assert kernel(-(1 << 63), -1) == 1 - (1 << 63)
    assert kernel((1 << 63) - 1, 0) == (1 << 63) - 1


def test_one_source_is_linked_once() -> None:
    source = "def kernel(a, b, c, geometry, task):\n    return a + 3 * task\n"
    assert compiled(source) is compiled(source)
    assert compiled_task(source) == address_of_kernel(compiled(source))


def test_encoded_code_comes_back() -> None:
    code = MachineCode("kernel_1", 12, b"\x7fELF\n \x00")
    assert decode(code.encoded()) == code


@pytest.mark.parametrize("body", [b"", b"kernel", b"kernel x\n", b" 3\n\x7fELF", b"\x80\x04."])
def test_what_is_no_code_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="does not begin with the name"):
        decode(body)


def test_what_is_no_object_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no object file"):
        Linker().link(MachineCode("kernel", 1, b"nothing"))


SCRIPT = f"""
import sys
from gptrs_backend_numba.codegen.compiled import compiled
print(compiled({SUM!r})(4, 10), "numba" in sys.modules)
"""


def test_stored_kernels_need_no_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["46", "True"], ["46", "False"]]


def test_an_array_must_outlive_the_use_of_its_address() -> None:
    """numba frees an array after its last mention."""
    source = """
def kernel(count):
    numbers = np.zeros(count, np.int64)
    place = pointer(numbers.ctypes.data, np.int64)
    for i in range(count):
        place[i] = i
    return 0
"""
    with pytest.raises(AssertionError, match="`numbers` is mentioned last to take its address"):
        compiled(source)
    compiled(source.replace("    return", "    numbers[:1] = 0\n    return"))
