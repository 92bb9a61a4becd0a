"""Weights that a compiled model reads are the current ones, however they were changed."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.errors import UsageError  # noqa: E402
from gptrs_torch import weights as watching  # noqa: E402
from gptrs_torch.dynamo import Settings  # noqa: E402
from gptrs_torch.weights import PAGE, WrittenPages  # noqa: E402

pytestmark = pytest.mark.long
WIDE = 96
"""A square matrix of floats of this width has some whole pages."""


class Model(nn.Module):
    """Weights of all sizes, tied ones, buffers, views of one flat tensor, one that is turned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDE, WIDE)
        self.tied = nn.Linear(WIDE, WIDE)
        self.tied.weight = self.first.weight
        self.norm = nn.BatchNorm1d(WIDE)
        self.flat = torch.randn(2 * WIDE * WIDE)
        self.left = nn.Parameter(self.flat[: WIDE * WIDE].view(WIDE, WIDE))
        self.right = nn.Parameter(self.flat[WIDE * WIDE :].view(WIDE, WIDE).t())
        self.last = nn.Linear(WIDE, 3)

    def forward(self, x: Any) -> Any:
        y = self.norm(torch.tanh(self.tied(torch.relu(self.first(x)))))
        return self.last(y @ self.left @ self.right)


def swapped(model: Any) -> None:
    torch.utils.swap_tensors(model.first.weight, nn.Parameter(torch.randn(WIDE, WIDE)))
    model.tied.weight = model.first.weight


def stepped(model: Any) -> None:
    optimizer = torch.optim.SGD([model.last.weight, model.first.bias], lr=1.0)
    for each in (model.last.weight, model.first.bias):
        each.grad = torch.randn_like(each)
    optimizer.step()
    optimizer.zero_grad()


def averaged(model: Any) -> None:
    values = [each.detach() for each in model.parameters()]
    torch._foreach_lerp_(values, [torch.randn_like(each) for each in values], 0.1)


def fused(model: Any) -> None:
    model.first.weight.data += torch.randn(WIDE, 2) @ torch.randn(2, WIDE)


def one_element(model: Any) -> None:
    model.first.weight.data[WIDE // 2, WIDE // 2] += 9


def through_numpy(model: Any) -> None:
    model.first.weight.detach().numpy()[1:9] = 2


def moved(model: Any) -> None:
    weight = model.first.weight
    weight.set_(torch.randn(2 * WIDE * WIDE), WIDE, weight.shape, weight.stride())


def transposed(model: Any) -> None:
    model.first.weight.data = model.first.weight.data.t()


CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda model: model.first.weight.mul_(-1),
    ".data = new": lambda model: setattr(model.first.weight, "data", torch.randn(WIDE, WIDE)),
    ".data = turned": transposed,
    ".data.copy_": lambda model: model.first.weight.data.copy_(torch.randn(WIDE, WIDE)),
    ".data.add_ of a bias": lambda model: model.last.bias.data.add_(1),
    "the first byte": lambda model: model.left.data[0].neg_(),
    "the last byte": lambda model: model.left.data[-1, -1:].add_(99),
    "one flat tensor": lambda model: model.flat.data.add_(torch.randn(2 * WIDE * WIDE)),
    "one element": one_element,
    "merging": fused,
    "averaging": averaged,
    "an optimizer": stepped,
    "load_state_dict": lambda model: model.load_state_dict(copy.deepcopy(Model().state_dict())),
    "load_state_dict by assigning": lambda model: model.load_state_dict(
        {**Model().state_dict(), "tied.weight": model.first.weight}, assign=True
    ),
    "another parameter": lambda model: setattr(
        model, "left", nn.Parameter(torch.randn(WIDE, WIDE))
    ),
    "a buffer": lambda model: model.norm.running_mean.copy_(torch.randn(WIDE)),
    "a buffer by .data": lambda model: model.norm.running_var.data.mul_(4),
    "swap_tensors": swapped,
    "set_": moved,
    "NumPy": through_numpy,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def compiled(model: Callable[..., Any], **options: object) -> Callable[..., Any]:
    return torch.compile(model, backend="gptrs", options={"backend": "ref", **options})


def refuse(self: object, ranges: object) -> None:
    raise OSError("refused")


@pytest.mark.parametrize(("runs_on", "by_pages"), [("ref", False), ("numba", True)])
def test_every_change_is_seen(
    runs_on: str, by_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_pages:
        monkeypatch.setattr(watching.WrittenPages, "__init__", refuse)
    model = Model().eval()
    fast = compiled(model, backend=runs_on)
    x = torch.randn(4, WIDE)
    unseen: list[str] = []
    # A replaced weight compiles anew: past the limit torch runs the model itself.
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):
        before = fast(x)
        for name, change in CHANGES.items():
            change(model)
            expected = model(x)
            assert not torch.allclose(before, expected, rtol=1e-3), f"{name} changes something"
            before = fast(x)
            again = fast(x)
            torch.testing.assert_close(again, before, rtol=0, atol=0)
            if not torch.allclose(before, expected, rtol=2e-3, atol=2e-3):
                unseen.append(name)
    assert not unseen


def test_graphs_that_share_weights_all_see_a_change() -> None:
    model = nn.Linear(WIDE, WIDE).eval()
    twice = compiled(lambda x: model(x) * 2)
    once = compiled(lambda x: model(x) + 1)
    x = torch.randn(4, WIDE)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(once(x), model(x) + 1)
            torch.testing.assert_close(twice(x), model(x) * 2)
            model.weight.data[WIDE // 2].mul_(-3)


def test_what_torch_counts_is_seen_of_frozen_weights_and_nothing_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched: list[object] = []
    monkeypatch.setattr(watching, "WrittenPages", watched.append)
    model = nn.Linear(WIDE, WIDE).eval()
    fast = compiled(model, weights="frozen")
    x = torch.randn(4, WIDE)
    with torch.no_grad():
        fast(x)
        model.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))
        model.weight.data = torch.randn(WIDE, WIDE)
        torch.testing.assert_close(fast(x), model(x))
    assert not watched


