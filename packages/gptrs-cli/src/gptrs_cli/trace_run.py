"""Runs a model once for `gptrs trace`: shows what it computes on the way, and writes it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.runtime.compare.state_summary import StateSummary, summarize
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.model_inputs import Batch, InputChoice, batch_of
from gptrs.runtime.observe.profile import Profile
from gptrs.runtime.programs.value_text import json_values
from gptrs_cli.model_loading import loaded_model
from gptrs_cli.observation import profile_fields
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import Waiting, note
from gptrs_cli.terminal.tables import print_table

_COLUMNS = ("state", "mean", "std", "min", "max", "non-finite", "norm", "type")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    model: Path | None
    inputs: InputChoice
    out: Path | None


@dataclass(frozen=True)
class _Traced:
    states: Mapping[str, np.ndarray]
    seconds: float

    def summaries(self) -> Sequence[StateSummary]:
        return [summarize(name, state) for name, state in self.states.items()]


def run_and_print(request: Request, settings: Settings, profile: Profile | None = None) -> None:
    """Run the model and print; what is wrong with the request is said before."""
    if request.out is not None:
        require_writable(request.out)
    what = f"`{request.model}`" if request.model else "the demo model"
    with Waiting(f"loading {what}") as waiting:
        model = loaded_model(request.model, settings)
        waiting.now("reading the input")
        batch = batch_of(model, request.inputs)
        waiting.now(f"running on {model.backend.name}")
        with compilation_shown(model.backend, waiting):
            traced = _traced(model, batch)
        if request.out is not None:
            waiting.now(f"writing `{request.out}`")
            write_archive(request.out, traced.states)
    if settings.json:
        print(json.dumps(_as_json(model, batch, traced) | profile_fields(profile)))
        return
    print_table(_COLUMNS, [_cells(summary) for summary in traced.summaries()])
    written = f", written to {request.out}" if request.out is not None else ""
    # Results and notes go to different streams, and must not appear in another order.
    sys.stdout.flush()
    note(
        f"{len(traced.states)} states of {', '.join(batch.origins)} in {traced.seconds:.3f} s,"
        f" backend {model.backend.name}, loaded in {model.load_seconds:.2f} s{written}"
    )


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


def _as_json(model: LoadedModel, batch: Batch, traced: _Traced) -> dict[str, object]:
    return {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "inputs": list(batch.origins),
        "states": [_summary_as_json(summary) for summary in traced.summaries()],
        "timings": {"load_s": model.load_seconds, "trace_s": traced.seconds},
    }


def _summary_as_json(summary: StateSummary) -> dict[str, object]:
    return {
        key: json_values(np.array(value)) if isinstance(value, float) else value
        for key, value in asdict(summary).items()
    }
