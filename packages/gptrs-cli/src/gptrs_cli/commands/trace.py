"""`gptrs trace`: run a model once, show what it computes, compare it with another run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from msgspec import UNSET

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs_cli.loading import loaded_model
from gptrs_cli.observation import observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.inputs import InputOptions
from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.single_run import SingleRun, run_once
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import note, note_below, printable
from gptrs_cli.trace.options import AgainstOptions, ReadOptions
from gptrs_cli.trace.reference import ReferenceValues, reference_values
from gptrs_cli.trace.report import Traced, print_traced, told_comparison
from gptrs_observe.compare.error_picture import error_picture
from gptrs_observe.compare.trace_comparison import TraceComparison, compare_traces
from gptrs_observe.hooks import module_names
from gptrs_observe.results import Trace, TraceModules
from gptrs_observe.traced_values import hidden_states_of, logit_lens, traced_values
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import Batch
from gptrs_runtime.results import Profile, RunTimings


@command_options(*MODEL)
def trace(
    *,
    model: ModelOption = None,
    inputs: InputOptions,
    read: ReadOptions,
    comparison: AgainstOptions,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write each value under its name as .safetensors, .npz or .gptrsten.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a model once and print statistics of its hidden states.

    They come in the order of computation. The names are those of transformers' `hidden_states`:
    embeddings, layer.0, layer.1, and so on. Modules are read under their own names.
    """
    comparison.check()
    if read.names:
        _print_names(model, settings)
        return
    choice = inputs.choice()
    against = None if comparison.against is None else reference_values(comparison.against)

    def run(loaded: LoadedModel, batch: Batch) -> Traced:
        return _traced(loaded, batch, read, (against, comparison))

    with observed(settings) as profile:
        written = None if out is None else (out, _arrays)
        done = run_once(model, choice, settings, run, written)
        found = done.result.comparison
        if found is not None and comparison.svg is not None:
            with atomic_file(comparison.svg, OutputFileError) as file:
                file.write(error_picture(found).encode())
            note(f"wrote {comparison.svg}")
        if settings.json:
            print_result(_told(done, profile_of(profile)))
        else:
            print_traced(done.result)
            note_below(_summary(done, out))
    if found is not None and found.first_mismatch is not None:
        raise typer.Exit(1)


def _traced(
    model: LoadedModel,
    batch: Batch,
    read: ReadOptions,
    comparison: tuple[ReferenceValues | None, AgainstOptions],
) -> Traced:
    started = time.perf_counter()
    inputs = model.checked_inputs(batch.array)
    values = traced_values(model, inputs, read.request)
    states = hidden_states_of(values)
    lens = {} if read.lens is None else logit_lens(model, states, read.lens)
    seconds = time.perf_counter() - started
    against, options = comparison
    found: TraceComparison | None = None
    if against is not None:
        found = compare_traces(values, against(model, inputs, values), options.tolerance)
        found = found.up_to_mismatch() if options.stop else found
    return Traced(values, seconds, lens, found)


def _arrays(traced: Traced) -> Mapping[str, np.ndarray]:
    return traced.values


def _print_names(model: Path | None, settings: Settings) -> None:
    names = module_names(loaded_model(model, settings))
    if settings.json:
        print_result(TraceModules(modules=names))
    else:
        print("\n".join(map(printable, names)))


def _summary(done: SingleRun[Traced], out: Path | None) -> str:
    traced = done.result
    to_file = f", written to {out}" if out is not None else ""
    return (
        f"{len(traced.values)} states of {', '.join(done.batch.origins)} in"
        f" {traced.seconds:.3f} s, backend {done.model.backend.name}, loaded in"
        f" {done.model.load_seconds:.2f} s{to_file}"
    )


def _told(done: SingleRun[Traced], profile: Profile) -> Trace:
    traced, found = done.result, done.result.comparison
    return Trace(
        model=done.model.name,
        kind=done.model.kind,
        backend=done.model.backend.name,
        inputs=list(done.batch.origins),
        states=traced.summaries(),
        logit_lens={name: list(tokens) for name, tokens in traced.lens.items()} or UNSET,
        comparison=UNSET if found is None else told_comparison(found),
        timings=RunTimings(load_s=done.model.load_seconds, trace_s=traced.seconds),
        profile=profile,
    )
