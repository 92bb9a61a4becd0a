"""`torch.compile(model, backend="gptrs")` as its users meet it."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402

from gptrs.api import CompileStart, ExecutionTraceSink  # noqa: E402
from gptrs.capture.events.trace import tracing  # noqa: E402
from gptrs.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.long


class Backends(ExecutionTraceSink):
    """Notes on which backends programs are compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_program(self, event: CompileStart) -> None:
        if event.origin.startswith("jit"):
            self.names.append(event.backend)


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


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).eval()


def test_one_program_serves_all_sizes_on_the_default_backend() -> None:
    model = mlp()
    fast = torch.compile(model, backend="gptrs")
    with torch.inference_mode(), tracing(sink := Backends()):
        for count in (3, 5, 7, 12):
            x = torch.randn(count, 8)
            torch.testing.assert_close(fast(x), model(x))
    assert sink.names == ["numba"] * 2, "the first size by itself, then one for all"


def test_an_operator_that_is_not_converted_stays_with_torch_and_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(x: Any) -> Any:
        return torch.linalg.inv(x @ x.T + torch.eye(4)) * 2 + torch.linalg.det(x)

    x = torch.randn(4, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"), tracing(sink := Backends()):
        fast = compiled(function)
        torch.testing.assert_close(fast(x), function(x))
        torch.testing.assert_close(fast(x + 1), function(x + 1))
    said = [record.message for record in caplog.records]
    assert len(sink.names) >= 2, "what is before and after it runs on the backend"
    assert sum("linalg_inv_ex" in message for message in said) == 1
    assert all("torch runs this part" in message for message in said)


def test_where_gradients_are_wanted_torch_runs_the_graph_and_says_so() -> None:
    model = mlp()
    fast = compiled(model)
    x = torch.randn(2, 8)
    with pytest.warns(UserWarning, match="does not train: torch runs this graph"):
        loss = fast(x).sum()
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 11}, "has no option `speed`"),
        ({"threads": "two"}, "takes a value of type `int`, got `'two'`"),
        ({"threads": True}, "takes a value of type `int`"),
        ({"precision": "int3"}, "has no precision `int3`"),
    ],
)
def test_options_that_there_are_not_are_refused(options: dict[str, object], message: str) -> None:
    with torch.no_grad(), pytest.raises(Exception, match=message) as caught:
        compiled(mlp(), **options)(torch.randn(2, 8))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), UsageError)


def test_programs_are_dumped_where_the_option_says(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: x * 2 + 1, backend='gptrs',"
        f" options={{'backend': 'ref', 'dump': {str(tmp_path / 'dump')!r}}})\n"
        "print(f(torch.ones(3)).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[3.0, 3.0, 3.0]", done.stderr
    assert list((tmp_path / "dump").rglob("*.ptir"))


def test_weights_are_used_where_they_are_and_read_anew_when_torch_changes_them() -> None:
    model = mlp()
    fast = compiled(model)
    x = torch.randn(2, 8)
    with torch.no_grad():
        before = fast(x)
        model[0].weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))
        model.load_state_dict(mlp().state_dict())
        torch.testing.assert_close(fast(x), model(x))
        model[3].weight = nn.Parameter(torch.ones(4, 16))
        torch.testing.assert_close(fast(x), model(x))
        assert not torch.equal(before, fast(x))


def test_results_belong_to_the_caller() -> None:
    model = nn.Linear(4, 4)

    def function(x: Any) -> Any:
        return model.weight * 2, x, x + 1, model.bias

    fast = compiled(function)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            kept = x.clone()
            found, wanted = fast(x), function(x)
            torch.testing.assert_close(found, wanted)
            found[0].zero_()
            found[2].zero_()
            torch.testing.assert_close(x, kept)


def test_buffers_and_arguments_that_change_do_so() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum(0))
            x.mul_(2)
            return x + self.seen

    plain, model = Counter(), Counter()
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 2)
            mine, theirs = x.clone(), x.clone()
            torch.testing.assert_close(fast(mine), plain(theirs))
            torch.testing.assert_close(mine, theirs)
            torch.testing.assert_close(model.seen, plain.seen)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "int32", "bool"])
def test_element_types(dtype: str) -> None:
    x = (torch.randn(3, 4) * 3).to(getattr(torch, dtype))

    def function(x: Any) -> Any:
        return x.T.reshape(-1), torch.where(x > 0, x, x), (x + x).sum(-1), x * 2

    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_layouts_of_arguments() -> None:
    def function(x: Any, y: Any) -> Any:
        return x @ y, x[:, None] + y.T.sum()

    x, y = torch.randn(4, 6).T, torch.randn(8, 5)[::2]
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x, y), function(x, y))
        image = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
        layer = nn.Conv2d(3, 5, 3, padding=1)
        torch.testing.assert_close(compiled(layer)(image), layer(image))


def test_a_number_that_changes_is_part_of_the_program() -> None:
    def function(x: Any, n: int) -> Any:
        return x[:, n:] * n

    x = torch.randn(3, 9)
    fast = compiled(function)
    with torch.no_grad():
        for n in (1, 4, 2, 5):
            torch.testing.assert_close(fast(x, n), function(x, n))


def test_random_numbers_are_those_of_torch() -> None:
    def function(x: Any) -> Any:
        return x + torch.rand(3)

    with torch.no_grad():
        torch.manual_seed(1)
        found = compiled(function)(torch.zeros(3))
        torch.manual_seed(1)
        torch.testing.assert_close(found, function(torch.zeros(3)))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_picks_the_types_of_layers(inside: bool) -> None:
    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                return self.layer(x)

    model, x = Cast().eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"})
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        found, expected = compiled(x), model(x)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
