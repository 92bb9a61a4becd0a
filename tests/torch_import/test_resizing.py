"""Images are resized as torch does it: axes that stay, bytes in whole numbers, antialiasing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

import gptrs_torch  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402

pytestmark = pytest.mark.long
CASES = [
    ("linear", (1, 2, 5), 1.1),
    ("bilinear", (1, 2, 3, 4), (1.3, 1.5)),
    ("trilinear", (1, 1, 2, 3, 2), 1.3),
    ("nearest", (1, 1, 3, 4), (1.3, 1.5)),
    ("nearest", (1, 2, 2, 2), (1.3, 2.2)),
    ("nearest", (1, 2, 5), 1.1),  # only kernels of planes keep them
    ("nearest-exact", (1, 1, 3, 4), (1.3, 1.5)),
]


def resized(x: Any, mode: str, factor: Any) -> Any:
    return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode)


@pytest.mark.parametrize(("mode", "shape", "factor"), CASES)
def test_an_axis_that_a_factor_does_not_change_is_kept(
    mode: str, shape: tuple[int, ...], factor: Any
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = resized(x, mode, factor)
    run = torch.compile(resized, backend="gptrs", dynamic=False, options={"backend": "ref"})
    with torch.no_grad():
        torch.testing.assert_close(run(x, mode, factor), expected)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch itself
@pytest.mark.parametrize(("mode", "shape", "factor"), CASES)
def test_decompositions_of_exported_programs_keep_it_too(
    mode: str, shape: tuple[int, ...], factor: Any
) -> None:
    class Resize(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return resized(x, mode, factor)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(Resize(), (x,)).run_decompositions(table())
    torch.testing.assert_close(program.module()(x), resized(x, mode, factor))


class Resize(torch.nn.Module):
    def __init__(self, mode: str, antialias: bool, **options: Any) -> None:
        super().__init__()
        self.options = {"mode": mode, "antialias": antialias, **options}

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.interpolate(x, **self.options)


def image(kind: str, *shape: int) -> Any:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return (values * 255.9).to(getattr(torch, kind))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch itself
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (Resize("bilinear", False, size=(5, 15)), "uint8"),
        (Resize("bilinear", True, scale_factor=(1.3, 0.6)), "uint8"),
        (Resize("bicubic", False, scale_factor=1.3), "uint8"),
        (Resize("bicubic", True, size=(12, 3), align_corners=True), "float64"),
        (Resize("lanczos", True, size=(4, 14)), "float32"),
    ],
)
def test_bytes_and_antialiased_images_are_those_of_torch(model: Any, kind: str) -> None:
    x = image(kind, 1, 3, 9, 12)
    exported = gptrs_torch.load(torch.export.export(model, (x,)), "ref")
    torch.testing.assert_close(exported.module(x), model(x))


def test_bytes_of_any_size_are_resized_in_whole_numbers_under_torch_compile() -> None:
    model = Resize("bilinear", False, scale_factor=0.6, recompute_scale_factor=True)
    run = torch.compile(model, backend="gptrs", options={"backend": "ref"})
    with torch.inference_mode():
        for x in (image("uint8", 1, 3, 9, 12), image("uint8", 2, 1, 11, 7)):
            torch.testing.assert_close(run(x), model(x), rtol=0, atol=0)
