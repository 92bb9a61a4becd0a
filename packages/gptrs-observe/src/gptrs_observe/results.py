"""Results of commands that look at models and programs, and measure them; as `--json` prints them.

See `gptrs_runtime.results`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from gptrs.ir.tensor_type import TensorType
from gptrs_observe.attribution import LensToken
from gptrs_observe.compare.agreement import Agreement as Errors
from gptrs_observe.compare.agreement import StateSummary
from gptrs_observe.measure.serving_load import LoadFigures, Spread
from gptrs_observe.measure.step_work import Row
from gptrs_observe.programs.report import (
    MAX_JSON_ELEMENTS,
    DeclinedRewrite,
    NamedType,
    json_values,
)
from gptrs_runtime.results import Inputs, Number, OfModel, Profile, Result, RunTimings


class ComparedValue(Struct, frozen=True, kw_only=True):
    """A value compared with the reference; errors are relative to the range of the reference."""

    name: str
    type: str
    max_error: Number
    mean_error: Number
    agrees: bool


class ComparedTrace(Struct, frozen=True, kw_only=True):
    """With `--against`: the differences from the values of another run."""

    tolerance: Number
    agrees: bool
    first_mismatch: str | None
    without_counterpart: list[str]
    values: list[ComparedValue]
    """In the order of computation; with `--stop-on-first-mismatch` up to that."""


class Trace(Inputs, Result, frozen=True, kw_only=True, tag="gptrs.trace/1"):
    """`gptrs trace`."""

    states: list[StateSummary]
    logit_lens: dict[str, list[LensToken]] | UnsetType = UNSET
    """The likeliest next tokens at each hidden state, with `--logit-lens`."""
    comparison: ComparedTrace | UnsetType = UNSET
    timings: RunTimings
    profile: Profile = UNSET


class TraceModules(Result, frozen=True, kw_only=True, tag="gptrs.trace.modules/1"):
    """`gptrs trace --modules`."""

    modules: list[str]


class SteeredLayer(Struct, frozen=True, kw_only=True):
    """A vector that was learned."""

    layer: str
    width: int
    norm: Number
    separated: Number
    """Share of pairs that the vector separates, each pair left out in turn."""


class Steer(OfModel, Result, frozen=True, kw_only=True, tag="gptrs.steer/1"):
    """`gptrs steer`."""

    pairs: int
    file: str
    layers: list[SteeredLayer]


class ProgramResult(Struct, frozen=True, kw_only=True):
    """A result of a program."""

    name: str
    dtype: str
    shape: list[int]
    values: Any = UNSET
    """A nested list, of at most 64 elements; a complex number is the list of its parts."""


def program_result(name: str, array: np.ndarray) -> ProgramResult:
    """Return a result or a value, with its elements if they are few."""
    dtype = "string" if array.dtype == object else TensorType.of(array).dtype.name
    values = json_values(array) if array.size <= MAX_JSON_ELEMENTS else UNSET
    return ProgramResult(name=name, dtype=dtype, shape=list(array.shape), values=values)


class Run(Result, frozen=True, kw_only=True, tag="gptrs.run/1"):
    """`gptrs run`."""

    backend: str
    results: list[ProgramResult]
    seconds: float
    profile: Profile = UNSET


class Agreement(Struct, frozen=True, kw_only=True):
    """The distance of an array from the reference."""

    name: str
    type: str
    max_error: Number
    mean_error: Number
    range: Number
    relative_max_error: Number
    relative_mean_error: Number
    agrees: bool

    @classmethod
    def of(cls, one: Errors, agrees: bool) -> Agreement:
        """Return errors in the form of results; `agrees`: they are within a tolerance."""
        return cls(
            name=one.name,
            type=one.type,
            max_error=one.max_error,
            mean_error=one.mean_error,
            range=one.scale,
            relative_max_error=one.relative_max_error,
            relative_mean_error=one.relative_mean_error,
            agrees=agrees,
        )


class GreedyAgreement(Struct, frozen=True, kw_only=True):
    """Tokens that were chosen greedily: the first `equal` of `tokens` are the same."""

    tokens: int
    equal: int
    gap: Number
    agrees: bool


class Validate(OfModel, Result, frozen=True, kw_only=True, tag="gptrs.validate/1"):
    """`gptrs validate`."""

    reference: dict[str, str]
    """The versions of the reference's libraries."""
    inputs: list[str]
    """The origin of each row: a file, `tokens`, `prompt` or `random input SEED`."""
    tolerance: float
    agrees: bool
    output: Agreement
    images: Agreement | None
    top1: Number | None
    top5: Number | None
    cosine: Number | None
    greedy: GreedyAgreement | None
    layers: list[Agreement]
    first_layer: str | None
    """The first state beyond the tolerance."""
    timings: RunTimings
    profile: Profile = UNSET


class ValidateAgainst(Result, frozen=True, kw_only=True, tag="gptrs.validate.against/1"):
    """`gptrs validate --against`: null where it does not apply to the kind of models."""

    model: str
    weights: str | None
    """The type of `--weights`."""
    reference: str
    backend: str
    kl: float | None = None
    """The mean divergence of the next token, in nats."""
    kl_error: float | None = None
    kl_worst: float | None = None
    """99 % of the positions are below it."""
    top1: float | None = None
    perplexity: float | None = None
    reference_perplexity: float | None = None
    scored: int | None = None
    window: int | None = None
    texts: int | None = None
    cosine: float | None = None
    least_cosine: float | None = None
    timings: RunTimings
    profile: Profile = UNSET


class ValidateOutputs(OfModel, Result, frozen=True, kw_only=True, tag="gptrs.validate.outputs/1"):
    """`gptrs validate` of an imported model; `kind` is the importer."""

    reference: str
    inputs: list[str]
    """The origin of each row: a file, `tokens` or `random input SEED`."""
    tolerance: float
    agrees: bool
    outputs: list[Agreement]
    timings: RunTimings
    profile: Profile = UNSET


class Bench(Result, frozen=True, kw_only=True, tag="gptrs.bench/1"):
    """`gptrs bench`."""

    machine: dict[str, Any]
    model: str
    backend: str
    precision: str
    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    rows: list[Row]


class LoadRatio(Struct, frozen=True):
    """Ratios to the fewest streams, and of HTTP to the engine, round by round."""

    streams: int
    of_fewest: Spread
    """Tokens per second of the engine, relative to those with the fewest streams."""
    of_engine: Spread
    """Tokens per second over HTTP, relative to those of the engine."""
    later_ms: Spread
    """Delay of first tokens over HTTP relative to the engine; in milliseconds."""


class BenchServe(Result, frozen=True, kw_only=True, tag="gptrs.bench.serve/1"):
    """`gptrs bench serve`."""

    model: str
    backend: str
    precision: str
    rounds: int
    prompt_tokens: int
    new_tokens: int
    rows: list[LoadFigures]
    ratios: list[LoadRatio]


class InspectProgram(Result, frozen=True, kw_only=True, tag="gptrs.inspect.program/1"):
    """`gptrs inspect` of a program; `work` is null where it depends on symbols."""

    program: str
    instructions: int
    inputs: list[NamedType]
    results: list[NamedType]
    symbols: list[str]
    functions: dict[str, int]
    unused: list[str]
    work: dict[str, Any] | None


class InspectPass(
    Result, frozen=True, kw_only=True, tag="gptrs.inspect.pass/1", rename={"name": "pass"}
):
    """`gptrs inspect --why NAME`."""

    name: str
    instructions: dict[str, int]
    """The number of instructions `before` and `after` the pass."""
    fired: dict[str, int]
    declined: list[DeclinedRewrite]
