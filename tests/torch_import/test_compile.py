"""`torch.compile(model, backend="gptrs")` as its users meet it."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from gptrs.api.programs import CompileStart, ExecutionTraceSink  # noqa: E402
from gptrs.capture.events import tracing  # noqa: E402
from gptrs.errors import UsageError  # noqa: E402
from gptrs_torch import dynamo, partition  # noqa: E402

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
        return torch.linalg.eigvalsh(x @ x.T + torch.eye(4)) * 2 + torch.linalg.det(x)

    x = torch.randn(4, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"), tracing(sink := Backends()):
        fast = compiled(function)
        torch.testing.assert_close(fast(x), function(x))
        torch.testing.assert_close(fast(x + 1), function(x + 1))
    said = [record.message for record in caplog.records]
    assert len(sink.names) >= 2, "what is before and after it runs on the backend"
    assert sum("linalg_eigh" in message for message in said) == 1
    assert all("torch runs this part" in message for message in said)


def test_where_gradients_are_wanted_torch_runs_the_graph_and_says_so() -> None:
    model = mlp()
    fast = compiled(model)
    x = torch.randn(2, 8)
    with pytest.warns(UserWarning, match="does not train: torch runs this graph"):
        loss = fast(x).sum()
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


LAYERS = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def gradient(x: Any) -> Any:
    return torch.func.grad(lambda z: LAYERS(z).sin().sum())(x)


def derivative(x: Any) -> Any:
    return torch.func.jvp(lambda z: LAYERS(z), (x,), (x,))


def dual(x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(LAYERS(forward_ad.make_dual(x, x))).tangent


def batched(x: Any) -> Any:
    return torch.func.vmap(nn.functional.linear, (None, 1))(x, x.view(2, 1, 4).expand(2, 3, 4))


@pytest.mark.parametrize("function", [gradient, derivative, dual, batched])
def test_layers_are_differentiated_and_batched_inside_of_a_graph(
    function: Callable[[Any], Any],
) -> None:
    x = torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings(), tracing(sink := Backends()):
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert sink.names == ["ref"]


def test_results_without_gradients_are_computed_where_gradients_are_enabled() -> None:
    def chosen(x: Any) -> Any:
        with torch.no_grad():
            scores = LAYERS(x)
        return scores + 1, scores.argmax(-1)

    x = torch.randn(2, 4)
    with tracing(sink := Backends()):
        torch.testing.assert_close(compiled(chosen)(x), chosen(x))
    assert sink.names == ["ref"]


def test_views_of_weights_between_parts_of_a_graph_are_no_training() -> None:
    """They require gradients even where these are disabled."""

    def parts(x: Any) -> Any:
        rows = LAYERS[0].weight.reshape(2, 8)
        torch._dynamo.graph_break()
        return rows * x.sum()

    x = torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(compiled(parts)(x), parts(x))


def test_a_graph_that_torch_does_not_trace_stays_with_torch() -> None:
    def replaced(x: Any, y: Any) -> Any:
        x.data = y * 2
        return x + 1

    x, y = torch.ones(3), torch.arange(3.0)
    with torch.no_grad(), pytest.warns(UserWarning, match=r"torch does not trace.*set_"):
        torch.testing.assert_close(compiled(replaced)(x, y), y * 2 + 1)
    torch.testing.assert_close(x, y * 2)


def test_windows_and_positions_of_free_sizes_leave_nothing_to_torch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Any) -> Any:
        windows = torch.hamming_window(4), torch.kaiser_window(4, False), torch.blackman_window(4)
        return torch.arange(0.5, x.shape[0]) / x.shape[0], x * sum(
            windows, torch.bartlett_window(4)
        )

    monkeypatch.setattr(partition, "_said", set())
    fast = torch.compile(function, backend="gptrs", options={"backend": "ref"}, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fast(x), function(x))
    assert not [each for each in caplog.records if each.name == "gptrs"]


def test_results_with_gradients_are_torchs_where_a_graph_enables_them() -> None:
    def trained(x: Any) -> Any:
        with torch.enable_grad():
            return LAYERS(x)

    x = torch.randn(2, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match="does not train"):
        found = compiled(trained)(x)
    grads = [torch.autograd.grad(y.sum(), LAYERS[0].weight) for y in (found, LAYERS(x))]
    torch.testing.assert_close(*grads)


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


def test_programs_are_dumped_where_the_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as dumps:  # the dump ends here, not with the process
        monkeypatch.setattr(dynamo, "_dumps", dumps)
        double = compiled(lambda x: x * 2 + 1, dump=str(tmp_path / "dump"))
        assert double(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert list((tmp_path / "dump").rglob("*.ptir"))


def broken(x: Any) -> Any:
    torch._dynamo.graph_break()
    return x


NOTE = "gave the backend `gptrs` nothing to compile: all ran in torch; dynamo broke its graphs"


@pytest.mark.whole
@pytest.mark.parametrize(("function", "told"), [(broken, True), (lambda x: x + 1, False)])
def test_a_note_says_when_torch_handed_over_nothing(
    function: Callable[..., Any], told: bool
) -> None:
    counters.clear()
    compiled(function)(torch.ones(3))
    note = dynamo.note_on_nothing(counters)
    counters.clear()  # or this process ends with the note, too
    assert (NOTE in (note or "")) == told


@pytest.mark.exhaustive
def test_a_process_ends_with_that_note() -> None:
    code = "import torch\ndef f(x):\n    torch._dynamo.graph_break()\n    return x\n"
    code += "torch.compile(f, backend='gptrs')(torch.ones(3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert NOTE in done.stderr


def test_weights_of_inference_mode_are_read_in_each_call() -> None:
    with torch.inference_mode():
        model = mlp()
        fast = compiled(model)
        x = torch.randn(2, 8)
        with pytest.warns(UserWarning, match="make or load the model outside of it"):
            torch.testing.assert_close(fast(x), model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x))


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


@pytest.mark.parametrize("asked", ["ref", "numba"])
def test_a_graph_without_weights_runs_on_the_backend_that_is_asked_for(asked: str) -> None:
    fast = compiled(lambda x: x.sin() + 1, backend=asked)
    with torch.no_grad(), tracing(sink := Backends()):
        torch.testing.assert_close(fast(torch.ones(3)), torch.ones(3).sin() + 1)
    assert sink.names == [asked]


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


def arithmetic(a: Any, b: Any, c: Any) -> Any:
    n, m, k = a.shape[0], b.shape[0], c.shape[0]
    sizes = [n + m + k, abs(n - m) + 1, n << 1, (m * 8) >> 2, +k, round(m / 3), max(n, m)]
    chosen = torch.sym_ite(n > m, n, m)
    ones = [torch.ones(size) for size in [*sizes, math.ceil(math.log2(n)), chosen]]
    return (torch.cat([a, b, c]), a * torch.sym_sqrt(n), *ones)


def test_arithmetic_of_sizes_leaves_nothing_to_torch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = torch.compile(arithmetic, backend="gptrs", options={"backend": "ref"}, dynamic=True)
    monkeypatch.setattr(partition, "_said", set())
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        for sizes in ((4, 5, 7), (9, 3, 6)):
            given = [torch.randn(size) for size in sizes]
            for found, wanted in zip(fast(*given), arithmetic(*given), strict=True):
                torch.testing.assert_close(found, wanted)
    assert not [each for each in caplog.records if each.name == "gptrs"]


def test_statistics_of_any_number_of_rows_leave_nothing_to_torch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their variance is divided by the number of elements less one, a free size."""
    plain, model = nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, affine=False)
    fast = compiled(model)
    monkeypatch.setattr(partition, "_said", set())
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        for rows in (2, 5, 7):
            x = torch.randn(rows, 3, 4)
            torch.testing.assert_close(fast(x), plain(x))
            torch.testing.assert_close(model.running_var, plain.running_var)
    assert not [each for each in caplog.records if each.name == "gptrs"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64", "int32", "bool"])
def test_element_types(dtype: str) -> None:
    x = (torch.randn(3, 4) * 3).to(getattr(torch, dtype))

    def function(x: Any) -> Any:
        return x.T.reshape(-1), torch.where(x > 0, x, x), (x + x).sum(-1), x * 2

    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_a_step_of_an_optimizer_leaves_nothing_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "enable_dynamo_decompositions", True)

    def step(weight: Any, mean: Any, square: Any, rate: Any) -> None:
        weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-0.1)
        square.addcmul_(mean, mean, value=0.01)
        mean.add_(weight, alpha=rate)

    given = [torch.rand(5, 7), torch.rand(5, 7), torch.rand(5, 7), torch.tensor(0.3)]
    expected = [each.clone() for each in given]
    step(*expected)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        compiled(step)(*given)
    assert not caplog.records
    torch.testing.assert_close(given, expected, rtol=1e-6, atol=1e-7)


