"""Compares a model with transformers for `gptrs validate`: prints how far they are apart."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from gptrs.checkpoint.models.hf_directory import HfDirectory
from gptrs.errors import ModelError, UsageError
from gptrs.runtime.compare.agreement import Agreement
from gptrs.runtime.compare.validation import Validation, ValidationOptions, validate
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.model_inputs import InputChoice, batch_of
from gptrs.runtime.observe.profile import Profile
from gptrs.runtime.programs.value_text import json_values
from gptrs_cli.model_loading import loaded_model
from gptrs_cli.observation import profile_fields
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import Waiting, note
from gptrs_cli.terminal.tables import print_table

if TYPE_CHECKING:
    from gptrs_cli.validate.torch_reference import TorchReference

_COLUMNS = ("compared", "max error", "mean error", "of the range", "result", "type")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    model: Path | None
    inputs: InputChoice
    options: ValidationOptions


@dataclass(frozen=True)
class _Outcome:
    model: LoadedModel
    versions: Mapping[str, str]
    origins: tuple[str, ...]
    found: Validation
    seconds: float


def run_and_print(request: Request, settings: Settings, profile: Profile | None = None) -> bool:
    """Compare and print; whether the two agree. What is wrong with the request is said before."""
    what = f"`{request.model}`" if request.model else "the demo model"
    with Waiting("importing torch and transformers") as waiting:
        reference_class = _torch_reference()
        waiting.now(f"loading {what}")
        model = loaded_model(request.model, settings)
        _require_folder(model)
        batch = batch_of(model, request.inputs)
        waiting.now(f"loading {what} with transformers")
        reference = reference_class(model)
        waiting.now(f"running on {model.backend.name}, and in torch")
        started = time.perf_counter()
        with compilation_shown(model.backend, waiting):
            found = validate(model, reference, batch, request.options)
    seconds = time.perf_counter() - started
    outcome = _Outcome(model, reference.versions, batch.origins, found, seconds)
    if settings.json:
        print(json.dumps(_as_json(outcome) | profile_fields(profile)))
    else:
        _print(outcome)
    return found.agrees


def _torch_reference() -> type[TorchReference]:
    try:
        module = importlib.import_module("gptrs_cli.validate.torch_reference")
    except ImportError as missing:
        raise UsageError(
            f"`gptrs validate` needs torch and transformers: {missing}",
            hint="pip install 'gptrs-cli[torch]'",
        ) from missing
    return cast("type[TorchReference]", module.TorchReference)


def _require_folder(model: LoadedModel) -> None:
    if not isinstance(model.files, HfDirectory):
        raise ModelError(
            f"`{model.name}` is a file that transformers does not read",
            hint="compare the folder it was made of, or make one with `gptrs convert`",
        )


def _print(outcome: _Outcome) -> None:
    found = outcome.found
    compared = [found.images, found.output, *found.layers]
    rows = [_cells(found, one) for one in compared if one is not None]
    print_table(_COLUMNS, rows)
    print()
    for line in _lines(found):
        print(line)
    # Results and notes go to different streams, and must not appear in another order.
    sys.stdout.flush()
    versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    verdict = "agrees" if found.agrees else "DISAGREES"
    note(
        f"`{outcome.model.name}` {verdict} with transformers on {', '.join(outcome.origins)};"
        f" tolerance {found.tolerance:g} of the range, backend {outcome.model.backend.name},"
        f" {versions}, {outcome.seconds:.1f} s"
    )


def _cells(found: Validation, one: Agreement) -> list[str]:
    return [
        one.name,
        f"{one.max_error:.3g}",
        f"{one.mean_error:.3g}",
        f"{one.relative_max_error:.3g}",
        "ok" if found.holds(one) else "BEYOND",
        one.type,
    ]


def _lines(found: Validation) -> Iterator[str]:
    if found.top1 is not None and found.top5 is not None:
        yield f"the best is the same: {found.top1:.2%}; the best five: {found.top5:.2%}"
    if found.cosine is not None:
        yield f"least cosine of two vectors: {found.cosine:.7f}"
    if found.greedy is not None:
        yield f"greedy tokens: {_greedy(found)}"
    if found.first_layer is not None:
        yield f"first state beyond the tolerance: {found.first_layer.name}"


def _greedy(found: Validation) -> str:
    greedy = found.greedy
    assert greedy is not None
    if greedy.equal == greedy.count:
        return f"all {greedy.count} are the same"
    why = "where two are equally good" if found.greedy_holds else "BEYOND"
    return (
        f"{greedy.equal} of {greedy.count} before the first other one, which transformers gives"
        f" {greedy.gap:.3g} of the range less: {why}"
    )


def _as_json(outcome: _Outcome) -> dict[str, object]:
    found, model = outcome.found, outcome.model
    fields: dict[str, object] = {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "reference": dict(outcome.versions),
        "inputs": list(outcome.origins),
        "tolerance": found.tolerance,
        "agrees": found.agrees,
        "output": _agreement_as_json(found, found.output),
        "images": found.images and _agreement_as_json(found, found.images),
        "top1": _number(found.top1),
        "top5": _number(found.top5),
        "cosine": _number(found.cosine),
        "greedy": _greedy_as_json(found),
        "layers": [_agreement_as_json(found, layer) for layer in found.layers],
        "first_layer": found.first_layer and found.first_layer.name,
    }
    return fields | {"timings": {"load_s": model.load_seconds, "validate_s": outcome.seconds}}


def _agreement_as_json(found: Validation, one: Agreement) -> dict[str, object]:
    return {
        "name": one.name,
        "type": one.type,
        "max_error": _number(one.max_error),
        "mean_error": _number(one.mean_error),
        "range": _number(one.scale),
        "relative_max_error": _number(one.relative_max_error),
        "relative_mean_error": _number(one.relative_mean_error),
        "agrees": found.holds(one),
    }


def _greedy_as_json(found: Validation) -> dict[str, object] | None:
    greedy = found.greedy
    if greedy is None:
        return None
    return {
        "tokens": greedy.count,
        "equal": greedy.equal,
        "gap": _number(greedy.gap),
        "agrees": found.greedy_holds,
    }


def _number(value: float | None) -> object:
    """What JSON can hold: infinities and NaN as words."""
    return None if value is None else json_values(np.array(value))
