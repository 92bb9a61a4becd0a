"""Results that are views of arguments, or of other results: as torch has them, for all sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from gptrs.api.programs import CompileStart, ExecutionTraceSink  # noqa: E402
from gptrs.capture.events import tracing  # noqa: E402

pytestmark = pytest.mark.long


def plus(x: Any) -> Any:
    return x + 1


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "slices of an argument": lambda x: (x[1:], x[:, 1::2], x[..., -2:] * 2),
    "splits": lambda x: (*x.split(2, 1), *x.chunk(2, -1), *torch.tensor_split(x, 3, 2)),
    "other orders": lambda x: (x.mT, x.permute(2, 0, 1), x.movedim(0, 2)[1:]),
    "of one element": lambda x: x.select(0, -1).unsqueeze(1),
    "repeated": lambda x: (
        x[:1].expand(4, -1, -1),
        torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
    ),
    "of a result": lambda x: ((y := plus(x)), y[1:], y.mT, y.view(-1)[2:]),
    "diagonals": lambda x: (x.diagonal(0, 1, 2), plus(x)),
    "by strides": lambda x: x.as_strided((2, 2), (1, 2), 3),
    "of a size": lambda x: (x.view(x.shape[0], -1)[:, x.shape[2] :], x.shape[1]),
    "the argument": lambda x: (x, x.view(x.shape), plus(x)),
}


class Programs(ExecutionTraceSink):
    """Counts programs."""

    def __init__(self) -> None:
        self.count = 0

    def before_program(self, event: CompileStart) -> None:
        self.count += event.origin.startswith("jit")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_views_have_the_elements_the_strides_and_the_memory_of_torch(
    name: str, dynamic: bool
) -> None:
    function = FUNCTIONS[name]
    fast = torch.compile(function, backend="gptrs", options={"backend": "ref"}, dynamic=dynamic)
    with torch.no_grad():
        for shape in ((3, 4, 6), (4, 6, 5)) if dynamic else ((3, 4, 6),):
            x = torch.randn(shape)
            found, expected = leaves(fast(x)), leaves(function(x))
            for mine, theirs in zip(found, expected, strict=True):
                if not isinstance(theirs, torch.Tensor):
                    assert mine == theirs
                    continue
                assert torch.equal(mine, theirs)
                assert mine.stride() == theirs.stride()
                assert mine.storage_offset() == theirs.storage_offset()
                assert shares(mine, x) == shares(theirs, x)
            assert with_first(found) == with_first(expected)


def leaves(values: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(values)


def with_first(values: list[Any]) -> list[bool]:
    """Return which tensors share memory with the first one."""
    return [shares(values[0], each) for each in values if isinstance(each, torch.Tensor)]


def shares(x: Any, y: Any) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_views_alone_run_no_program() -> None:
    fast = torch.compile(lambda x: x[1:].mT, backend="gptrs", options={"backend": "ref"})
    with torch.no_grad(), tracing(sink := Programs()):
        assert torch.equal(fast(torch.arange(6.0).view(3, 2)), torch.tensor([[2.0, 4], [3, 5]]))
    assert sink.count == 0
