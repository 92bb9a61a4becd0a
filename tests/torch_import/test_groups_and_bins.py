"""Bins, groups, order statistics, signs and rarer operators are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run operators of torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402

from gptrs import get_backend  # noqa: E402
from gptrs_torch.conversion import NotConvertedError  # noqa: E402
from gptrs_torch.dynamo import table  # noqa: E402
from gptrs_torch.graph import GraphFunction  # noqa: E402

pytestmark = pytest.mark.long


def converted(function: Callable[..., Any], *tensors: Any) -> Any:
    traced = make_fx(function, table(), "fake")(*tensors)
    (result,) = GraphFunction(traced, get_backend("ref"))(*tensors)
    return result


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("bins", "low", "high"), [(10, 0, 0), (7, -1, 1), (1, -2, 2), (13, 0.1, 0.7), (100, -1, 3)]
)
def test_elements_are_counted_in_the_bins_of_torch(
    bins: int, low: float, high: float, dtype: str
) -> None:
    type_ = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 500, generator=generator, dtype=type_) * 3 - 1
    # Elements at the edges themselves, and next to them.
    edges = torch.linspace(low or -1, high or 2, bins + 1, dtype=type_)
    aside = [torch.nextafter(edges, torch.full_like(edges, to)) for to in (-9, 9)]
    x = torch.cat([x.flatten(), edges, *aside])
    count = lambda each: torch.histc(each, bins, low, high)  # noqa: E731
    expected = count(x)
    assert 0 < expected.sum() <= x.numel()
    torch.testing.assert_close(converted(count, x), expected, rtol=0, atol=0)


def test_equal_elements_and_none_are_counted() -> None:
    for x in (torch.full((5,), 3.0), torch.zeros(0)):
        expected = torch.histc(x, 4)
        found = converted(lambda each: torch.histc(each, 4), x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("right", [False, True])
def test_buckets_are_those_of_torch_with_what_is_no_number_after_all(right: bool) -> None:
    bounds = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    x = torch.tensor([[-2.0, -1.0, -0.0], [1.0, 2.0, float("nan")]])
    find = lambda a, b: torch.bucketize(a, b, right=right, out_int32=right)  # noqa: E731
    torch.testing.assert_close(converted(find, x, bounds), find(x, bounds), rtol=0, atol=0)


def test_what_is_no_number_is_in_no_bin() -> None:
    x = torch.tensor([0.5, float("nan"), float("inf"), -float("inf"), 0.9])
    expected = torch.histc(x, 4, 0, 1)
    found = converted(lambda each: torch.histc(each, 4, 0, 1), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


SHAPES = {
    "rows": ((12, 16), (3, 16, 8), 12),
    "columns": ((3, 16, 8), (8, 24), 24),
    "terms": ((16, 24), (24, 8), 24),
}


@pytest.mark.parametrize("divided", SHAPES)
def test_each_group_has_a_matrix_of_its_own(divided: str) -> None:
    left, right, size = SHAPES[divided]
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(shape, generator=generator).bfloat16() for shape in (left, right))
    for ends in ([size // 4, size // 4, size], [size // 2, 3 * size // 4, size]):
        offs = torch.tensor(ends, dtype=torch.int32)
        expected = by_groups(x.double(), y.double(), ends, divided)
        found = converted(grouped, x, y, offs)
        assert found.dtype == x.dtype
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=5e-2)


def test_experts_of_transformers_are_converted_and_rows_beyond_the_last_one_are_0() -> None:
    experts = pytest.importorskip("transformers.integrations.moe", reason="the operator's library")
    assert experts
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(shape, generator=generator) for shape in ((6, 4), (3, 4, 5)))
    product = torch.ops.transformers.grouped_mm_fallback
    for ends in ([2, 2, 6], [1, 3, 4]):
        offs = torch.tensor(ends, dtype=torch.int32)
        torch.testing.assert_close(converted(product, x, y, offs), product(x, y, offs))


def grouped(x: Any, y: Any, offs: Any) -> Any:
    return torch._grouped_mm(x, y, offs=offs)


def by_groups(x: Any, y: Any, ends: list[int], divided: str) -> Any:
    parts = [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    if divided == "rows":
        return torch.cat([x[part] @ y[g] for g, part in enumerate(parts)])
    if divided == "columns":
        return torch.cat([x[g] @ y[:, part] for g, part in enumerate(parts)], 1)
    return torch.stack([x[:, part] @ y[part] for part in parts])


def test_as_many_matrices_on_both_sides() -> None:
    x, y = torch.randn(3, 4, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    found = converted(torch._grouped_mm, x, y)
    torch.testing.assert_close(found, x @ y, rtol=1e-2, atol=5e-2)


def test_a_free_count_of_elements_becomes_that_of_each_call() -> None:
    x = torch.randn(6)
    exported = torch.export.export(
        Counting(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=99)}}
    )
    function = GraphFunction(exported.graph_module, get_backend("ref"))
    for count in (6, 11):
        given = torch.randn(count)
        torch.testing.assert_close(function(given)[0], torch.histc(given, 10, -1, 1))


class Counting(torch.nn.Module):
    """Counts elements."""

    def forward(self, x: Any) -> Any:
        """Return ten counts."""
        return torch.histc(x, 10, -1, 1)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cummax(x, 1),
        lambda x: torch.cummin(x, 1),
        lambda x: torch.cummax(x > 2, 0),
        lambda x: torch.kthvalue(x[:, 2:4], 2),  # without ties, whose indices torch does not define
    ],
)
def test_running_extremes_and_kth_values_have_indices(function: Any, part: int) -> None:
    nan = float("nan")
    x = torch.tensor([[1, 1, nan, 2, nan], [3, 3, 2, 3, 4]])
    found = converted(lambda each: function(each)[part], x)
    torch.testing.assert_close(found, function(x)[part], rtol=0, atol=0, equal_nan=True)


def test_zeros_and_what_is_no_number_have_the_signs_of_torch() -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), -3.0, float("inf")])
    for function in (torch.sign, lambda each: torch.floor_divide(each, 2.0)):
        found, expected = converted(function, x), function(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(found[:2]), torch.signbit(expected[:2]))


_ROWS = torch.tensor([[1, 1, float("nan"), 2, -0.0, 4], [3, 3, 2, 3, 4, -5]])
_IMAGES = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
_BOXES = _IMAGES.reshape(2, 3, 4, 4, 3)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: tuple(torch.median(x, 1)), _ROWS[:, 1:5]),  # without ties among the middle
        (lambda x: (torch.median(x, 0).values, torch.median(x[1])), _ROWS),
        (lambda x: tuple(torch.median(x, -1, keepdim=True)), _IMAGES),
        (lambda x: (torch.nanmedian(x, 1).values, torch.nanmedian(x)), _ROWS),
        (lambda x: (torch.median(x.long(), -1).values, torch.median(x.long())), _IMAGES * 9),
        (lambda x: (torch.fmax(x[0], x[1]), torch.fmin(x[0], x[1])), _ROWS),
        (lambda x: (torch.copysign(x, x.flip(1)), torch.copysign(x, -2)), _ROWS),
        (lambda x: (torch.signbit(x), torch.signbit(x.nan_to_num().long())), _ROWS),
        (lambda x: (torch.hypot(x, x.flip(1)), torch.hypot(x * 1e30, x)), _ROWS),
        (lambda x: (torch.special.erfc(x), torch.dist(x, x[:1], 3)), _IMAGES),
        (lambda x: (torch.addbmm(x[0, 0, :, :6], x[0], x[1].mT, beta=0.5),), _IMAGES),
        (lambda x: (torch.diagonal_scatter(x, -torch.diagonal(x, -2, 3, 0), -2, 3, 0),), _IMAGES),
        (lambda x: (torch.diagonal_scatter(x, -torch.diagonal(x, 1, 2, 3), 1, 2, 3),), _IMAGES),
        (lambda x: (x[tuple(torch.triu_indices(2, 6, 1))], torch.tril_indices(5, 3, -1)), _ROWS),
        (lambda x: (functional.adaptive_max_pool2d(x, (4, 3)),), _IMAGES),
        (lambda x: functional.adaptive_max_pool2d(x, (3, 4), return_indices=True), _IMAGES),
        (lambda x: (functional.adaptive_max_pool1d(x[0], 1),), _IMAGES),
        (lambda x: (functional.adaptive_max_pool3d(x, (1, 3, 2)),), _BOXES),
        (lambda x: (functional.adaptive_avg_pool2d(x, (4, None)),), _IMAGES),
        (lambda x: (functional.rrelu(x), torch.narrow_copy(x, 3, -5, 2)), _IMAGES),
        (lambda x: (functional.bilinear(x[0, 0], x[1, 0], x[1].mT @ x[0]),), _IMAGES),
    ],
)
def test_rarer_operators_give_what_torch_gives(function: Any, x: Any) -> None:
    traced = make_fx(torch.func.functionalize(function), table(), "fake")(x)
    found = GraphFunction(traced, get_backend("ref"))(x)
    for each, wanted in zip(found, function(x), strict=True):
        torch.testing.assert_close(each, wanted, equal_nan=True)


def test_indices_of_unequal_bins_are_refused() -> None:
    def pooled(x: Any) -> Any:
        return functional.adaptive_max_pool2d(x, (4, 3), return_indices=True)[1]

    with pytest.raises(NotConvertedError, match=r"indices of bins of unequal sizes, \[6, 8\]"):
        converted(pooled, _IMAGES)


@pytest.mark.parametrize(
    ("dtype", "end", "close"), [(torch.float32, 9, 1e-6), (torch.float64, 20, 1e-13)]
)
def test_the_tail_of_erfc_keeps_its_digits(dtype: Any, end: int, close: float) -> None:
    ends = torch.tensor([1.0, float("inf"), -float("inf"), float("nan")])
    x = torch.cat([torch.linspace(-6, end, 301), ends]).to(dtype)
    found = converted(torch.special.erfc, x)
    torch.testing.assert_close(found, torch.special.erfc(x), rtol=close, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma])
def test_gamma_functions_on_both_sides_of_their_poles(
    function: Any, dtype: Any, close: float
) -> None:
    ends = [0.0, -0.0, 1.0, 2.0, -1.0, 1e-30, 1e30, -1e5 - 0.5, float("inf"), -float("inf")]
    x = torch.cat([torch.linspace(-9.97, 19.97, 301), torch.tensor([*ends, float("nan")])]).to(
        dtype
    )
    found = converted(function, x)
    torch.testing.assert_close(found, function(x), rtol=close, atol=close, equal_nan=True)


def mode_part(part: int, dim: int, keepdim: bool) -> Callable[[Any], list[Any]]:
    return lambda x: [x.mode(dim, keepdim)[part]]


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_most_frequent_element_is_the_least_of_several(keepdim: bool) -> None:
    rows = [[3, 1, 3, 1, 2], [0, 2, 0, 0, 5], [0, -0.0, 7, 7, 0], [4, 3, 2, 1, 9.5]]
    for x in (torch.tensor(rows), torch.randint(0, 3, (4, 5)), torch.tensor([[True, False, True]])):
        for dim in (0, 1):
            wanted, _ = x.mode(dim, keepdim)
            values, indices = (converted(mode_part(part, dim, keepdim), x) for part in (0, 1))
            torch.testing.assert_close(values, wanted, rtol=0, atol=0)
            # Of equal elements, torch's index is any.
            picked = x.gather(dim, indices if keepdim else indices.unsqueeze(dim))
            picked = picked if keepdim else picked.squeeze(dim)
            torch.testing.assert_close(picked, wanted, rtol=0, atol=0)


_ODD = [0.0, -0.0, 1, -1, 1e-45, -1e-45, 3.4e38, float("inf"), -float("inf"), float("nan"), 5, 5, 0]
_ASIDE = [1.0, -1, 1, 0, -1, 1, float("inf"), 0, 0, 1, float("nan"), 4, -0.0]
_WHOLE = torch.tensor([[12], [-18], [0]]), torch.tensor([18, 0, -4, 7])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_taken_apart_and_moved_to_the_next_as_in_torch(dtype: Any) -> None:
    x, y = (torch.tensor(each, dtype=dtype) for each in (_ODD, _ASIDE))
    calls = [
        (torch.nextafter, (x, y)),
        (torch.nextafter, (y, x)),
        (lambda x: torch.frexp(x)[0], (x,)),
        (lambda x: torch.frexp(x)[1], (x,)),
        (torch.ldexp, (x, torch.arange(13) - 6)),
    ]
    for function, given in calls:
        found, expected = converted(function, *given), function(*given)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# Near 1, torch's own result has an error of 1e-10 in f64.
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
def test_the_inverse_of_erf_and_sums_of_exponentials(dtype: Any, close: float) -> None:
    ends = torch.tensor([-0.0, 1.0, -1.0, 1e-30, 0.9999999, float("nan")])
    x = torch.cat([torch.linspace(-1.1, 1.1, 221), ends]).to(dtype)
    found, expected = converted(torch.erfinv, x), torch.erfinv(x)
    torch.testing.assert_close(found, expected, rtol=close, atol=0, equal_nan=True)
    far = torch.tensor([[1.0, -1e9, 2], [-1000, 1000, 1000]], dtype=dtype)
    far[0, 1] = -float("inf")
    for function in (lambda x: torch.logcumsumexp(x, 0), lambda x: torch.logcumsumexp(x, 1)):
        torch.testing.assert_close(converted(function, far), function(far))
    long = torch.tensor([20.0] + [0.0] * 3000, dtype=dtype)  # each adds less than f32 resolves
    found, expected = converted(lambda x: torch.logcumsumexp(x, 0), long), long.logcumsumexp(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (torch.gcd, _WHOLE),
        (torch.lcm, _WHOLE),
        (torch.put, (torch.zeros(2, 3), torch.tensor([1, -1]), torch.tensor([5.0, 6]))),
        (
            lambda x, index: torch.put(x, index, x[:, :2], accumulate=True),
            (torch.arange(6.0).reshape(2, 3), torch.tensor([[1, -1], [1, 2]])),
        ),
    ],
)
def test_divisors_and_writes_by_place(function: Any, given: Any) -> None:
    found = converted(function, *given)
    torch.testing.assert_close(found, function(*given), rtol=0, atol=0)