def test_layouts_of_arguments() -> None:
    def function(x: Any, y: Any) -> Any:
        return x @ y, x[:, None] + y.T.sum()

    x, y = torch.randn(4, 6).T, torch.randn(8, 5)[::2]
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x, y), function(x, y))
        image = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
        layer = nn.Conv2d(3, 5, 3, padding=1)
        torch.testing.assert_close(compiled(layer)(image), layer(image))


def test_results_lie_in_memory_as_those_of_torch() -> None:
    """torch makes views of them by strides: here of one in the order of columns."""

    def function(x: Any, y: Any) -> Any:
        z = x.T + 1
        windows = y.mT.contiguous().mT.as_strided((3, 2, 4), (4, 2, 1))
        return z[0], z[1:], z.T, windows * 2

    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    layer = nn.Conv2d(3, 5, 3)
    x, y = torch.randn(3, 4), torch.randn(1, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(x, y), function(x, y))
        found, expected = compiled(layer)(image), layer(image)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def test_memory_is_read_by_strides_where_torch_does_it() -> None:
    def function(x: Any, n: Any) -> Any:
        y = x.transpose(1, 2) * 2  # its elements lie as those of x
        return y.as_strided((n.shape[0], 2, 2), (1, 3, 2)) + 1

    fast = compiled(function)
    with torch.no_grad():
        for count in (2, 3, 4):
            x, n = torch.randn(3, 4, 2), torch.ones(count)
            torch._dynamo.mark_dynamic(n, 0)
            torch.testing.assert_close(fast(x, n), function(x, n))


