"""Kernels are object files that a process links and calls without numba."""

import math
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from gptrs_backend_numba.codegen import machine
from gptrs_backend_numba.codegen.code_image import MAGIC, image_of, load_image
from gptrs_backend_numba.codegen.compiled import address_of_kernel, compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.machine import keep_alive
from gptrs_backend_numba.codegen.machine_code import Linker, MachineCode, decode
from gptrs_backend_numba.codegen.numba_compiler import machine_code
from gptrs_backend_numba.codegen.processor import host_features


@kernel
def total_of_range(count, first):
    """A kernel that makes an array."""
    numbers = np.empty(count, np.int64)
    for i in range(count):
        numbers[i] = first + i
    total = 0
    for i in range(count):
        total += numbers[i]
    return total


@kernel
def misaligned(length, wanted):
    x, y = np.zeros(length, np.float32), np.ones(length, np.float32)
    for i in range(length):
        if x[i] != 0 or y[i] != 1:
            keep_alive(x)
            keep_alive(y)
            return 1
    odd = (x.ctypes.data | y.ctypes.data) % wanted
    keep_alive(x)
    keep_alive(y)
    return odd


@kernel
def difference(a, b):
    return a - b


@kernel
def third(a, b, c, geometry, task):
    return a + 3 * task


def test_a_kernel_may_make_arrays() -> None:
    kernel = compiled(total_of_range)
    assert [kernel(count, 10) for count in (0, 1, 4, 100_000)] == [0, 10, 46, 5_000_950_000]


def test_a_kernel_without_memory_for_its_work_raises() -> None:
    with pytest.raises(MemoryError):
        compiled(total_of_range)(1 << 59, 0)


def test_arrays_begin_at_multiples_of_their_alignment_and_do_not_overlap() -> None:
    kernel = compiled(misaligned)
    assert {kernel(length, 16) for length in (1, 3, 17, 1000, 100_003)} == {0}


def test_negative_numbers_and_addresses_pass_as_they_are() -> None:
    kernel = compiled(difference)
    assert kernel(-(1 << 63), -1) == 1 - (1 << 63)
    assert kernel((1 << 63) - 1, 0) == (1 << 63) - 1


def test_one_kernel_is_linked_once() -> None:
    assert compiled(third) is compiled(third.specialize())
    assert compiled_task(third) == address_of_kernel(compiled(third))


def test_encoded_code_comes_back() -> None:
    code = MachineCode("_ZN8kernel_1E", 12, b"\x7fELF\n \x00 _ZN8kernel_1E")
    assert decode(code.encoded(), "kernel_1") == code


@pytest.mark.parametrize("name", ["_ZN8kernel_2E", "kernel"])
def test_code_of_another_function_is_refused(name: str) -> None:
    code = MachineCode(name, 12, b"\x7fELF")
    with pytest.raises(ValueError, match="the code of another function"):
        decode(code.encoded(), "kernel_1")


@pytest.mark.parametrize("body", [b"", b"kernel", b"kernel x\n", b" 3\n\x7fELF", b"\x80\x04."])
def test_what_is_no_code_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="does not begin with the name"):
        decode(body, "kernel")


def test_what_is_no_machine_code_is_refused() -> None:
    with pytest.raises(ValueError, match="not machine code"):
        Linker().link(MachineCode("kernel", 1, b"nothing"))


def case_table(which, value):
    """A function with a table of constants, one of jumps, and a call of the C library."""
    if which == 0:
        return value + 11
    if which == 1:
        return value * 7
    if which == 2:
        return value - 5
    if which == 3:
        return value ^ 12
    if which == 4:
        return np.int64(math.pow(value, 1.5))
    return which


CASES = [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (9, 4)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="images are of x86-64")
def test_an_image_computes_what_the_object_file_does(monkeypatch: pytest.MonkeyPatch) -> None:
    image = machine_code(case_table, ())
    monkeypatch.setattr("gptrs_backend_numba.codegen.machine_code.image_of", lambda *_: None)
    file = machine_code(case_table, ())
    assert image.content.startswith(MAGIC)
    assert file.content.startswith(b"\x7fELF")
    linker = Linker()  # what it has linked goes with it
    mapped, linked = linker.link(image), linker.link(file)
    wanted = [case_table(*case) for case in CASES]
    assert [mapped(*case) for case in CASES] == [linked(*case) for case in CASES] == wanted


def test_an_image_that_is_cut_is_refused() -> None:
    code = compiled_content()
    for size in (len(MAGIC), len(MAGIC) + 3, len(code) // 2, len(code) - 1):
        with pytest.raises(ValueError, match="not a whole image"):
            load_image(code[:size])


def test_an_image_that_calls_what_is_not_there_is_refused() -> None:
    code = compiled_content()
    with pytest.raises(ValueError, match="calls `pox`, which this process lacks"):
        load_image(code.replace(b"pow", b"pox"))


def compiled_content() -> bytes:
    content = machine_code(case_table, ()).content
    if not content.startswith(MAGIC):
        pytest.skip("images are of x86-64")
    return content


@pytest.mark.parametrize(
    "file", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(90), b"\xcf\xfa\xed\xfe" + bytes(90)]
)
def test_other_files_have_no_image(file: bytes) -> None:
    assert image_of(file, "kernel") is None


def test_the_processor_is_described_as_by_llvm() -> None:
    present = {name for name, has in llvm.get_host_cpu_features().items() if has}
    assert host_features() <= present
    assert host_features() & machine.DECIDING == present & machine.DECIDING


SCRIPT = """
import sys
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.tasks import stop_kernel
compiled(stop_kernel)
print("numba" in sys.modules, "llvmlite.binding" in sys.modules)
"""


def test_stored_kernels_need_no_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["True", "True"], ["False", "False"]]
