"""Meshes, names of axes, and how tensors are split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs.backend.settings import Mesh
from gptrs.backend.sharding import Axis, sharding_of
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.param_source import TensorPlan
from gptrs.errors import ModelError, UsageError

MESH = Mesh.parse("data=2,tensor=4")


def test_a_mesh_is_read() -> None:
    assert MESH.axes == (("data", 2), ("tensor", 4))
    assert MESH.size == 8
    assert str(MESH) == "data=2,tensor=4"


@pytest.mark.parametrize(
    "bad", ["", "tensor", "tensor=0", "tensor=2,tensor=2", "pipe=2", "data=-1"]
)
def test_meshes_that_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="data=2,tensor=4"):
        Mesh.parse(bad)


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((8, 6), ("mlp", "embed"), ("tensor", None)),
        ((6, 8), ("embed", "mlp"), (None, "tensor")),
        ((6, 8), ("mlp", "embed"), (None, None)),  # 4 does not divide 6
        ((8, 8), ("mlp", "heads"), ("tensor", None)),  # once
        ((24,), (Axis("kv_heads", 2),), (None,)),  # heads stay whole
        ((24,), (Axis("heads", 8),), ("tensor",)),
        ((4, 8), ("batch", "vocab"), ("data", "tensor")),
        ((4, 8), None, (None, None)),
        ((0,), ("batch",), (None,)),
    ],
)
def test_what_divides_is_split(shape: Any, axes: Any, expected: Any) -> None:
    assert sharding_of(MESH, shape, axes) == expected


def test_plans_of_transformers() -> None:
    plan = TensorPlan({"layers.*.q": "colwise", "layers.*.o": "rowwise", "x": "gather"}, "config")
    assert plan.axes("model.layers.3.q.weight", 2, "linear") == ("tensor", None)
    assert plan.axes("layers.3.q.bias", 1, None) == ("tensor",)
    assert plan.axes("layers.3.o.weight", 2, "linear") == (None, "tensor")
    assert plan.axes("layers.3.o.weight", 2, "turned") == ("tensor", None)
    assert plan.axes("layers.3.o.bias", 1, None) == (None,)
    assert plan.axes("layers.3.norm.weight", 1, None) == (None,)
    with pytest.raises(ModelError, match="`gather`, which is not supported"):
        plan.axes("x.weight", 2, "linear")
    with pytest.raises(ModelError, match="must map modules to styles"):
        TensorPlan(["colwise"], "config")


def test_parts_of_a_file_are_read(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    save_file({"x": array, "s": np.array(3, np.float32)}, tmp_path / "a.safetensors")
    with SafetensorsFile.open(tmp_path / "a.safetensors") as file:
        index = (slice(1, 4), slice(None), slice(1, 2))
        np.testing.assert_array_equal(file.read_slice("x", index), array[index])
        assert file.read_slice("s", ()) == 3


def test_a_backend_without_a_mesh() -> None:
    with pytest.raises(UsageError, match="`ref` takes no mesh, got `tensor=2`"):
        gptrs.get_backend("ref", mesh="tensor=2")
