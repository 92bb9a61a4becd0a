"""The sizes of the steps that a model runs."""

from __future__ import annotations


def rows_of_steps(model, monkeypatch) -> list[int]:
    """Return a list that grows by the number of rows of each step from now on."""
    lm, rows = model.causal_lm(), []
    run = lm.step

    def step(step, buffers):
        rows.append(len(step.tokens))
        return run(step, buffers)

    monkeypatch.setattr(lm, "step", step)
    return rows
