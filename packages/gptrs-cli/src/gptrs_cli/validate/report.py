"""The findings of `gptrs validate`, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_cli.terminal.stderr import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.compare.agreement import Agreement
from gptrs_observe.compare.validation import Validation
from gptrs_observe.programs.value_text import json_values
from gptrs_runtime.loaded_model import LoadedModel

_COLUMNS = ("compared", "max error", "mean error", "of the range", "result", "type")


@dataclass(frozen=True)
class Outcome:
    """How far `model` is from the reference, whose libraries have `versions`, on `origins`."""

    model: LoadedModel
    versions: Mapping[str, str]
    origins: tuple[str, ...]
    found: Validation
    seconds: float


def print_outcome(outcome: Outcome) -> None:
    """Print a line for each array that was compared, and the verdict."""
    found = outcome.found
    compared = [found.images, found.output, *found.layers]
    print_agreements(
        [agreement_cells(one, found.holds(one)) for one in compared if one is not None]
    )
    print()
    for line in _lines(found):
        print(line)
    versions = ", ".join(f"{name} {version}" for name, version in outcome.versions.items())
    verdict = "agrees" if found.agrees else "DISAGREES"
    note_below(
        f"`{outcome.model.name}` {verdict} with transformers on {', '.join(outcome.origins)};"
        f" tolerance {found.tolerance:g} of the range, backend {outcome.model.backend.name},"
        f" {versions}, {outcome.seconds:.1f} s"
    )


def print_agreements(rows: Sequence[Sequence[str]]) -> None:
    """Print a table of rows that `agreement_cells` made."""
    print_table(_COLUMNS, rows)


def agreement_cells(one: Agreement, holds: bool) -> list[str]:
    """Return the row of a table for an array that was compared."""
    return [
        one.name,
        f"{one.max_error:.3g}",
        f"{one.mean_error:.3g}",
        f"{one.relative_max_error:.3g}",
        "ok" if holds else "BEYOND",
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


def outcome_fields(outcome: Outcome) -> dict[str, object]:
    """Return the object that `--json` prints."""
    found, model = outcome.found, outcome.model
    fields: dict[str, object] = {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "reference": dict(outcome.versions),
        "inputs": list(outcome.origins),
        "tolerance": found.tolerance,
        "agrees": found.agrees,
        "output": agreement_as_json(found.output, found.holds(found.output)),
        "images": found.images and agreement_as_json(found.images, found.holds(found.images)),
        "top1": _number(found.top1),
        "top5": _number(found.top5),
        "cosine": _number(found.cosine),
        "greedy": _greedy_as_json(found),
        "layers": [agreement_as_json(layer, found.holds(layer)) for layer in found.layers],
        "first_layer": found.first_layer and found.first_layer.name,
    }
    return fields | {"timings": {"load_s": model.load_seconds, "validate_s": outcome.seconds}}


def agreement_as_json(one: Agreement, holds: bool) -> dict[str, object]:
    """Return the fields of an array that was compared."""
    return {
        "name": one.name,
        "type": one.type,
        "max_error": _number(one.max_error),
        "mean_error": _number(one.mean_error),
        "range": _number(one.scale),
        "relative_max_error": _number(one.relative_max_error),
        "relative_mean_error": _number(one.relative_mean_error),
        "agrees": holds,
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
    """Return a value that JSON can hold: infinities and NaN as words."""
    return None if value is None else json_values(np.array(value))
