"""Forms of weights on disk: private, whole or not used, within a budget, and never an error."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gptrs.backend.weight_identity import WeightFile, WeightIdentity, file_digest
from gptrs.capture.caching.optimized_programs import optimized_programs
from gptrs.disk_cache import Entries
from gptrs_backend_numba.codegen.kernel_store import open_store
from gptrs_backend_numba.kept_weights import weight_file, weight_store
from gptrs_backend_numba.kept_weights.weight_file import CHECKED, TRAILER, bring_to_disk
from gptrs_backend_numba.kept_weights.weight_store import (
    LABEL,
    LEAST,
    LEAST_OF_SLOW,
    WeightStore,
    clear,
    kept_files,
    kept_in,
)

VERSION = "0123456789abcdef"


class Weights:
    """Weights of one made-up file, which says whether it is unchanged."""

    def __init__(self, path: str = "/made/up") -> None:
        self.unchanged = True
        self.file = WeightFile(os.urandom(16), path, lambda: self.unchanged)

    def identity(self, name: str) -> WeightIdentity:
        return WeightIdentity.of(name.encode(), self.file)


def contents(seed: int, nbytes: int = LEAST) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def kept(store: WeightStore, identity: WeightIdentity, form: str, array: np.ndarray) -> Path:
    """Keep a form and return its file once it is written."""
    before = {found.path for found in kept_files(root_of(store))}
    store.keep(identity, form, array)
    store.writer.finish()
    (path,) = {found.path for found in kept_files(root_of(store))} - before
    return path


def root_of(store: WeightStore) -> Path:
    assert store.root is not None
    return store.root


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    store = WeightStore(tmp_path, VERSION, 64 * LEAST)
    yield store
    store.writer.end(1)


@pytest.fixture
def weights() -> Weights:
    return Weights()


def again(store: WeightStore, budget: int = 64 * LEAST) -> WeightStore:
    """The store as another process has it."""
    return WeightStore(store.root, store.version, budget)


def test_another_process_finds_the_bytes_mapped(store: WeightStore, weights: Weights) -> None:
    array = contents(1, LEAST + 5)
    identity = weights.identity("w")
    kept(store, identity, "panels", array)
    found = again(store).find(identity, "panels", array.nbytes)
    assert found is not None
    assert found.tobytes() == array.tobytes()
    assert not found.flags.writeable
    assert found.__array_interface__["data"][0] % 64 == 0
    other = again(store)
    assert other.find(identity, "columns", array.nbytes) is None
    assert other.find(weights.identity("v"), "panels", array.nbytes) is None
    assert other.find(Weights().identity("w"), "panels", array.nbytes) is None
    assert WeightStore(store.root, "f" * 16).find(identity, "panels", array.nbytes) is None


def test_files_are_private_and_read_only_once_they_are_on_the_disk(
    store: WeightStore, weights: Weights
) -> None:
    path = kept(store, weights.identity("w"), "form", contents(1))
    bring_to_disk(path)
    assert path.stat().st_mode & 0o777 == 0o400
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_small_forms_are_not_kept(store: WeightStore, weights: Weights) -> None:
    store.keep(weights.identity("w"), "form", contents(1, LEAST - 1))
    store.writer.finish()
    assert list(kept_files(root_of(store))) == []


def test_small_forms_of_weights_that_are_made_slowly_are_kept(
    store: WeightStore, weights: Weights
) -> None:
    identity = weights.identity("w").made_slowly().computed("scales")
    array = contents(1, LEAST_OF_SLOW)
    kept(store, identity, "form", array)
    found = again(store).find(identity, "form", array.nbytes)
    assert found is not None
    np.testing.assert_array_equal(found, array)
    store.keep(identity, "smaller", array[1:].copy())
    store.writer.finish()
    assert len(list(kept_files(root_of(store)))) == 1


def test_what_died_meanwhile_is_not_written(store: WeightStore, weights: Weights) -> None:
    store.keep(weights.identity("w"), "form", contents(1))
    store.writer.finish()
    assert store.written == Entries()


def test_a_file_that_changed_meanwhile_gives_no_form(store: WeightStore, weights: Weights) -> None:
    array = contents(1)
    weights.unchanged = False
    store.keep(weights.identity("w"), "form", array)
    store.writer.finish()
    assert list(kept_files(root_of(store))) == []


@pytest.mark.parametrize("damage", ["short", "long", "trailer", "renamed", "empty", "bit"])
def test_a_damaged_file_is_made_again(
    store: WeightStore, weights: Weights, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    array, identity = contents(1), weights.identity("w")
    path = kept(store, identity, "form", array)
    if damage == "renamed":
        path.rename(kept(store, weights.identity("v"), "form", contents(2)))
        identity = weights.identity("v")
    else:
        with path.open("r+b") as file:
            size = array.nbytes + TRAILER
            file.truncate({"short": size - 1, "long": size + 1, "empty": 0}.get(damage, size))
            if damage == "bit":
                file.seek(LEAST // 3)
                file.write(bytes([array[LEAST // 3] ^ 4]))
            if damage == "trailer":
                file.seek(-1, os.SEEK_END)
                file.write(b"\0\0")
    assert again(store).find(identity, "form", array.nbytes) is None
    assert "is made again" in caplog.text
    assert kept(again(store), identity, "form", array).exists(), "it was in the way otherwise"


@pytest.mark.parametrize("boot", ["this", "next"])
def test_a_file_is_read_whole_once_in_a_run_of_the_system(
    store: WeightStore, weights: Weights, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    array, identity = contents(1), weights.identity("w")
    path = kept(store, identity, "form", array)
    bring_to_disk(path)
    os.utime(path, (1000, 1000))  # which changes it: it is read, and marked as used
    read: list[int] = []
    original = weight_file._digest_of
    monkeypatch.setattr(
        weight_file, "_digest_of", lambda fd, n: [read.append(n), original(fd, n)][1]
    )
    assert again(store).find(identity, "form", array.nbytes) is not None
    assert read == [LEAST]
    if boot == "next":
        monkeypatch.setattr(weight_file, "_boot", lambda: b"another start...")
    assert again(store).find(identity, "form", array.nbytes) is not None
    assert read == ([LEAST] if boot == "this" else [LEAST] * 2)


def test_marks_that_are_torn_or_too_many_cost_only_time(
    store: WeightStore, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, identity = contents(1), weights.identity("w")
    path = kept(store, identity, "form", array)
    marks = path.with_name(CHECKED)
    for damage in (b"torn", bytes(16) * 3, b""):
        marks.write_bytes(damage)
        assert again(store).find(identity, "form", array.nbytes) is not None
    monkeypatch.setattr(weight_file, "_MOST_BYTES", 48)
    for number in range(5):
        kept(store, weights.identity(str(number)), "form", contents(number))
    assert 0 < marks.stat().st_size <= 48
    assert marks.stat().st_mode & 0o777 == 0o600


def test_what_others_may_write_is_not_used(
    store: WeightStore, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    array, identity = contents(1), weights.identity("w")
    path = kept(store, identity, "form", array)
    path.chmod(0o622)
    assert again(store).find(identity, "form", array.nbytes) is None
    assert "other users may write to it" in caplog.text
    path.unlink()
    path.symlink_to(Path("elsewhere").absolute())
    assert again(store).find(identity, "form", array.nbytes) is None


def test_what_may_have_been_lost_with_power_is_not_used(
    store: WeightStore, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, safe = (contents(seed) for seed in (1, 2))
    path = kept(store, weights.identity("lost"), "form", lost)
    bring_to_disk(kept(store, weights.identity("safe"), "form", safe))
    path.chmod(0o600)
    monkeypatch.setattr(weight_file, "_boot", lambda: b"another start...")
    other = again(store)
    assert other.find(weights.identity("safe"), "form", safe.nbytes) is not None
    assert other.find(weights.identity("lost"), "form", lost.nbytes) is None


def test_without_ids_of_starts_files_are_on_the_disk_at_once(
    store: WeightStore, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "_boot", lambda: bytes(16))
    array = contents(1)
    path = kept(store, weights.identity("w"), "form", array)
    assert path.stat().st_mode & 0o777 == 0o400


def test_the_least_recently_used_go_first(store: WeightStore, weights: Weights) -> None:
    names, arrays = "abc", [contents(seed) for seed in range(3)]
    for age, (name, array) in enumerate(zip(names, arrays, strict=True)):
        path = kept(store, weights.identity(name), "form", array)
        os.utime(path, (1000 + age, 1000 + age))
    other = again(store, 3 * (LEAST + TRAILER))
    assert other.find(weights.identity("a"), "form", LEAST) is not None
    fourth = contents(4)
    other.keep(weights.identity("d"), "form", fourth)
    other.writer.finish()
    found = [again(store).find(weights.identity(name), "form", LEAST) for name in "abcd"]
    assert [array is not None for array in found] == [True, False, True, True]


def test_what_this_process_uses_makes_no_room(
    store: WeightStore, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    small = again(store, 2 * (LEAST + TRAILER))
    arrays = [contents(seed) for seed in range(4)]
    for name, array in zip("abcd", arrays, strict=True):
        small.keep(weights.identity(name), "form", array)
    small.writer.finish()
    assert len(list(kept_files(root_of(store)))) == 2
    assert not small.keeps
    assert caplog.text.count("do not all fit") == 1


def test_a_cache_that_cannot_be_made_is_one_warning_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    kernels = open_store("version")
    monkeypatch.setattr(weight_store, "kernel_store", lambda: kernels)
    with caplog.at_level(logging.INFO):
        assert weight_store.weight_store.__wrapped__().root is None
        assert optimized_programs.__wrapped__().report().folder is None
    assert caplog.messages == [
        f"nothing is kept in `{tmp_path}/cache`: File exists; set `GPTRS_CACHE_DIR` to a writable"
        " folder, or every process repeats this work"
    ]


def test_an_unwritable_folder_costs_only_time(
    store: WeightStore, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    (root_of(store) / VERSION).write_text("in the way")
    array = contents(1)
    store.keep(weights.identity("w"), "form", array)
    store.writer.finish()
    assert "packed weights cannot be kept" in caplog.text
    assert "set `GPTRS_CACHE_DIR` to a writable folder" in caplog.text
    assert not store.keeps
    with caplog.at_level(logging.ERROR):
        assert store.find(weights.identity("w"), "form", array.nbytes) is None


def test_a_full_disk_leaves_no_part_of_a_file(
    store: WeightStore,
    weights: Weights,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    array = contents(1)
    original = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if data.nbytes == array.nbytes:
            return original(descriptor, data[: LEAST // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(weight_file.os, "write", full)
        store.keep(weights.identity("w"), "form", array, now=True)
    assert "No space left on device" in caplog.text
    assert not store.keeps
    left = [path.name for path in root_of(store).rglob("*") if path.is_file()]
    assert left == [LABEL]


def test_a_folder_that_is_cleared_meanwhile_is_made_again(
    store: WeightStore, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, identity = contents(1), weights.identity("w")
    original = store._make_folder

    def cleared(folder: Path, of: WeightIdentity) -> None:
        original(folder, of)
        clear(root_of(store), keep=None)

    with monkeypatch.context() as patched:
        patched.setattr(store, "_make_folder", cleared)
        store.keep(identity, "form", array, now=True)
    assert store.keeps
    store.keep(identity, "form", array, now=True)
    assert store.find(identity, "form", array.nbytes) is not None


def test_a_budget_of_nothing_keeps_nothing(tmp_path: Path, weights: Weights) -> None:
    store, array = WeightStore(tmp_path, VERSION, 0), contents(1)
    store.keep(weights.identity("w"), "form", array)
    store.writer.finish()
    assert list(tmp_path.iterdir()) == []
    assert not store.keeps


def test_a_stop_leaves_no_part_of_a_file(store: WeightStore, weights: Weights) -> None:
    array = contents(1)
    with pytest.raises(weight_file.StoppedError):
        weight_file.write_weight(root_of(store) / "name", array, lambda: True)
    assert list(root_of(store).iterdir()) == []


@pytest.mark.parametrize("what", ["weight", "form", "file", "version"])
def test_forms_that_changed_places_are_not_used(
    store: WeightStore, tmp_path: Path, what: str
) -> None:
    """Two forms that differ in one part of their full names, of the same size."""
    weights = Weights()
    other_weights = Weights() if what == "file" else weights
    other_store = WeightStore(tmp_path, "f" * 16, 64 * LEAST) if what == "version" else store
    forms = [
        (store, weights.identity("w"), "panels"),
        (
            other_store,
            other_weights.identity("v" if what == "weight" else "w"),
            "plain" if what == "form" else "panels",
        ),
    ]
    paths = [kept(*form, contents(seed)) for seed, form in enumerate(forms)]
    aside = paths[0].rename(tmp_path / "aside")
    paths[1].rename(paths[0])
    aside.rename(paths[1])
    for owner, identity, form in forms:
        assert again(owner).find(identity, form, LEAST) is None


def test_only_known_weights_are_prefetched(store: WeightStore, weights: Weights) -> None:
    kept(store, weights.identity("w"), "form", contents(1))
    assert store.prefetch(weights.identity("w"))
    assert not store.prefetch(weights.identity("v"))


def test_a_moved_file_is_listed_where_it_is(store: WeightStore, weights: Weights) -> None:
    array = contents(1)
    kept(store, weights.identity("w"), "form", array)
    weights.file = replace(weights.file, path="/moved/here")
    assert again(store).find(weights.identity("w"), "form", array.nbytes) is not None
    (listed,) = kept_in(root_of(store), VERSION)
    assert listed.name == "/moved/here"


def test_listing_and_clearing_by_file(store: WeightStore, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("weights")
    current = Weights(str(model))
    current.file = WeightFile(file_digest(model.stat()), str(model), lambda: True)
    stale = Weights("/changed/since")
    arrays = [contents(seed) for seed in range(3)]
    for source, name, array in zip((current, stale, stale), "abc", arrays, strict=True):
        kept(store, source.identity(name), "form", array)
    one, two = (Entries(n, n * (LEAST + TRAILER)) for n in (1, 2))
    listed = kept_in(root_of(store), VERSION)
    assert [(each.name, each.current, each.entries) for each in listed] == [
        (str(model), True, one),
        ("/changed/since", False, two),
    ]
    assert clear(root_of(store), keep=VERSION) == two
    assert clear(root_of(store), keep=None) == one
    assert [path.name for path in root_of(store).iterdir()] == ["model"]