def test_weights_are_checked_or_frozen() -> None:
    with pytest.raises(UsageError, match="takes `checked` or `frozen`, got `cold`"):
        Settings.of({"weights": "cold"})


def test_reading_all_weights_in_each_call_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching.WrittenPages, "__init__", refuse)
    small, large = torch.zeros(1 << 20), torch.zeros((1 << 22) + PAGE)
    assert not watching.WeightWatch([small]).differ([small])
    assert not caplog.text
    with caplog.at_level("WARNING", logger="gptrs"):
        watch = watching.WeightWatch([large])
    assert "reads the 17 MB of the model's weights" in caplog.text
    assert "(refused)" in caplog.text
    assert not watch.differ([large])
    large.data[-1] = 1
    assert watch.differ([large])


def test_a_buffer_that_the_graph_changes_is_not_read_as_a_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be bound anew, and the graph captured, in each call."""
    made: list[int] = []
    plain = watching.WeightWatch.__init__

    def counting(self: Any, weights: Any, **options: bool) -> None:
        made.append(len(weights))
        plain(self, weights, **options)

    monkeypatch.setattr(watching.WeightWatch, "__init__", counting)
    model, mirror = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 4)
            torch.testing.assert_close(fast(x), mirror(x))
        torch.testing.assert_close(model.running_mean, mirror.running_mean)
    assert made == [2]


def test_exported_programs_in_memory_see_changes_of_the_model() -> None:
    model = nn.Linear(WIDE, WIDE).eval()
    x = torch.randn(2, WIDE)
    loaded = gptrs_torch.load(torch.export.export(model, (x,)), backend="ref")
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(x), model(x))
        model.weight.data.mul_(2)
        model.bias.data[0] = 7
        torch.testing.assert_close(loaded.module(x), model(x))
        model.weight.data = model.weight.data.t()  # at the same address
        torch.testing.assert_close(loaded.module(x), model(x))


def pages_of(tensor: Any) -> tuple[int, int]:
    start = tensor.data_ptr()
    return -(-start // PAGE) * PAGE, (start + tensor.nbytes) // PAGE * PAGE


def test_pages_are_written_from_the_first_write_on_for_all_who_watch_them() -> None:
    memory = torch.zeros(1 << 16)
    try:
        first = WrittenPages([pages_of(memory)])
    except OSError as error:
        pytest.skip(f"this system does not tell: {error}")
    half, other = WrittenPages([pages_of(memory[: 1 << 15])]), WrittenPages([])
    upper = WrittenPages([pages_of(memory[1 << 15 :])])
    assert not any(each.written for each in (first, half, upper, other))
    memory[1 << 14] = 1
    assert [each.written for each in (first, half, upper, other)] == [True, True, False, False]
    half = WrittenPages([pages_of(memory[: 1 << 15])])
    assert [each.written for each in (first, half, upper, other)] == [True, False, False, False]
    first = WrittenPages([pages_of(memory)])
    assert not any(each.written for each in (first, half, upper, other))
    spread = memory.view(-1, PAGE // 4)[::2, 0]
    spread.add_(1)
    assert [each.written for each in (first, half, upper)] == [True] * 3


def test_pages_beside_written_ones_are_not_written() -> None:
    memory = torch.zeros(1 << 16)
    start, end = pages_of(memory)
    middle = start + 8 * PAGE
    try:
        low, high = WrittenPages([(start, middle)]), WrittenPages([(middle, end)])
    except OSError as error:
        pytest.skip(f"this system does not tell: {error}")
    for place, written in ((middle - 4, [True, False]), (middle, [False, True])):
        memory[(place - memory.data_ptr()) // 4] = 1
        assert [low.written, high.written] == written
        WrittenPages([(start, end)])  # protects them again, and tells the others
        assert [low.written, high.written] == written
        low, high = WrittenPages([(start, middle)]), WrittenPages([(middle, end)])


def test_memory_that_others_write_to_is_not_watched() -> None:
    shared = torch.zeros(1 << 16).share_memory_()
    with pytest.raises(OSError):  # noqa: PT011  # each system says it in its own words
        WrittenPages([pages_of(shared)])


def test_forked_processes_watch_their_own_pages() -> None:
    memory = torch.zeros(1 << 16)
    watch = watching.WeightWatch([memory])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, none of which is used
        child = os.fork()
    if child == 0:
        own = watching.WeightWatch([memory])
        right = watch.differ([memory]) and not own.differ([memory])
        memory.data.view(-1)[1 << 15] = 1
        os._exit(0 if right and own.differ([memory]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not watch.differ([memory])
    memory.data[1 << 15] = 1
    assert watch.differ([memory])


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_weights_without_a_page_are_compared(shape: tuple[int, ...]) -> None:
    weight = torch.zeros(shape)
    watch = watching.WeightWatch([weight])
    assert not watch.differ([weight])
    weight.data.fill_(1)
    assert watch.differ([weight]) == bool(weight.numel())
    assert watch.differ([weight.clone()])
