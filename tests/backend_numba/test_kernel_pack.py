"""Packs of kernels are used where they fit, and whatever is wrong with one costs only time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gptrs_backend_numba.codegen import compiled, kernel_pack
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.codegen.kernel_pack import (
    DamagedPackError,
    KernelPack,
    digest_of,
    head_for_target,
    head_of,
    pack_parts,
    write_pack,
)
from gptrs_backend_numba.codegen.numba_compiler import machine_code

HERE = head_for_target("numba of a test")


@kernel
def seven_times(x):
    return 7 * x


WANTED = compiled.WantedKernel(seven_times.specialize())


@pytest.fixture(scope="module")
def code() -> bytes:
    return machine_code(WANTED.function(), ()).encoded()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packs that this process looks into; nothing else is kept or known."""
    monkeypatch.setenv(kernel_pack.VARIABLE, str(tmp_path / "pack"))
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_KERNELS", {})
    caches = (kernel_pack._packs, compiled.kernel_store)
    for each in caches:
        each.cache_clear()
    monkeypatch.setattr(compiled, "_announce", lambda store: None)
    (tmp_path / "pack").mkdir()
    yield tmp_path / "pack"
    for each in caches:
        each.cache_clear()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that are compiled."""
    names: list[str] = []
    listen = compiled.LISTENERS.kernel
    monkeypatch.setattr(compiled.LISTENERS, "kernel", lambda: (names.append("made"), listen()))
    return names


def test_a_kernel_of_the_pack_is_not_compiled(folder: Path, code: bytes, made: list[str]) -> None:
    write_pack(folder / "here.kernels", HERE, {digest_of(WANTED.key): code})
    assert compiled.is_stored(WANTED)
    assert compiled.compiled(seven_times)(6) == 42
    assert made == []
    assert not any((folder.parent / "cache").rglob("[0-9a-f]*"))


def test_a_kernel_that_the_pack_lacks_is_compiled(folder: Path, made: list[str]) -> None:
    write_pack(folder / "here.kernels", HERE, {})
    assert compiled.compiled(seven_times)(6) == 42
    assert made == ["made"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sources": "00" * 20}, "it was made from other sources of the kernels"),
        ({"system": "m68k AmigaOS"}, "it is for m68k AmigaOS, this is "),
        ({"needs": (*HERE.needs, "avx4096")}, "it is for processors with avx4096"),
        ({"deciding": (*HERE.deciding, "amx-dreams")}, "it is for processors with amx-dreams"),
    ],
)
def test_a_pack_that_does_not_fit_is_not_used_and_says_why(
    change: dict[str, object], reason: str, folder: Path, code: bytes, made: list[str]
) -> None:
    other = replace(HERE, **change)
    write_pack(folder / "other.kernels", other, {digest_of(WANTED.key): code})
    assert compiled.compiled(seven_times)(6) == 42
    assert made == ["made"]
    (part,) = pack_parts()
    assert (part.current, part.entries.count) == (False, 1)
    assert part.name.startswith(f"this machine: {reason}")


@pytest.mark.skipif(not HERE.deciding, reason="the processor has nothing to leave out")
def test_a_pack_for_lesser_processors_is_not_used(folder: Path) -> None:
    lesser = replace(HERE, deciding=HERE.deciding[1:])
    write_pack(folder / "lesser.kernels", lesser, {})
    (part,) = pack_parts()
    assert part.name == f"this machine: it makes no use of {HERE.deciding[0]}"


def test_the_pack_that_uses_most_of_the_processor_is_taken(folder: Path, code: bytes) -> None:
    write_pack(folder / "a.kernels", replace(HERE, target="all of it"), {})
    write_pack(folder / "b.kernels", replace(HERE, target="less", needs=HERE.needs[1:]), {})
    used, other = pack_parts()
    assert used.current
    assert used.name.startswith("all of it, installed in ")
    assert (other.current, other.name) == (False, "less: another fits better")


def flipped(content: bytes, at: int) -> bytes:
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: b"MZ" + content[2:],
        lambda content: flipped(content, 30),
        lambda content: flipped(content, -1),
        lambda content: flipped(content, content.index(b'"needs"')),
        lambda content: content[:-20],
        lambda content: content[:16] + b"\xff" * 8 + content[24:],
    ],
    ids=["empty", "cut", "other", "early", "late", "head", "short", "lengths"],
)
def test_what_is_damaged_is_compiled_again(
    damage: Callable[[bytes], bytes], folder: Path, code: bytes, made: list[str]
) -> None:
    path = folder / "here.kernels"
    write_pack(path, HERE, {digest_of(WANTED.key): code})
    path.write_bytes(damage(path.read_bytes()))
    assert compiled.compiled(seven_times)(6) == 42
    assert made == ["made"]


def test_code_that_is_no_code_is_compiled_again(folder: Path, made: list[str]) -> None:
    write_pack(folder / "here.kernels", HERE, {digest_of(WANTED.key): b"nothing 1\n"})
    assert compiled.compiled(seven_times)(6) == 42
    assert made == ["made"]


def test_packs_are_turned_off(
    folder: Path, code: bytes, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pack(folder / "here.kernels", HERE, {digest_of(WANTED.key): code})
    monkeypatch.setenv(kernel_pack.VARIABLE, "0")
    assert compiled.compiled(seven_times)(6) == 42
    assert made == ["made"]
    assert pack_parts() == []


def test_equal_code_is_stored_once(folder: Path, code: bytes) -> None:
    write_pack(folder / "one.kernels", HERE, {digest_of("a"): code})
    write_pack(folder / "two.kernels", HERE, {digest_of("a"): code, digest_of("b"): code})
    one, two = KernelPack(folder / "one.kernels"), KernelPack(folder / "two.kernels")
    assert two.load("a") == two.load("b") == code
    assert two.nbytes - one.nbytes < 50
    assert (len(one), len(two)) == (1, 2)
    assert two.load("c") is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"target": "x", "colour": 1}'])
def test_a_head_of_another_version_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedPackError, match="head is of another version"):
        head_of(text)
    assert head_of(HERE.encoded()) == HERE


def test_a_file_that_nobody_may_read_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "here.kernels").mkdir()  # neither root nor anybody reads a folder
    (part,) = pack_parts()
    assert (part.current, part.entries.count) == (False, 0)
    assert part.name.startswith("here: ")
