"""The scope of parameters that model code sees: names, types, laziness, identity, conversion."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from gptrs.backend.contract import Backend, Buffer, Executable, InputRole
from gptrs.capture.graph import GraphSlice
from gptrs.capture.parameter import Parameter
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.parameter_ids import base_param_id, param_key
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import parse_type

ARRAYS = {
    "transformer.wte.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
    "transformer.h.0.ln.weight": np.array([1.5, -2.25], ml_dtypes.bfloat16),
    "transformer.h.0.ln.bias": np.array([0.1, 65504], np.float16),
    "transformer.h.1.ln.weight": np.array([1, 1e300]),
    "transformer.h.1.mask": np.array([[True, False]]),
    "ids": np.array([1, 2, 3], np.int64),
}


class ArraySource:
    """Arrays in memory as a source, which counts what it loads."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.loads: list[str] = []

    def names(self) -> Sequence[str]:
        return list(self.arrays)

    def type_of(self, name: str) -> TensorType:
        return TensorType.of(self.arrays[name])

    def load(self, name: str) -> np.ndarray:
        self.loads.append(name)
        return self.arrays[name]


class HostBackend(Backend):
    """A backend whose memory is NumPy's; it keeps arrays and runs nothing."""

    name = "host"

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        return "it runs nothing"

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        raise AssertionError("nothing is compiled here")

    def to_device(self, array: np.ndarray) -> Buffer:
        return array

    def to_host(self, buffer: Buffer) -> np.ndarray:
        assert isinstance(buffer, np.ndarray)
        return buffer


@pytest.fixture
def source() -> ArraySource:
    return ArraySource(ARRAYS)


def _params(source: ArraySource, **options: object) -> Params:
    return Params(source, backend=HostBackend(), **options)  # type: ignore[arg-type]


def _parameter(params: Params, name: str, shape: Sequence[int] | None = None) -> Parameter:
    parameter = params.tensor(name, shape, floating=False).source
    assert isinstance(parameter, Parameter)
    return parameter


def test_scopes_join_names_with_dots(source: ArraySource) -> None:
    root = _params(source)
    layer = root / "transformer" / "h" / 0
    assert "ln.weight" in layer
    assert "weight" in layer / "ln"
    assert "weight" in root / "transformer.h.1.ln"
    assert "ln.weight" not in root
    assert "ln" not in layer
    assert _parameter(layer / "ln", "weight").name == "transformer.h.0.ln.weight"
    assert "ids" in root, "a scope does not change the one it was made from"
    assert repr(layer) == "Params('transformer.h.0')"


def test_one_name_is_one_parameter_through_any_scope(source: ArraySource) -> None:
    root = _params(source)
    first = _parameter(root / "transformer" / "wte", "weight", (3, 2))
    assert _parameter(root, "transformer.wte.weight") is first


def test_keys_follow_the_namespace(source: ArraySource) -> None:
    found = _parameter(_params(source, namespace=9), "ids")
    assert found.key == param_key(9, base_param_id("ids"))
    keys = {_parameter(_params(source), "ids").key for _ in range(10)}
    assert len(keys) == 10


def test_nothing_is_loaded_before_it_is_used_and_then_once(source: ArraySource) -> None:
    params = _params(source)
    tensor = params.tensor("ids", (3,), floating=False)
    assert source.loads == []
    assert tensor.numpy().tolist() == [1, 2, 3]
    assert params.tensor("ids", floating=False).numpy().tolist() == [1, 2, 3]
    assert source.loads == ["ids"]


def test_what_has_the_dtype_already_is_not_copied(source: ArraySource) -> None:
    buffer = _parameter(_params(source), "transformer.wte.weight").buffer()
    assert np.shares_memory(np.asarray(buffer), ARRAYS["transformer.wte.weight"])


@pytest.mark.parametrize(
    ("dtype", "name", "expected"),
    [
        (dtypes.f32, "transformer.h.0.ln.weight", np.array([1.5, -2.25], np.float32)),
        (dtypes.f32, "transformer.h.0.ln.bias", ARRAYS["transformer.h.0.ln.bias"].astype("f4")),
        (dtypes.f32, "transformer.h.1.ln.weight", np.array([1, np.inf], np.float32)),
        (dtypes.f64, "transformer.h.0.ln.weight", np.array([1.5, -2.25])),
        (dtypes.f16, "transformer.h.1.ln.weight", np.array([1, np.inf], np.float16)),
        (None, "transformer.h.0.ln.weight", ARRAYS["transformer.h.0.ln.weight"]),
        (dtypes.f32, "transformer.h.1.mask", ARRAYS["transformer.h.1.mask"]),
        (dtypes.f32, "ids", ARRAYS["ids"]),
    ],
)
def test_floats_are_converted_and_nothing_else(
    source: ArraySource, dtype: dtypes.DType | None, name: str, expected: np.ndarray
) -> None:
    tensor = _params(source, dtype=dtype).tensor(name, floating=False)
    assert tensor.type == TensorType.of(expected)
    found = tensor.numpy()
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


class GuardingBackend(HostBackend):
    """One that sees to what becomes of a run when a file is cut."""

    reads_mapped_files = True


