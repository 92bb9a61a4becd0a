"""`gptrs validate`: compares a model with a reference, such as transformers, or another model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import UsageError
from gptrs.plugins.references import reference_names, reference_of
from gptrs_cli.imported.inspection import ImportOptions, importer_for
from gptrs_cli.imported.validation import validate_import
from gptrs_cli.loading import loaded_model, observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, ModelOption, Settings, model_shown
from gptrs_cli.options.text_input import InputOptions
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.validate.against import (
    AgainstOptions,
    compare,
    print_comparison,
    told_comparison,
)
from gptrs_cli.validate.report import Outcome, print_outcome, told_outcome
from gptrs_observe.compare.validation import MADE_UP_TOKENS, ValidationOptions
from gptrs_observe.compare.validation import validate as validate_model
from gptrs_runtime.model_inputs import batch_of


class CheckOptions(Struct, frozen=True):
    """The values to compare, and the tolerance."""

    count: Annotated[
        int,
        typer.Option("--inputs", metavar="N", min=1, help="Draw N random inputs if none is given."),
    ] = 2
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=0,
            help="Also compare N greedy tokens of language models.",
        ),
    ] = 32
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also compare the hidden states.")
    ] = False
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "Compare with this reference of a plugin.  [default: the best for the kind of the "
            "model; `torch`, which needs torch and transformers, takes every kind]",
            metavar="NAME",
            names=reference_names,
        ),
    ] = None
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Tolerated error, relative to the range of the values.",
        ),
    ] = 1e-4


@command_options(*MODEL)
def validate(
    *,
    model: ModelOption = None,
    inputs: InputOptions,
    checks: CheckOptions,
    imported: ImportOptions,
    other: AgainstOptions,
    settings: Settings,
) -> None:
    """Compare a model with a reference, or with another model.

    The reference is another implementation on the same weights: transformers in torch, or one from
    a plugin. Exits with 1 if they differ by more than the tolerance. With `--against`, which needs
    neither, it reports how far a model is from another one, such as a quantized model from its
    original. For imported models, `--against` takes a file of outputs, another model, or a backend;
    without it, ONNX files are compared with ONNX Runtime.
    """
    importer = importer_for(model, imported)
    if model is not None and importer is not None:
        _validate_import(model, importer, other, inputs, imported, checks, settings)
        return
    if other.against is not None:
        _compare(model, other, inputs, settings)
        return
    other.require_unused()
    choice = inputs.choice(checks.count, MADE_UP_TOKENS)
    options = ValidationOptions(checks.tolerance, checks.max_tokens, checks.per_layer)
    with observed(settings) as profile:
        with Waiting(f"loading {model_shown(model)}") as waiting:
            loaded = loaded_model(model, settings)
            batch = batch_of(loaded, choice)
            waiting.now(f"loading {model_shown(model)} with its reference")
            name, reference = reference_of(loaded, checks.reference)
            waiting.now(f"running on {loaded.backend.name}, and `{name}`")
            started = time.perf_counter()
            with compilation_shown(loaded.backend, waiting):
                found = validate_model(loaded, reference, batch, options)
        seconds = time.perf_counter() - started
        outcome = Outcome(loaded, name, reference.versions, batch.origins, found, seconds)
        if settings.json:
            print_result(told_outcome(outcome, profile_of(profile)))
        else:
            print_outcome(outcome)
    if not found.agrees:
        raise typer.Exit(1)


def _validate_import(
    model: Path,
    importer: str,
    other: AgainstOptions,
    inputs: InputOptions,
    imported: ImportOptions,
    checks: CheckOptions,
    settings: Settings,
) -> None:
    if replace(checks, tolerance=0) != CheckOptions(tolerance=0) or other != AgainstOptions(
        against=other.against
    ):
        raise UsageError(
            "only the outputs of an imported model can be compared",
            hint="leave all but --against, --input, --tokens, --seed and --tolerance out",
        )
    tolerance = ValidationOptions(checks.tolerance).tolerance
    with observed(settings) as profile:
        outcome = validate_import(
            model, importer, other.against, inputs.choice(), imported, tolerance, settings
        )
        if settings.json:
            print_result(outcome.told(profile_of(profile)))
        else:
            outcome.print()
    if not outcome.agrees:
        raise typer.Exit(1)


def _compare(
    model: Path | None, other: AgainstOptions, inputs: InputOptions, settings: Settings
) -> None:
    if inputs != InputOptions():
        raise UsageError(
            "the inputs of one run are too few to compare two models", hint="use `--text FILE`"
        )
    with observed(settings) as profile:
        outcome = compare(model, other, settings)
        if settings.json:
            print_result(told_comparison(*outcome, profile_of(profile)))
        else:
            print_comparison(*outcome)