def test_arguments_that_overlap_in_memory_change_in_both(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    monkeypatch.setattr(partition, "_said", set())
    mine = torch.randn(2, 6).T.contiguous().T
    theirs = mine.clone(memory_format=torch.preserve_format)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        found = compiled(function)(mine[:, :4], mine[:, 2:])
        torch.testing.assert_close(found, function(theirs[:, :4], theirs[:, 2:]))
    torch.testing.assert_close(mine, theirs)
    assert not [each for each in caplog.records if each.name == "gptrs"]


def test_sizes_numbers_and_weights_that_come_again_are_those_of_their_call() -> None:
    layer = nn.Linear(3, 2)

    def function(x: Any, n: int) -> Any:
        return layer(x)[:, :n] * n, n

    fast = compiled(function)
    with torch.no_grad():
        for rows, n in ((1, 1), (4, 1), (4, 2), (1, 1), (4, 1), (5, 2), (4, 2)):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(fast(x, n), function(x, n))
            layer.bias.add_(1)
            torch.testing.assert_close(fast(x, n), function(x, n))


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


def test_sizes_that_torch_does_not_compare_are_one_where_the_graph_needs_it() -> None:
    """Keys and values in a cache grow alike, and each has a size of its own to torch."""

    def function(q: Any, k: Any, v: Any) -> Any:
        k, v = torch.cat([k, q], 2), torch.cat([v, q], 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), k, v

    fast = torch.compile(function, backend="gptrs")
    with torch.no_grad(), tracing(sink := Backends()):
        for count in (5, 6, 9, 30):
            q, k, v = torch.randn(1, 2, 1, 8), *torch.randn(2, 1, 2, count, 8)
            for each in (k, v):
                torch._dynamo.mark_dynamic(each, 2)
            torch.testing.assert_close(fast(q, k, v), function(q, k, v))
    assert sink.names == ["numba"]


def test_a_size_that_was_equal_by_chance_may_be_another_one() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.linalg.eigvalsh(x @ x.mT), x + 1, y * 2  # the first one is torch's

    fast = compiled(function)
    with torch.no_grad():
        for a, b in ((3, 3), (3, 4), (5, 5), (6, 7)):
            x, y = torch.randn(a, 2, 4), torch.randn(b, 4)
            for each in (x, y):
                torch._dynamo.mark_dynamic(each, 0)
            torch.testing.assert_close(fast(x, y), function(x, y))


def test_tensors_on_another_device_stay_with_torch_and_it_is_said() -> None:
    fast = compiled(mlp().to("meta"))
    with torch.no_grad(), pytest.warns(UserWarning, match=r"tensors on `meta`.*`\.cpu\(\)`"):
        assert fast(torch.ones(2, 8, device="meta")).shape == (2, 4)


def test_dropout_in_training_mode_is_that_of_torch_and_names_what_leaves_it_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)), torch.randn(4, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        torch.manual_seed(1)
        dropped = compiled(model)(x)
        torch.manual_seed(1)
        torch.testing.assert_close(dropped, model(x))
    assert "`model.eval()`" in caplog.text


def test_layers_with_wider_weights_are_converted_under_autocast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layers = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(5)
    model = nn.Sequential(*layers, nn.Linear(5, 3)).eval()
    x = torch.randn(2, 4, 3, 5)
    cast = torch.autocast("cpu", torch.bfloat16)
    with torch.no_grad(), cast, caplog.at_level(logging.WARNING, "gptrs"):
        found, expected = compiled(model)(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    assert not caplog.text


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


class _Branches(nn.Module):
    """A branch of one-hot classes, whose values torch checks."""

    def __init__(self, otherwise: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.otherwise = otherwise

    def forward(self, classes: Any) -> Any:
        x = nn.functional.one_hot(classes, 5).float()
        return torch.cond(classes[0] > 2, self.layer, self.otherwise, (x,)) * 2


def test_branches_are_converted_and_what_torch_checks_is_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _Branches(lambda x: x - x.shape[0])
    with torch.inference_mode():
        fast = compiled(model)
        for given in ([3, 0, 4], [0, 3], [4, 1]):
            classes = torch.tensor(given)
            torch.testing.assert_close(fast(classes), model(classes))
        for wrong, told in (([0, 5], "smaller than num_classes"), ([0, -1], "be non-negative")):
            with pytest.raises(RuntimeError, match=told):
                fast(torch.tensor(wrong))
    assert "torch runs this part" not in caplog.text


def test_a_branch_with_an_operator_that_is_not_converted_stays_with_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _Branches(lambda x: torch.polygamma(1, x + 1))
    with torch.inference_mode():
        fast = compiled(model)
        for given in ([3, 0, 4], [0, 3]):
            classes = torch.tensor(given)
            torch.testing.assert_close(fast(classes), model(classes))
    assert "polygamma" in caplog.text


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (lambda x, i: x[i], [0, 2], [0, 5]),
        (lambda x, i: nn.functional.embedding(i, x), [2, 1], [0, -1]),
        (lambda x, i: x.scatter(0, i[None], 1.0), [0, 2], [0, 5]),
        (lambda x, i: 4 // i, [1, 2], [0, 2]),
    ],
)
def test_calls_that_eager_mode_refuses_raise_its_own_error(
    function: Callable[..., Any], right: list[int], wrong: list[int]
) -> None:
    x = torch.randn(3, 4)
    fast = compiled(function)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(x, torch.tensor(wrong))
    for _ in range(2):
        torch.testing.assert_close(fast(x, torch.tensor(right)), function(x, torch.tensor(right)))
        with pytest.raises(type(eager.value)) as found:
            fast(x, torch.tensor(wrong))
        assert type(found.value) is type(eager.value)


def test_a_later_size_that_is_not_converted_is_run_by_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fast = compiled(torch.fft.rfft)
    for count in (16, 12, 5003, 24, 5003):  # 5003 is a prime above 4096
        x = torch.randn(count)
        torch.testing.assert_close(fast(x), torch.fft.rfft(x), rtol=1e-3, atol=1e-3)
    assert "5003 elements is not converted" in caplog.text


def test_a_part_between_parts_of_torch_knows_sizes_made_of_other_sizes() -> None:
    def condition(x: Any) -> Any:  # torch's factors, their first over their last, without the axis
        return torch.linalg.cond(x)

    fast = torch.compile(
        condition, backend="gptrs", options={"backend": "ref"}, dynamic=True, fullgraph=True
    )
    for size in (3, 4, 6):
        x = torch.randn(size, size) + size * torch.eye(size)
        torch.testing.assert_close(fast(x), condition(x), rtol=1e-4, atol=1e-4)


def test_an_empty_result_can_be_resized() -> None:
    found = compiled(lambda x: x[:0] * 2)(torch.randn(3, 4))
    assert found.resize_(2, 4).fill_(1.0).sum() == 8
