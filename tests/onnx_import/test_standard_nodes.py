"""The node tests of the ONNX standard: what is converted is right, the rest is refused by name."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

import gptrs_onnx  # noqa: E402
from gptrs.errors import UnsupportedError  # noqa: E402

PARTS = 16
LEAST = 0.98
"""The share that passes; the others are images, random numbers and old operator sets."""
BUILT_IN = {"bfloat16": 1.6e-2, "float16": 2e-3}
"""Units in the last place of narrow floats: sums are in another order than the standard's."""


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return load_model_tests(kind="node")


def part_of(cases: Sequence[Any], number: int) -> Iterator[Any]:
    """Yield the cases of one of PARTS parts, the same in every process."""
    return (case for case in cases if zlib.crc32(case.name.encode()) % PARTS == number)


def is_right(case: Any, backend: Any) -> bool:
    """Return whether a case passes, False if it is refused; AssertionError for another result."""
    try:
        model = gptrs_onnx.from_proto(case.model, backend)
        for inputs, outputs in case.data_sets:
            given = zip(case.model.graph.input, map(array_of, inputs), strict=True)
            found = model(**{slot.name: array for slot, array in given})
            for slot, wanted in zip(case.model.graph.output, map(array_of, outputs), strict=True):
                several = isinstance(wanted, list)
                assert isinstance(found[slot.name], list) == several, case.name
                pairs = zip(
                    *((found[slot.name], wanted) if several else ([found[slot.name]], [wanted])),
                    strict=True,
                )
                for have, want in pairs:
                    compare(case, slot.name, have, np.asarray(want))
    except UnsupportedError:
        return False
    return True


def array_of(value: Any) -> Any:
    if isinstance(value, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return onnx.numpy_helper.to_optional(value)
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def compare(case: Any, name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), (case.name, name)
    loose = BUILT_IN.get(str(found.dtype), 1e-3)
    if found.dtype == object:
        np.testing.assert_array_equal(found, wanted)
        return
    if found.dtype.kind not in "biufc":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    tolerance = max(case.atol or 0, 1e-6, loose / 4 if loose > 1e-3 else 0)
    message = f"{case.name}, {name}"
    np.testing.assert_allclose(
        found, wanted, max(case.rtol, loose), tolerance, equal_nan=True, err_msg=message
    )


@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.sample(0)
def test_deformable_convolutions_are_right(cases: list[Any], backend: Any) -> None:
    bent = [case for case in cases if "deform_conv" in case.name]
    assert len(bent) >= 4
    assert all(is_right(case, backend) for case in bent)


@pytest.mark.exhaustive
def test_a_part_passes_or_is_refused_on_numba(cases: list[Any]) -> None:
    results = [is_right(case, "numba") for case in part_of(cases, 3)]
    assert sum(results) > LEAST / 1.1 * len(results)


@pytest.mark.exhaustive
def test_all_pass_or_are_refused_on_ref(cases: list[Any]) -> None:
    results = [is_right(case, "ref") for case in cases]
    assert len(results) > 1800
    assert sum(results) >= LEAST * len(results)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def counts(below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(below).integers(0, below, shape)


HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
DEFINED: dict[str, tuple[list[np.ndarray | None], dict[str, int]]] = {
    "AffineGrid": ([floats(2, 2, 3), np.array([2, 3, 4, 5])], {}),
    "Attention": ([floats(2, 2, 3, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 4)], {}),
    "CausalConvWithState": ([floats(2, 3, 6), floats(3, 1, 2)], {}),
    "LinearAttention": (
        [*[floats(2, 4, 8)] * 3, None, -abs(floats(2, 4, 8)), abs(floats(2, 4, 2))], HEADS,
    ),
    "NegativeLogLikelihoodLoss": ([floats(3, 5), counts(5, 3)], {}),
    "RotaryEmbedding": ([floats(2, 3, 4, 8), floats(10, 4), floats(10, 4), counts(10, 2, 4)], {}),
    "SoftmaxCrossEntropyLoss": ([floats(3, 5), counts(5, 3)], {}),
    "SwiGLU": ([floats(2, 3, 4), floats(2, 3, 4)], {}),
}  # fmt: skip
"""Operators that the standard defines by others: inputs, and the attributes that they must have."""


def test_operators_that_others_define_have_the_defaults_of_their_attributes() -> None:
    from onnx.reference import ReferenceEvaluator

    converted, seen = gptrs_onnx.supported_operators()["ai.onnx"], set[str]()
    for schema in onnx.defs.get_all_schemas_with_history():
        defined = schema.has_function or schema.has_context_dependent_function
        if schema.domain or not defined or schema.name in {*converted, "SequenceMap"}:
            continue
        seen.add(schema.name)
        inputs, needed = DEFINED[schema.name]
        named = {f"x{i}": each for i, each in enumerate(inputs) if each is not None}
        names = [f"x{i}" if f"x{i}" in named else "" for i in range(len(inputs))]
        node = onnx.helper.make_node(schema.name, names, ["y"], **needed)
        takes = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape
            )
            for name, each in named.items()
        ]
        gives = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        graph = onnx.helper.make_graph([node], "g", takes, [gives])
        opset = onnx.helper.make_opsetid("", schema.since_version)
        proto = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
        reference: Any = ReferenceEvaluator(proto)
        wanted = reference.run(None, named)[0]
        found = gptrs_onnx.from_proto(proto, "ref")(**named)["y"]
        message = f"{schema.name} {schema.since_version}"
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5, err_msg=message)
    assert seen >= DEFINED.keys() - {"SwiGLU", "LinearAttention", "CausalConvWithState"}