def test_weights_of_a_file_are_views_of_its_mapping_where_they_may_be(tmp_path: Path) -> None:
    save_file({"w": np.arange(100, dtype=ml_dtypes.bfloat16)}, tmp_path / "x.safetensors")
    file_source = FileSource.of_file(tmp_path / "x.safetensors")
    stored = Params(file_source, backend=GuardingBackend(), dtype=None)
    widened = Params(file_source, backend=HostBackend())
    mapped = file_source.view("w")
    assert np.shares_memory(np.asarray(_parameter(stored, "w").buffer()), mapped)
    assert not np.shares_memory(stored.tensor("w", (100,)).numpy(), mapped)
    assert not np.shares_memory(widened.tensor("w", (100,)).numpy(), mapped)
    assert widened.tensor("w", (100,)).numpy().tolist() == mapped.tolist()


def test_names_beyond_ascii_load(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"größe.权重": np.arange(3, dtype=np.float32)}, path)
    tensor = (Params(FileSource.of_file(path), backend=HostBackend()) / "größe").tensor("权重")
    assert tensor.numpy().tolist() == [0, 1, 2]


class CastingBackend(HostBackend):
    """One that could run everything."""

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        return None


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ("bf16[4, 3]", "bf16[4, 3]"),
        ("f16[4, 3]", "f16[4, 3]"),
        ("bf16[4]", "f32[4]"),
        ("bf16[2, 3, 3, 2]", "f32[2, 3, 3, 2]"),
        ("f64[4, 3]", "f32[4, 3]"),
    ],
)
def test_matrices_of_two_bytes_are_kept_and_programs_convert_them(stored: str, kept: str) -> None:
    type_ = parse_type(stored)
    array = np.ones(type_.shape).astype(type_.dtype.numpy)
    params = Params(ArraySource({"w": array}), backend=CastingBackend())
    tensor = params.tensor("w", type_.shape)
    assert tensor.dtype is dtypes.f32
    (leaf,) = GraphSlice([tensor.source]).leaves
    assert str(leaf.type) == kept
    assert params.tensor("w").shape == type_.shape
    if str(leaf.type) == stored:
        assert isinstance(leaf, Parameter)
        assert np.shares_memory(np.asarray(leaf.buffer()), array)
    with pytest.raises(CheckpointError, match="the model needs"):
        params.tensor("w", (1,))


def test_a_backend_that_cannot_convert_gets_them_converted() -> None:
    array = np.ones((4, 3), ml_dtypes.bfloat16)
    for dtype, expected in ((dtypes.f32, np.float32), (None, ml_dtypes.bfloat16)):
        params = Params(ArraySource({"w": array}), backend=HostBackend(), dtype=dtype)
        assert _parameter(params, "w").buffer().dtype == expected


def test_weights_are_floats(source: ArraySource) -> None:
    with pytest.raises(UsageError, match="got the dtype `si32`"):
        _params(source, dtype=dtypes.si32)


def test_a_wrong_shape_names_both(source: ArraySource) -> None:
    params = _params(source, origin="model.safetensors") / "transformer" / "h" / 0
    with pytest.raises(CheckpointError) as caught:
        params.tensor("ln.weight", (3, 1))
    assert str(caught.value) == (
        "tensor `transformer.h.0.ln.weight` in `model.safetensors` is `f32[2]`,"
        " the model needs `f32[3, 1]`; config.json and the weights are not of one model"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h.0.ln.weight", "did you mean `transformer.h.0.ln.weight`?"),
        ("model.ids", "did you mean `ids`?"),
        ("transformer.wte.weigth", "did you mean `transformer.wte.weight`?"),
        ("transformer.h.1.attention.output", "below `transformer.h.1` it has `transformer.h.1.ln"),
        ("zzz", "it has `transformer.wte.weight`, `transformer.h.0.ln.weight`"),
        ("zzz." * 10_000, "and 2 more"),
    ],
)
def test_a_missing_tensor_says_what_comes_near(source: ArraySource, name: str, hint: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _params(source, origin="the/folder").tensor(name)
    message = str(caught.value)
    assert message.startswith(f"`the/folder` has no tensor `{name[:70]}")
    assert hint in message
    assert len(message) < 700


def test_a_missing_tensor_of_nothing() -> None:
    with pytest.raises(CheckpointError, match="it has no tensors at all"):
        _params(ArraySource({})).tensor("x")


def test_integers_where_floats_are_needed(source):
    with pytest.raises(CheckpointError, match=r"`ids` .* is `si64\[3\]`, the model needs floats"):
        _params(source).tensor("ids")


def test_unused_tensors(source: ArraySource) -> None:
    params = _params(source)
    assert params.unused() == list(ARRAYS)
    params.tensor("ids", floating=False)
    (params / "transformer").tensor("wte.weight")
    assert "transformer.h.1.mask" in params
    with pytest.raises(CheckpointError):
        params.tensor("absent")
    assert params.unused() == list(ARRAYS)[1:5]
    assert (params / "transformer" / "h" / 1).unused() == list(ARRAYS)[3:5]


def test_threads_get_one_parameter_which_loads_once(source: ArraySource) -> None:
    params = _params(source)
    found: list[Parameter] = []

    def use() -> None:
        parameter = _parameter(params, "ids")
        parameter.buffer()
        found.append(parameter)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert source.loads == ["ids"]
