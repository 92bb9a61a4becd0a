"""`gptrs trace`: run a model once and show what it computes on the way, layer by layer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from gptrs.runtime.compare.state_summary import StateSummary, summarize
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.model_inputs import Batch
from gptrs.runtime.programs.value_text import json_values
from gptrs_cli.observation import observed, profile_fields
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.inputs import InputOptions
from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.single_run import SingleRun, run_once
from gptrs_cli.terminal.stderr import note_below
from gptrs_cli.terminal.tables import print_table

_COLUMNS = ("state", "mean", "std", "min", "max", "non-finite", "norm", "type")


@dataclass(frozen=True)
class _Traced:
    states: Mapping[str, np.ndarray]
    seconds: float

    def summaries(self) -> Sequence[StateSummary]:
        return [summarize(name, state) for name, state in self.states.items()]


@command_options(*MODEL)
def trace(
    *,
    model: ModelOption = None,
    inputs: InputOptions,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write each state under its name as .npz, .safetensors or .gptrsten.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a model once and print statistics of its hidden states.

    They come in the order of computation. The names are those of transformers' `hidden_states`:
    embeddings, layer.0, layer.1, and so on.
    """
    choice = inputs.choice()
    with observed(settings) as profile:
        written = None if out is None else (out, _arrays)
        done = run_once(model, choice, settings, _traced, written)
        traced = done.result
        if settings.json:
            print(json.dumps(_as_json(done) | profile_fields(profile)))
            return
        print_table(_COLUMNS, [_cells(summary) for summary in traced.summaries()])
        to_file = f", written to {out}" if out is not None else ""
        note_below(
            f"{len(traced.states)} states of {', '.join(done.batch.origins)} in"
            f" {traced.seconds:.3f} s, backend {done.model.backend.name}, loaded in"
            f" {done.model.load_seconds:.2f} s{to_file}"
        )


def _arrays(traced: _Traced) -> Mapping[str, np.ndarray]:
    return traced.states


def _traced(model: LoadedModel, batch: Batch) -> _Traced:
    started = time.perf_counter()
    states = model.hidden_states(batch.array)
    return _Traced(states, time.perf_counter() - started)


def _cells(summary: StateSummary) -> list[str]:
    numbers = (summary.mean, summary.std, summary.min, summary.max)
    return [
        summary.name,
        *(f"{number:.4g}" for number in numbers),
        f"{summary.non_finite:.2%}" if summary.non_finite else "0",
        f"{summary.norm:.4g}",
        summary.type,
    ]


def _as_json(done: SingleRun[_Traced]) -> dict[str, object]:
    traced = done.result
    return {
        **done.json_fields(),
        "states": [_summary_as_json(summary) for summary in traced.summaries()],
        "timings": {"load_s": done.model.load_seconds, "trace_s": traced.seconds},
    }


def _summary_as_json(summary: StateSummary) -> dict[str, object]:
    return {
        key: json_values(np.array(value)) if isinstance(value, float) else value
        for key, value in asdict(summary).items()
    }
