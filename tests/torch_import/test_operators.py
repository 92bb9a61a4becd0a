"""The samples that torch tests its operators with: right, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")
pytest.importorskip("expecttest", reason="torch's own samples need it")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from gptrs import get_backend  # noqa: E402
from gptrs_torch.decompositions import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402
from gptrs_torch.node import NotConvertedError  # noqa: E402

pytestmark = pytest.mark.long
SAMPLES = 4
LEAST = 0.93
"""The share of operators of which some sample passes; the rest is random, or of data's size."""
UNDEFINED = frozenset({"empty", "empty_strided", "empty_permuted", "new_empty", "empty_like"})
"""Their results are whatever was in memory."""
FEW = (
    "add",
    "div",
    "nn.functional.conv2d",
    "nn.functional.conv_transpose2d",
    "index_put",
    "gather",
)
FEW += ("nn.functional.avg_pool2d", "nn.functional.max_pool2d", "atan2", "scatter_reduce", "var")
FEW += ("nn.functional.scaled_dot_product_attention", "nn.functional.interpolate", "as_strided")


def core_operators() -> set[str]:
    """Return the names of core ATen, without overloads."""
    found: set[str] = set()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name, None) if full.startswith("aten::") else None
        op = getattr(packet, overload or "default", None)
        if op is not None and torch.Tag.core in op.tags:
            found.add(name)
    return found


@pytest.fixture(scope="module")
def infos() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if torch.float32 in info.supported_dtypes("cpu")]


def samples_of(info: Any) -> Iterator[tuple[Callable[..., list[Any]], list[Any]]]:
    """Yield functions of tensors alone, and the tensors."""
    found = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
    for sample in found[:: max(1, len(found) // SAMPLES)][:SAMPLES]:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(
            *tensors: Any, leaves: Any = leaves, spec: Any = spec, places: Any = places
        ) -> list[Any]:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            value, args, kwargs = pytree.tree_unflatten(given, spec)
            results = pytree.tree_leaves(info.op(value, *args, **kwargs))
            return [each for each in results if isinstance(each, torch.Tensor)]

        yield function, [leaves[place].detach().clone() for place in places]


def outcomes(info: Any, backend: Any) -> list[bool]:
    """Return for each sample whether it passes or is refused; AssertionError if it is wrong."""
    found: list[bool] = []
    for function, tensors in samples_of(info):
        try:
            expected = function(*[each.clone() for each in tensors])
            copies = [each.clone() for each in tensors]
            traced = make_fx(torch.func.functionalize(function), table(), "fake")(*copies)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
            continue  # torch itself does not trace it: its result depends on data
        if not any(node.op == "call_function" for node in traced.graph.nodes):
            continue
        try:
            made = GraphFunction(traced, backend)(*tensors)
        except NotConvertedError:
            found.append(False)
            continue
        for mine, theirs in zip(made, expected, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-3, atol=1e-4, equal_nan=True, check_stride=False
            )
        found.append(True)
    return found


@pytest.mark.parametrize("name", FEW)
def test_some_operators(infos: list[Any], name: str) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = [outcomes(info, get_backend("ref")) for info in infos if info.name == name]
    assert any(map(any, found)), name


@pytest.mark.slow
def test_core_operators_are_right_or_refused(infos: list[Any]) -> None:
    core, passed = core_operators(), {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for info in infos:
            name = info.aten_name or info.name
            if name in core - UNDEFINED and "backward" not in name:
                passed[info.formatted_name] = outcomes(info, get_backend("ref"))
    assert len(passed) > 125
    assert sum(map(any, passed.values())) > LEAST * len(passed)
