"""`gptrs trace`: runs a model once, shows its hidden states, and compares them with another run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from msgspec import UNSET, Struct, field

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.references import reference_names, reference_of
from gptrs_cli.loading import loaded_model, observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, ModelOption, Settings
from gptrs_cli.options.text_input import InputOptions
from gptrs_cli.single_run import SingleRun, run_once
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note, note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.attribution import (
    LensToken,
    TraceRequest,
    hidden_states_of,
    logit_lens,
    traced_values,
)
from gptrs_observe.compare.agreement import StateSummary, summarize
from gptrs_observe.compare.error_picture import error_picture
from gptrs_observe.compare.validation import TraceComparison, compare_traces
from gptrs_observe.hooks import module_names
from gptrs_observe.results import ComparedTrace, ComparedValue, Trace, TraceModules
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import Batch
from gptrs_runtime.results import Profile, RunTimings

# The options of `gptrs trace`: the values to read, and the comparison.


class ReadOptions(Struct, frozen=True):
    """The values to read."""

    names: Annotated[
        bool, option("--modules", "Print the names of all modules without running the model.")
    ] = False
    modules: Annotated[
        list[str],
        option(
            "--module",
            "Also read the inputs and outputs of these modules; `h.*.mlp` is a pattern. Can be "
            "repeated.",
            metavar="NAME",
        ),
    ] = field(default_factory=list[str])
    attention: Annotated[
        bool, option("--attention", "Also read the attention weights, [B, H, T, T] per layer.")
    ] = False
    lens: Annotated[
        int | None,
        option(
            "--logit-lens",
            "Print the N likeliest next tokens of each hidden state (logit lens).",
            metavar="N",
            min=1,
        ),
    ] = None

    @property
    def request(self) -> TraceRequest:
        """Return the options as the runtime takes them."""
        return TraceRequest(tuple(self.modules), self.attention)


class AgainstOptions(Struct, frozen=True):
    """The comparison with another run."""

    against: Annotated[
        str | None,
        option(
            "--against",
            "Compare with a file that an earlier `--out` wrote, or with a reference such as "
            "`torch`, which runs the model in transformers. Exits with 1 where values differ.",
            metavar="FILE|REFERENCE",
            names=reference_names,
        ),
    ] = None
    tolerance: Annotated[
        float,
        option(
            "--tolerance",
            "Tolerated error, relative to the range of the values.",
            metavar="X",
            min=0,
        ),
    ] = 1e-4
    stop: Annotated[
        bool,
        option("--stop-on-first-mismatch", "Stop the report at the first value that differs."),
    ] = False
    svg: Annotated[
        Path | None, option("--svg", "Plot the errors by depth in an SVG file.", metavar="FILE")
    ] = None

    def check(self) -> None:
        """Raise UsageError for options that need `--against`."""
        if self.against is None and (self.stop or self.svg is not None):
            raise UsageError(
                "`--stop-on-first-mismatch` and `--svg` are for a comparison",
                hint="add `--against FILE` or `--against torch`",
            )


# The reference of a trace: a file, or a reference of a plugin.


Values = Mapping[str, np.ndarray]
ReferenceValues = Callable[[LoadedModel, np.ndarray, Values], Values]
"""Called with the model, its inputs and our values; returns the reference values by name."""


def reference_values(against: str) -> ReferenceValues:
    """Return a reader of the reference values, after checking that there are any.

    `against` is a file, or the name of a reference. Raises the errors of reading an archive.
    """
    if against in reference_names() and not Path(against).exists():

        def of_reference(model: LoadedModel, inputs: np.ndarray, ours: Values) -> Values:
            _, reference = reference_of(model, against)
            states = reference.hidden_states(inputs)
            # By order, not by name: both sides list hidden states in the order of computation.
            names = list(hidden_states_of(ours))
            if len(names) != len(states):
                raise ModelError(
                    f"`{model.name}` has {len(names)} hidden states here,"
                    f" {len(states)} in the reference `{against}`"
                )
            modules = dict.fromkeys(name.rpartition(".")[0] for name in ours if name not in names)
            found = dict(zip(names, states, strict=True))
            return found | dict(reference.modules(inputs, modules))

        return of_reference
    archive = open_archive(Path(against))

    def of_file(_: LoadedModel, __: np.ndarray, ours: Values) -> Values:
        # A file may have fewer values: those without a counterpart are reported as such.
        known = set(archive.names())
        return {name: archive.read(name) for name in ours if name in known}

    return of_file


# The reports of `gptrs trace`: values, the logit lens, and a comparison, as tables or JSON.


_SUMMARY = ("state", "mean", "std", "min", "max", "non-finite", "norm", "type")
_COMPARISON = ("state", "largest error", "mean error", "", "type")
_SHOWN = 4
"""Tokens per state in the table."""


class Traced(Struct, frozen=True):
    """The values of a run by name, and the results made from them."""

    values: Mapping[str, np.ndarray]
    seconds: float
    lens: Mapping[str, Sequence[LensToken]]
    comparison: TraceComparison | None

    def summaries(self) -> list[StateSummary]:
        """Return the statistics of each value."""
        return [summarize(name, value) for name, value in self.values.items()]


def print_traced(traced: Traced) -> None:
    """Print the comparison, or else the statistics, and then the logit lens."""
    if traced.comparison is None:
        print_table(_SUMMARY, [_cells(summary) for summary in traced.summaries()])
    else:
        _print_comparison(traced.comparison)
    if traced.lens:
        print()
        most = min(_SHOWN, max(map(len, traced.lens.values())))
        columns = ("state", *(f"token {number}" for number in range(1, most + 1)))
        rows = [
            [name, *(_token(token) for token in tokens[:most])]
            for name, tokens in traced.lens.items()
        ]
        print_table(columns, rows)


def _print_comparison(comparison: TraceComparison) -> None:
    rows = [
        [
            value.name,
            f"{value.relative_max_error:.2e}",
            f"{value.relative_mean_error:.2e}",
            "" if comparison.holds(value) else "differs",
            value.type,
        ]
        for value in comparison.values
    ]
    print_table(_COMPARISON, rows)
    first = comparison.first_mismatch
    if first is None:
        print(f"\nall {len(comparison.values)} agree to {comparison.tolerance:g} of their range")
    else:
        print(f"\nthe first that differs by more than {comparison.tolerance:g}: {first.name}")
    if comparison.alone:
        print(f"{len(comparison.alone)} have no counterpart, such as {comparison.alone[0]}")


def _token(token: LensToken) -> str:
    shown = str(token.token) if token.text is None else printable(repr(token.text))
    return f"{shown} {token.probability:.0%}"


def _cells(summary: StateSummary) -> list[str]:
    numbers = (summary.mean, summary.std, summary.min, summary.max)
    return [
        summary.name,
        *(f"{number:.4g}" for number in numbers),
        f"{summary.non_finite:.2%}" if summary.non_finite else "0",
        f"{summary.norm:.4g}",
        summary.type,
    ]


def told_comparison(comparison: TraceComparison) -> ComparedTrace:
    """Return a comparison in the form of results."""
    first = comparison.first_mismatch
    return ComparedTrace(
        tolerance=comparison.tolerance,
        agrees=first is None,
        first_mismatch=None if first is None else first.name,
        without_counterpart=list(comparison.alone),
        values=[
            ComparedValue(
                name=value.name,
                type=value.type,
                max_error=value.relative_max_error,
                mean_error=value.relative_mean_error,
                agrees=comparison.holds(value),
            )
            for value in comparison.values
        ],
    )


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
            "Write the values by name to this file: .safetensors, .npz or .gptrsten.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a model once and print statistics of its hidden states.

    They are in the order of computation. Their names follow the `hidden_states` of transformers:
    embeddings, layer.0, layer.1, and so on. Modules keep their own names.
    """
    # Before the model is loaded.
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
    # At the end, so that the report is complete: the exit code alone says little.
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
    # Before the comparison: running torch is not part of the time of a trace.
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
