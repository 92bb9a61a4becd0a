"""The findings of `gptrs validate` as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gptrs_cli.terminal.streams import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.compare.agreement import Agreement
from gptrs_observe.compare.validation import Validation
from gptrs_observe.results import Agreement as AgreementResult
from gptrs_observe.results import GreedyAgreement, Validate
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Profile, RunTimings

_COLUMNS = ("compared", "max error", "mean error", "of the range", "result", "type")


class Outcome(Struct, frozen=True):
    """Differences between `model` and the reference on `origins`; `versions` are of libraries."""

    model: LoadedModel
    reference: str
    """The name of the reference."""
    versions: Mapping[str, str]
    origins: tuple[str, ...]
    found: Validation
    seconds: float


def print_outcome(outcome: Outcome) -> None:
    """Print a line for each compared array, and the verdict."""
    found = outcome.found
    compared = [found.images, found.output, *found.layers]
    print_agreements(
        [agreement_cells(one, found.holds(one)) for one in compared if one is not None]
    )
    print()
    for line in _lines(found):
        print(line)
    versions = "".join(f" {name} {version}," for name, version in outcome.versions.items())
    verdict = "agrees" if found.agrees else "DISAGREES"
    note_below(
        f"`{outcome.model.name}` {verdict} with `{outcome.reference}` on"
        f" {', '.join(outcome.origins)}; tolerance {found.tolerance:g} of the range, backend"
        f" {outcome.model.backend.name},{versions} {outcome.seconds:.1f} s"
    )


def print_agreements(rows: Sequence[Sequence[str]]) -> None:
    """Print a table of rows from `agreement_cells`."""
    print_table(_COLUMNS, rows)


def agreement_cells(one: Agreement, holds: bool) -> list[str]:
    """Return the row of a table for a compared array."""
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
        f"{greedy.equal} of {greedy.count} before the first other one, which the reference gives"
        f" {greedy.gap:.3g} of the range less: {why}"
    )


def told_outcome(outcome: Outcome, profile: Profile) -> Validate:
    """Return the `--json` form."""
    found, model, greedy = outcome.found, outcome.model, outcome.found.greedy
    return Validate(
        model=model.name,
        kind=model.kind,
        backend=model.backend.name,
        reference=dict(outcome.versions),
        inputs=list(outcome.origins),
        tolerance=found.tolerance,
        agrees=found.agrees,
        output=_told(found, found.output),
        images=found.images and _told(found, found.images),
        top1=found.top1,
        top5=found.top5,
        cosine=found.cosine,
        greedy=greedy
        and GreedyAgreement(
            tokens=greedy.count, equal=greedy.equal, gap=greedy.gap, agrees=found.greedy_holds
        ),
        layers=[_told(found, layer) for layer in found.layers],
        first_layer=found.first_layer and found.first_layer.name,
        timings=RunTimings(load_s=model.load_seconds, validate_s=outcome.seconds),
        profile=profile,
    )


def _told(found: Validation, one: Agreement) -> AgreementResult:
    return AgreementResult.of(one, found.holds(one))
