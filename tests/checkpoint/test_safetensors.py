"""Reading sound safetensors files: every dtype, every shape, as views of the mapping."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save, save_file

from checkpoint.raw_files import F32_PAIR, write_raw
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

DTYPES = [
    dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.si64, dtypes.si32, dtypes.si16,
    dtypes.si8, dtypes.ui64, dtypes.ui32, dtypes.ui16, dtypes.ui8, dtypes.i1,
]  # fmt: skip
SHAPES = [(), (1,), (0,), (3, 0, 2), (2, 3), (1, 2, 3, 1, 2)]


def _sample(dtype: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(7).integers(0, 2 if dtype.is_bool else 100, shape)
    return np.asarray(values).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_what_the_library_wrote(tmp_path: Path, dtype: dtypes.DType) -> None:
    arrays = {f"t{i}": _sample(dtype, shape) for i, shape in enumerate(SHAPES)}
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "np"})
    with SafetensorsFile.open(path) as file:
        assert file.metadata == {"format": "np"}
        assert set(file.entries) == set(arrays)
        for name, expected in arrays.items():
            found = file.read(name)
            assert file.type_of(name) == TensorType.of(found) == TensorType(dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
            assert not found.flags.writeable


@pytest.mark.parametrize(
    ("tag", "dtype"), [("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2)]
)
def test_reads_eight_bit_floats(tmp_path: Path, tag: str, dtype: type) -> None:
    values = np.array([0.5, -2.0, np.nan, 448.0], dtype)
    header = {"x": {"dtype": tag, "shape": [4], "data_offsets": [0, 4]}}
    path = write_raw(tmp_path / "x.safetensors", header, values.tobytes())
    found = SafetensorsFile.open(path).read("x")
    assert (found.dtype, found.tobytes()) == (values.dtype, values.tobytes())


@settings(max_examples=40, deadline=None)
@given(
    arrays=st.dictionaries(
        st.text(max_size=6).filter(lambda name: name != "__metadata__"),
        hnp.arrays(
            st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_]),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
        ),
        max_size=5,
    )
)
def test_round_trips_any_arrays(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.safetensors"
    path.write_bytes(save(arrays))
    file = SafetensorsFile.open(path)
    assert set(file.entries) == set(arrays)
    for name, expected in arrays.items():
        found = file.read(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def test_views_are_of_the_mapping_and_a_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.arange(4096, dtype=ml_dtypes.bfloat16)}, path)
    file = SafetensorsFile.open(path)
    first, second, own = file.view("w"), file.view("w"), file.read("w")
    assert own.dtype == first.dtype == np.dtype(ml_dtypes.bfloat16)
    assert np.shares_memory(first, second)
    assert not first.flags.owndata
    # A page written through the file shows in the view: nothing was copied.
    with path.open("r+b") as raw:
        raw.seek(file.entry("w").offset)
        raw.write(np.array(7.5, ml_dtypes.bfloat16).tobytes())
    assert first[0] == 7.5
    assert own[0] == 0


def test_unaligned_tensors_are_copied_and_right(tmp_path: Path) -> None:
    header = {
        "pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "odd": {"dtype": "F64", "shape": [2, 1], "data_offsets": [1, 17]},
    }
    values = np.array([[1.25], [-3.5]])
    for spaces in range(8):  # every alignment of the data section
        text = repr(header).replace("'", '"').encode() + b" " * spaces
        path = write_raw(tmp_path / f"{spaces}.safetensors", text, b"\x05" + values.tobytes())
        file = SafetensorsFile.open(path)
        for found in (file.read("odd"), file.view("odd")):
            np.testing.assert_array_equal(found, values)
            assert found.flags.aligned
            assert not found.flags.writeable
        aligned = file.entry("odd").offset % 8 == 0
        assert np.shares_memory(file.view("odd"), file.view("odd")) == aligned


def test_views_outlive_the_file_object(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.arange(10_000, dtype=np.float32)}, path)
    with SafetensorsFile.open(path) as file:
        view = file.view("w")
    with pytest.raises(UsageError, match=r"x.safetensors` was closed before `w`"):
        file.read("w")
    del file
    gc.collect()
    path.unlink()
    assert view.sum() == np.arange(10_000, dtype=np.float32).sum()


def test_closing_gives_back_every_descriptor(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", F32_PAIR, bytes(20))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        SafetensorsFile.open(path).close()
        with pytest.raises(CheckpointError):
            SafetensorsFile.open(write_raw(tmp_path / "bad.safetensors", F32_PAIR, bytes(19)))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_without_tensors(tmp_path: Path) -> None:
    file = SafetensorsFile.open(write_raw(tmp_path / "x.safetensors", {}))
    assert dict(file.entries) == {}
    assert dict(file.metadata) == {}


def test_the_header_may_be_padded_with_spaces(tmp_path: Path) -> None:
    file = SafetensorsFile.open(write_raw(tmp_path / "x.safetensors", b"{}      "))
    assert dict(file.entries) == {}


def test_unknown_dtypes_are_listed_and_refused_by_name_when_read(tmp_path: Path) -> None:
    header = {
        "x": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
        "y": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
    }
    file = SafetensorsFile.open(write_raw(tmp_path / "x.safetensors", header, b"\1\2\3"))
    entry = file.entries["x"]
    assert (entry.tag, entry.dtype, str(entry), entry.nbytes) == ("F4", None, "F4[4]", 2)
    assert file.read("y").tolist() == [3]
    for ask in (file.read, file.type_of):
        with pytest.raises(CheckpointError, match=r"tensor `x`: dtype `F4` is not supported; conv"):
            ask("x")


def test_an_absent_tensor(tmp_path: Path) -> None:
    file = SafetensorsFile.open(write_raw(tmp_path / "x.safetensors", F32_PAIR, bytes(20)))
    with pytest.raises(CheckpointError, match=r"x.safetensors` has no tensor `c`"):
        file.read("c")


def test_entries_cannot_be_changed(tmp_path: Path) -> None:
    file = SafetensorsFile.open(write_raw(tmp_path / "x.safetensors", F32_PAIR, bytes(20)))
    with pytest.raises(TypeError):
        file.entries["c"] = file.entries["a"]  # type: ignore[index]


def test_several_threads_may_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({f"w{i}": np.full(1000, i, np.float32) for i in range(20)}, path)
    file = SafetensorsFile.open(path)
    wrong: list[str] = []

    def read_all() -> None:
        for i in range(20):
            if not np.all(file.read(f"w{i}") == i):
                wrong.append(f"w{i}")

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
