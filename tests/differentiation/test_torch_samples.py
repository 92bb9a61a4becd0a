"""Gradients of the samples that torch tests its operators with, against autograd."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import UsageError

torch = pytest.importorskip("torch", reason="the oracle")
pytest.importorskip("expecttest", reason="torch's own samples need it")
pytest.importorskip("gptrs_torch", reason="it converts the functions of torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from gptrs_torch.conversion import Conversion, NotConvertedError, constants_of  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402

pytestmark = [pytest.mark.usefixtures("on_reference"), pytest.mark.long]
SAMPLES = 4
PARTS = 32
LARGEST = 20_000
DIFFERENT = {
    **dict.fromkeys(
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        "an update that a later one overwrites has no influence; torch gives it a cotangent",
    ),
    "as_strided_scatter": "torch gives elements that are kept no cotangent, and others one",
    **dict.fromkeys(
        ("linalg.cholesky_ex", "cholesky_solve"),
        "one triangle is read, and has the cotangent; torch gives the other a share",
    ),
    "linalg.norm": "the square root at 0; torch chooses 0",
    "bfloat16": "NumPy has no bf16 that torch gives",
}
"""Operators whose samples differ from torch, and why."""
REFUSED = {"scatter_reduce", "matrix_exp"}
"""Operators with a sample that has no derivative here: products, and loops that data end."""


class Sample(NamedTuple):
    """A traced function, its inputs, and the gradient of a weighted sum of its results."""

    traced: Any
    inputs: list[Any]
    results: list[int]
    weights: list[Any]
    wanted: list[np.ndarray]


@pytest.fixture(scope="module")
def infos() -> list[Any]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        # It imports setuptools, which refuses to replace a distutils that is imported already.
        patch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
        from torch.testing._internal.common_methods_invocations import op_db

    return [
        info
        for info in op_db
        if info.supports_autograd and torch.float64 in info.supported_dtypes("cpu")
    ]


def samples_of(info: Any) -> Iterator[Sample]:
    """Yield the samples of f64 that torch itself traces and differentiates."""
    found = list(info.sample_inputs("cpu", torch.float64, requires_grad=True))
    for sample in found[:: max(1, len(found) // SAMPLES)][:SAMPLES]:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        inputs = [leaves[at].detach().requires_grad_(leaves[at].requires_grad) for at in places]
        if any(x.layout is not torch.strided or x.numel() > LARGEST for x in inputs):
            continue

        def function(
            *tensors: Any, sample: Any = sample, held: Any = (leaves, spec, places)
        ) -> Any:
            given, spec, places = list(held[0]), held[1], held[2]
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor.clone()
            value, args, kwargs = pytree.tree_unflatten(given, spec)
            returned = sample.output_process_fn_grad(info.op(value, *args, **kwargs))
            results = pytree.tree_leaves(returned)
            return [each for each in results if isinstance(each, torch.Tensor)]

        try:
            made = _differentiated(function, inputs)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
            continue  # torch itself does not trace it
        if made is not None:
            yield made


def _differentiated(function: Any, inputs: list[Any]) -> Sample | None:
    results = function(*inputs)
    asked = [
        at for at, each in enumerate(results) if each.requires_grad and not each.dtype.is_complex
    ]
    if not asked or any(x.dtype.is_complex for x in inputs):
        return None
    chosen = [results[at] for at in asked]
    weights = [
        torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).reshape(each.shape)
        for each in chosen
    ]
    needed = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(chosen, needed, weights, allow_unused=True)
    wanted = [
        np.zeros(x.shape) if each is None else each.numpy(force=True)
        for x, each in zip(needed, found, strict=True)
    ]
    plain = [x.detach() for x in inputs]
    with torch.no_grad():
        traced = make_fx(torch.func.functionalize(function), table(), "fake")(*plain)
    return Sample(traced, inputs, asked, weights, wanted)


def gradient_of(sample: Sample) -> list[np.ndarray]:
    """Return our gradient of the same sum."""
    constants = constants_of(sample.traced)
    arrays = [x.numpy(force=True) for x in sample.inputs]
    wanted = [at for at, x in enumerate(sample.inputs) if x.requires_grad]

    def loss(*moving: gptrs.Tensor) -> gptrs.Tensor:
        given = dict(zip(wanted, moving, strict=True))
        conversion = Conversion(
            sample.traced, lambda name: gptrs.tensor(constants[name].numpy(force=True))
        )
        nodes = [node for node in sample.traced.graph.nodes if node.op == "placeholder"]
        for at, (node, array) in enumerate(zip(nodes, arrays, strict=True)):
            conversion.bind(node, given[at] if at in given else gptrs.tensor(array))
        results: Sequence[Any] = conversion.run()
        total = gptrs.tensor(np.float64(0))
        for at, weight in zip(sample.results, sample.weights, strict=True):
            total = total + F.sum((results[at] * gptrs.tensor(weight.numpy())).astype("f64"))
        return total

    numbers = range(len(wanted))
    return [each.numpy() for each in gptrs.grad(loss, numbers)(*(arrays[at] for at in wanted))]


@pytest.mark.whole
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))]
)
def test_gradients_are_those_of_autograd(infos: list[Any], part: int) -> None:
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in infos[part::PARTS]:
            if info.name in DIFFERENT:
                continue
            for sample in samples_of(info):
                try:
                    found = gradient_of(sample)
                except NotConvertedError:
                    continue
                except UsageError as error:
                    if info.name in REFUSED and "derivative" in error.message:
                        continue
                    raise
                for own, want in zip(found, sample.wanted, strict=True):
                    np.testing.assert_allclose(
                        own, want, rtol=1e-5, atol=1e-7, err_msg=f"{info.name}"
                    )
                compared += 1
    assert compared > 20
