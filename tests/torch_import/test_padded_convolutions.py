"""Zeros put around images become the padding of the convolution that reads them, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as nnf  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.api.backends import Backend  # noqa: E402
from gptrs.api.programs import Program  # noqa: E402
from gptrs.optimizer import optimize  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402

pytestmark = pytest.mark.long

FOLDED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "of one axis": ((2, 3, 9), (4, 3, 3), {"pad": (2, 0)}),
    "of images": ((1, 3, 9, 8), (4, 3, 3, 3), {"pad": (1, 1, 1, 1)}),
    "at one end, with strides": ((2, 3, 16, 16), (8, 3, 3, 3), {"pad": (0, 1, 0, 1), "stride": 2}),
    "beside padding": ((1, 3, 9, 8), (4, 3, 2, 3), {"pad": (1, 0, 0, 2), "padding": (1, 2)}),
    "with dilation": ((1, 3, 9, 8), (4, 3, 3, 2), {"pad": (3, 2, 1, 0), "dilation": (2, 3)}),
    "by groups": ((2, 8, 9, 8), (16, 4, 3, 3), {"pad": (0, 1, 2, 1), "groups": 2}),
    "by channels": ((1, 8, 16, 16), (8, 1, 3, 3), {"pad": (0, 1, 0, 1), "groups": 8, "stride": 2}),
    "several of a channel": ((1, 4, 9, 8), (8, 1, 3, 3), {"pad": (1, 2, 1, 0), "groups": 4}),
    "of volumes": ((1, 2, 5, 6, 4), (3, 2, 3, 2, 2), {"pad": (1, 0, 0, 1, 2, 1), "padding": 1}),
    "of volumes by groups": ((1, 4, 5, 6, 4), (6, 2, 3, 2, 2), {"pad": (1, 0) * 3, "groups": 2}),
    "of 1 and strides": ((1, 3, 9, 8), (4, 3, 1, 1), {"pad": (1, 0, 2, 0), "padding": 1}),
    "by nothing": ((1, 3, 9, 8), (4, 3, 1, 1), {"pad": (0, 0, 0, 0)}),
    "wider than the image": ((1, 3, 1, 1), (4, 3, 3, 3), {"pad": (4, 0, 1, 3)}),
}


def convolved(x: Any, weight: Any, pad: tuple[int, ...], **settings: Any) -> Any:
    function = {3: nnf.conv1d, 4: nnf.conv2d, 5: nnf.conv3d}[x.ndim]
    return function(nnf.pad(x, pad), weight, **settings)


def pads_left(program: Program) -> int:
    return sum(step.op.name == "pad" for step in optimize(program).main.body.instructions)


def checked(function: Callable[..., Any], backend: Backend, *tensors: Any, atol: float) -> int:
    """Hold a function to torch, and return how many pads it still has on the backend."""
    traced = make_fx(function, table(), "fake")(*tensors)
    graph = GraphFunction(traced, backend)
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found: list[Any] = graph(*tensors)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        rtol = 1e-2 if atol > 1e-3 else 1e-5
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
    return pads_left(graph.program(*tensors))


def sample(*shapes: tuple[int, ...], dtype: Any = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("case", FOLDED)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_zeros_around_a_convolution_are_its_padding(
    case: str, dtype: str, backend: Backend
) -> None:
    shape, kernel, settings = FOLDED[case]
    tensors = sample(shape, kernel, dtype=getattr(torch, dtype))
    run = lambda x, weight: convolved(x, weight, **settings)  # noqa: E731
    assert not checked(run, backend, *tensors, atol=5e-2 if dtype == "bfloat16" else 1e-4)


def test_each_convolution_of_a_padded_image_takes_the_zeros(backend: Backend) -> None:
    def run(x: Any, weight: Any) -> Any:
        padded = nnf.pad(x, (0, 1, 0, 1))
        return nnf.conv2d(padded, weight, stride=2), nnf.conv2d(padded, weight[:2], padding=1)

    assert not checked(run, backend, *sample((1, 3, 9, 8), (4, 3, 3, 3)), atol=1e-4)


def test_who_else_reads_the_padded_image_gets_it(backend: Backend) -> None:
    def run(x: Any, weight: Any) -> Any:
        padded = nnf.pad(x, (0, 1, 0, 1))
        return nnf.conv2d(padded, weight), padded, nnf.max_pool2d(padded, 2)

    assert checked(run, backend, *sample((1, 3, 9, 8), (4, 3, 3, 3)), atol=1e-4) == 1


def test_a_chain_of_pads_is_one_padding(backend: Backend) -> None:
    def run(x: Any, weight: Any) -> Any:
        return nnf.conv2d(nnf.pad(nnf.pad(x, (1, 0)), (0, 0, 2, 1)), weight)

    assert not checked(run, backend, *sample((1, 3, 9, 8), (4, 3, 3, 3)), atol=1e-4)


APART: dict[str, Callable[[Any, Any], Any]] = {
    "ones": lambda x, w: nnf.conv2d(nnf.pad(x, (1, 1, 1, 1), value=1.0), w),
    "no number": lambda x, w: nnf.conv2d(nnf.pad(x, (1, 0), value=float("nan")), w, padding=1),
    "ones beside padding": lambda x, w: nnf.conv2d(nnf.pad(x, (1, 1), value=1.0), w, padding=1),
    "channels": lambda x, w: nnf.conv2d(nnf.pad(x[:, :2], (1, 1, 0, 0, 0, 1)), w),
    "images": lambda x, w: nnf.conv2d(nnf.pad(x, (0, 0, 0, 0, 0, 0, 1, 0)), w),
    "both ways": lambda x, w: nnf.conv2d(nnf.pad(x, (2, -1, -1, 0)), w),
    "average pool": lambda x, w: nnf.conv2d(nnf.avg_pool2d(nnf.pad(x, (1, 1, 1, 1)), 3, 2), w),
    "counted pool": lambda x, w: nnf.avg_pool2d(
        nnf.pad(x, (1, 1)), 3, 1, padding=1, count_include_pad=False
    ),
    "max pool": lambda x, w: nnf.max_pool2d(nnf.pad(x - 9, (1, 1, 1, 1)), 3, 2),
}


@pytest.mark.parametrize("case", APART)
def test_other_pads_stay(case: str, backend: Backend) -> None:
    assert checked(APART[case], backend, *sample((2, 3, 9, 8), (4, 3, 3, 3)), atol=1e-4) == 1


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_turned_round_sees_the_padded_image(stride: int, backend: Backend) -> None:
    def run(x: Any, weight: Any) -> Any:
        return nnf.conv_transpose2d(nnf.pad(x, (1, 0, 0, 2)), weight, stride=stride, padding=1)

    left = checked(run, backend, *sample((1, 3, 5, 6), (3, 4, 3, 3)), atol=1e-4)
    assert left == (0 if stride == 1 else 2), "one puts zeros between the elements"


class Padded(torch.nn.Module):
    """A convolution by channels of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Any) -> Any:
        return self.layer(nnf.pad(x, (0, 1, 2, 0)))


def test_images_of_any_size_are_padded_by_the_convolution(backend: Backend) -> None:
    torch.manual_seed(0)
    layer = Padded().eval()
    free = {0: torch.export.Dim("n", max=9), 2: torch.export.Dim("h", min=4, max=64)}
    exported = torch.export.export(layer, (torch.randn(2, 8, 8, 9),), dynamic_shapes={"x": free})
    model = gptrs_torch.load(exported, backend)
    for shape in ((1, 8, 4, 9), (3, 8, 13, 9)):
        x = torch.randn(shape)
        with torch.inference_mode():
            torch.testing.assert_close(model.module(x), layer(x), rtol=1e-5, atol=1e-5)
    program = model.program(x)
    assert "?0" in str(program)
    assert not pads_left(program)
