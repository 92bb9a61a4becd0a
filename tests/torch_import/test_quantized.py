"""What PT2E and torchao write: `quantized_decomposed`, products of bytes, floats of 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch.ao.quantization.fx import _decomposed  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import gptrs_torch  # noqa: E402

assert _decomposed  # it registers the operators

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # of torch itself
]
OPS: Any = torch.ops.quantized_decomposed
I8, U8 = torch.int8, torch.uint8


class Applies(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def floats(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 3


def codes(*shape: int) -> Any:
    return (floats(*shape) * 20).to(I8)


def is_exact(function: Callable[..., Any], *tensors: Any, path: Path) -> None:
    """Require that a file of the function gives the bits of torch."""
    torch.export.save(torch.export.export(Applies(function), tensors), path)
    found, wanted = gptrs_torch.load(path, "ref").module(*tensors), function(*tensors)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_scale_for_a_tensor(tmp_path: Path) -> None:
    def static(x: Any, y: Any, z: Any) -> Any:
        made = OPS.quantize_per_tensor(x, 0.0137, 3, -128, 127, I8)
        half = OPS.dequantize_per_tensor(y, 0.0137, 3, -128, 127, I8, out_dtype=torch.float16)
        low, high = torch.zeros((), dtype=torch.int64), torch.full((), 200)
        scale, zero = torch.full((1,), 0.02, dtype=torch.float64), torch.full((1,), 7)
        bounded = OPS.quantize_per_tensor.tensor2(z, scale, zero, low, high, U8)
        return made, half, bounded, OPS.dequantize_per_tensor(made, 0.0137, 3, -128, 127, I8)

    is_exact(static, floats(4, 9), codes(4, 9), floats(4, 9).bfloat16(), path=tmp_path / "m.pt2")


@pytest.mark.parametrize("symmetric", [True, False])
def test_scales_that_are_chosen_for_each_call(symmetric: bool, tmp_path: Path) -> None:
    def dynamic(x: Any) -> Any:
        choose = OPS.choose_qparams_symmetric if symmetric else OPS.choose_qparams
        scale, zero = choose.tensor(x, -128, 127, 1e-5, I8)
        made = OPS.quantize_per_tensor.tensor(x, scale, zero, -128, 127, I8)
        back = OPS.dequantize_per_tensor.tensor(made, scale, zero, -128, 127, I8)
        by_row = (OPS.choose_qparams_per_token(x, I8), (-128, 127, I8))
        if not symmetric:
            by_row = (OPS.choose_qparams_per_token_asymmetric(x, I8), (-128, 127, I8))
        rows = OPS.quantize_per_token(x, *by_row[0], *by_row[1])
        restored = OPS.dequantize_per_token(rows, *by_row[0], *by_row[1], torch.float32)
        return scale, zero, made, back, rows, restored

    is_exact(dynamic, floats(3, 4, 8), path=tmp_path / "m.pt2")


def test_scales_for_channels_and_groups(tmp_path: Path) -> None:
    def channels(x: Any, y: Any, scales: Any, points: Any) -> Any:
        options = (1, -128, 127, I8)
        groups = (scales.expand(6, 4), points.expand(6, 4), -8, 7, I8)
        return (
            OPS.quantize_per_channel(x, scales, points, *options),
            OPS.dequantize_per_channel(y, scales, None, *options),
            OPS.dequantize_per_channel(y, scales, points, *options, out_dtype=torch.bfloat16),
            OPS.fake_quant_per_channel(x, scales, points, 1, -128, 127),
            OPS.dequantize_per_channel_group(y.reshape(6, 16), *groups, 4, torch.float32),
        )

    scales, points = torch.tensor([0.03, 0.1, 0.25, 0.7]), torch.tensor([0, -3, 5, 9])
    is_exact(channels, floats(6, 4, 4), codes(6, 4, 4), scales, points, path=tmp_path / "m.pt2")


def test_products_of_bytes_and_floats_of_8_bits(tmp_path: Path) -> None:
    def narrow(x: Any, y: Any, z: Any) -> Any:
        small = [z.to(each) for each in (torch.float8_e4m3fn, torch.float8_e5m2)]
        return torch._int_mm(x, y), *(each.t().float() for each in small)

    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    given = (codes(33, 16), codes(16, 8), halves.reshape(256, 256))
    is_exact(narrow, *given, path=tmp_path / "m.pt2")


def test_weights_of_8_bits_are_read_from_a_file_and_returned(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = floats(4, 8).to(torch.float8_e4m3fn)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

        def forward(self, x: Any) -> Any:
            return x @ self.weight.to(x.dtype).t(), self.weight.t()

    model, path = Scaled(), tmp_path / "m.pt2"
    torch.export.save(torch.export.export(model, (floats(2, 8),)), path)
    product, weight = gptrs_torch.load(path, "ref").module(floats(2, 8))
    torch.testing.assert_close(product, model(floats(2, 8))[0])
    assert torch.equal(weight.view(U8), model.weight.t().view(U8))


def test_a_layer_with_a_weight_of_another_class_is_compiled_in_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatch = TwoTensor.__torch_dispatch__.__func__

    def of_aten_alone(kind: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        assert func.namespace == "aten", f"{func} is not known"  # as torchao's classes do
        return dispatch(kind, func, types, args, kwargs)

    monkeypatch.setattr(TwoTensor, "__torch_dispatch__", classmethod(of_aten_alone))
    layer = torch.nn.Linear(8, 4, bias=False)
    pair = TwoTensor(floats(4, 8), codes(4, 8).float())
    layer.weight = torch.nn.Parameter(pair, requires_grad=False)
    run = torch.compile(layer, backend="gptrs", fullgraph=True, options={"backend": "ref"})
    with torch.inference_mode():
        found, wanted = run(floats(2, 8)), layer(floats(2, 8))
    torch.testing.assert_close(found.a, wanted.a)
    torch.testing.assert_close(found.b, wanted.b)
