"""Recurrent layers of torch become scans, whatever their options."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run layers of torch")

from torch.utils import _pytree as pytree  # noqa: E402

import gptrs_torch  # noqa: E402

pytestmark = pytest.mark.long
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "LSTM without biases": ("LSTM", {"bias": False, "batch_first": True}),
    "GRU": ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "tanh": ("RNN", {}),
    "ReLU": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Layer(torch.nn.Module):
    """A layer that gives all that it can: outputs and last states."""

    def __init__(self, kind: str, **settings: Any) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(4, 5, **settings)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def compare(found: Any, expected: Any) -> None:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_a_scan(name: str) -> None:
    kind, settings = LAYERS[name]
    model, x = Layer(kind, **settings).eval(), torch.randn(2, 3, 4)
    loaded = gptrs_torch.load(torch.export.export(model, (x,)), "ref")
    assert "scan" in str(loaded.program(x))
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"})
    with torch.inference_mode():
        compare(loaded.module(x), model(x))
        compare(compiled(x), model(x))


@pytest.mark.exhaustive
def test_a_layer_takes_all_sizes_and_single_sequences() -> None:
    model = Layer("GRU").eval()
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"}, fullgraph=True)
    with torch.inference_mode():
        for shape in ((2, 3, 4), (3, 6, 4), (7, 4)):
            x = torch.randn(shape)
            compare(compiled(x), model(x))


def test_dropout_between_layers_stays_with_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = Layer("GRU", num_layers=2, dropout=0.5).train()
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"})
    x = torch.randn(2, 3, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "gptrs"):
        torch.manual_seed(1)
        found = compiled(x)
        torch.manual_seed(1)
        compare(found, model(x))
    assert "drops random elements" in caplog.text


def test_packed_sequences_are_computed() -> None:
    model = Layer("LSTM").eval()
    pack = torch.nn.utils.rnn.pack_padded_sequence
    packed = pack(torch.randn(5, 2, 4), torch.tensor([5, 2]))
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"})
    with torch.inference_mode():
        compare(compiled(packed)[1], model(packed)[1])


def test_a_module_around_a_layer_is_one_graph_for_all_batches() -> None:
    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(4, 5, batch_first=True)
            self.head = torch.nn.Linear(5, 2)

        def forward(self, x: Any) -> Any:
            return self.head(torch.relu(self.layer(x)[0][:, -1]))

    model, counters = Around().eval(), torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"}, fullgraph=True)
    with torch.inference_mode():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 4)
            compare(compiled(x), model(x))
    assert counters["unique_graphs"] - before == 2  # of one size, and of all
