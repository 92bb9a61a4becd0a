"""The samples that torch tests its operators with: right, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")
pytest.importorskip("expecttest", reason="torch's own samples need it")
pytest.importorskip("onnx", reason="the tables of operators need it")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import import_tables  # noqa: E402
from gptrs import get_backend  # noqa: E402
from gptrs_torch.conversion import NotConvertedError  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402

pytestmark = pytest.mark.long
SAMPLES = 4
LEAST = 0.95
"""The share of operators of core ATen that pass, of those that torch has samples for."""
UNDEFINED = frozenset({"empty", "empty_strided", "empty_permuted", "new_empty", "empty_like"})
"""Their results are whatever was in memory: only shapes and types can be compared."""
PARTS = 16
REACHED = {
    "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "_adaptive_avg_pool3d": "nn.functional.adaptive_avg_pool3d",
    "_cdist_forward": "cdist",
    "_embedding_bag": "nn.functional.embedding_bag",
    "_fft_c2r": "fft.irfft",
    "_fft_r2c": "fft.rfft",
    "_local_scalar_dense": "item",
    "_log_softmax": "log_softmax",
    "_pdist_forward": "nn.functional.pdist",
    "_softmax": "softmax",
    "_to_copy": "to",
    "convolution": "nn.functional.conv2d",
    "elu": "nn.functional.elu",
    "embedding": "nn.functional.embedding",
    "index": "__getitem__",
    "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "max_pool3d_with_indices": "nn.functional.max_pool3d",
    "reflection_pad2d": "nn.functional.pad",
    "upsample_bilinear2d": "nn.functional.upsample_bilinear",
    "upsample_nearest2d": "nn.functional.upsample_nearest",
}
"""Operators of core ATen without samples of their own, and whose samples reach them."""
FEW = (
    *("add", "div", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "index_put"),
    *("gather", "nn.functional.avg_pool2d", "atan2", "var", "as_strided"),
    *("unfold", "bucketize", "searchsorted", "bitwise_left_shift", "bitwise_right_shift"),
    *("scatter_reduce", "nn.functional.scaled_dot_product_attention"),
    *(
        "nn.functional.interpolate",
        "nn.functional.embedding_bag",
        "nn.functional.batch_norm",
        "linalg.vector_norm",
    ),
)


@pytest.fixture(scope="module")
def infos() -> list[Any]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        # It imports setuptools, which refuses to replace a distutils that is imported already.
        patch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
        from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


@pytest.fixture(scope="module")
def core(infos: list[Any]) -> dict[str, list[Any]]:
    """The samples for each operator of core ATen that there are any for."""
    found: dict[str, list[Any]] = {}
    for name in import_tables.core_operators():
        source = REACHED.get(name)
        found[name] = [i for i in infos if i.name == source or (i.aten_name or i.name) == name]
    return {name: held for name, held in found.items() if held}


def samples_of(info: Any) -> Iterator[tuple[Callable[..., list[Any]], list[Any]]]:
    """Yield functions of tensors alone, and the tensors."""
    dtypes = info.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else torch.int64
    found = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in found[:: max(1, len(found) // SAMPLES)][:SAMPLES]:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(
            *tensors: Any, leaves: Any = leaves, spec: Any = spec, places: Any = places
        ) -> list[Any]:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor.clone()
            value, args, kwargs = pytree.tree_unflatten(given, spec)
            results = pytree.tree_leaves(info.op(value, *args, **kwargs))
            return [each for each in results if isinstance(each, torch.Tensor)]

        yield function, [leaves[place].detach().clone() for place in places]


def outcomes(info: Any, backend: Any) -> list[bool]:
    """Return for each sample whether it passes or is refused; AssertionError if it is wrong."""
    found: list[bool] = []
    for function, tensors in samples_of(info):
        try:
            expected = function(*tensors)
            traced = make_fx(torch.func.functionalize(function), table(), "fake")(*tensors)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
            found.append(False)  # torch itself does not trace it: its result depends on data
            continue
        if not any(node.op == "call_function" for node in traced.graph.nodes):
            continue
        if not expected:
            found.append(False)  # of a number, which no program gives
            continue
        try:
            made = GraphFunction(traced, backend)(*tensors)
        except NotConvertedError:
            found.append(False)
            continue
        compare(made, expected, exact=info.name not in UNDEFINED)
        found.append(True)
    return found


def compare(made: list[Any], expected: list[Any], *, exact: bool) -> None:
    for mine, theirs in zip(made, expected, strict=True):
        if not exact:
            mine, theirs = torch.zeros_like(mine), torch.zeros_like(theirs)
        torch.testing.assert_close(
            mine, theirs, rtol=1e-3, atol=1e-4, equal_nan=True, check_stride=False
        )


def passing(core: dict[str, list[Any]], names: list[str]) -> dict[str, bool]:
    """Return whether any sample of each operator passes; AssertionError if one is wrong."""
    backend = get_backend("ref")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return {name: any(any(outcomes(info, backend)) for info in core[name]) for name in names}


@pytest.mark.parametrize("name", FEW)
def test_some_operators(infos: list[Any], name: str) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = [outcomes(info, get_backend("ref")) for info in infos if info.name == name]
    assert any(map(any, found)), name


@pytest.mark.whole
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))]
)
def test_core_operators_are_right_or_on_the_list(core: dict[str, list[Any]], part: int) -> None:
    found = passing(core, sorted(core)[part::PARTS])
    failing = {name for name, passes in found.items() if not passes}
    assert failing == import_tables.TORCH_REFUSED.keys() & found.keys()


def test_most_operators_with_samples_are_converted(core: dict[str, list[Any]]) -> None:
    assert len(core) >= 140
    assert len(core.keys() - import_tables.TORCH_REFUSED.keys()) >= LEAST * len(core)


@pytest.mark.exhaustive
def test_samples_reach_the_operators_that_they_stand_for(infos: list[Any]) -> None:
    for name, source in REACHED.items():
        names = {name, f"{name}_forward_only"}
        of_source = [info for info in infos if info.name == source]
        assert any(names & found for info in of_source for found in reached(info)), (name, source)


def reached(info: Any) -> Iterator[set[str]]:
    """Yield the operators of the graph that torch makes of each sample."""
    for function, tensors in samples_of(info):
        traced = torch.func.functionalize(function)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                graph = make_fx(traced, None, "fake")(*tensors).graph
            except RuntimeError:
                continue
        yield {str(getattr(node.target, "overloadpacket", ""))[5:] for node in graph.nodes}
