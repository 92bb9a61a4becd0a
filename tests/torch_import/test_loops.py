"""Loops and branches of torch become loops and branches of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run loops of torch")

from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import gptrs_torch  # noqa: E402


class Steps(torch.nn.Module):
    """A recurrent layer, then as many steps as keep the sum of a state small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(3, 3) / 4)

    def forward(self, x: Any) -> tuple[Any, ...]:
        def step(state: tuple[Any, ...], inputs: Any) -> tuple[Any, Any]:
            hidden, count = state
            hidden = torch.tanh(hidden @ self.weight + inputs)
            return (hidden, count + 1), hidden * 2

        first = torch.zeros(x.shape[1], 3), torch.zeros((), dtype=torch.int64)
        (last, count), outputs = scan(step, first, x, dim=0)
        steps, grown = while_loop(
            lambda i, z: (i < 20) & (z.abs().sum() < 50),
            lambda i, z: (i + 1, z * 1.5 + self.weight.sum()),
            (count, last),
        )
        return outputs, steps, grown


def test_loops_of_files_run_for_all_sizes(tmp_path: Path) -> None:
    model, path = Steps().eval(), tmp_path / "m.pt2"
    free = {"x": {0: torch.export.Dim("time"), 1: torch.export.Dim("batch")}}
    with torch.no_grad():
        exported = torch.export.export(model, (torch.ones(4, 2, 3),), dynamic_shapes=free)
        torch.export.save(exported, path)
        loaded = gptrs_torch.load(path, "ref")
        for time, batch in ((3, 2), (6, 4)):
            x = torch.randn(time, batch, 3)
            torch.testing.assert_close(loaded.module(x), model(x))
    assert str(loaded.program(torch.ones(4, 2, 3))).count(" scan") == 1


def test_loops_are_compiled_with_the_model(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model = Steps().eval()
    compiled = torch.compile(model, backend="gptrs", options={"backend": "ref"}, fullgraph=True)
    with torch.inference_mode():
        x = torch.randn(3, 2, 3)
        torch.testing.assert_close(compiled(x), model(x))
    assert "torch runs this part" not in caplog.text


class Rows(torch.nn.Module):
    """As many steps as there are rows, each with the first state."""

    def forward(self, x: Any) -> Any:
        first, start = x.sum(0), torch.zeros((), dtype=torch.int64)
        return while_loop(
            lambda i, z: i < x.shape[0], lambda i, z: (i + 1, z + first), (start, first)
        )[1]


def test_a_state_may_begin_with_what_the_loop_reads_as_well(tmp_path: Path) -> None:
    torch._dynamo.reset()
    free = {"x": {0: torch.export.Dim("rows")}}
    program = torch.export.export(Rows(), (torch.ones(4, 3),), dynamic_shapes=free)
    before = str(program.graph)
    torch.export.save(program, tmp_path / "m.pt2")
    compiled = torch.compile(Rows(), backend="gptrs", options={"backend": "ref"}, fullgraph=True)
    models = [gptrs_torch.load(each, "ref").module for each in (program, tmp_path / "m.pt2")]
    assert str(program.graph) == before
    with torch.inference_mode():
        for rows in (2, 5):
            x = torch.randn(rows, 3)
            for model in (*models, compiled):
                torch.testing.assert_close(model(x), x.sum(0) * (rows + 1))
