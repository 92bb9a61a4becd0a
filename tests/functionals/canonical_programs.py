"""Programs in the form in which patterns are matched, and the calls found in them."""

from __future__ import annotations

from collections.abc import Callable

from fuzzing.differential import evaluate
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.functionals.matching import pattern
from gptrs.ir import Program
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.fusion import FoundCall, find_calls
from gptrs.optimizer.pipeline import Pipeline


def canonical(function: Callable[..., Tensor], *types: str) -> Program:
    """The program of a function of tensors, as a backend's passes get to see it."""
    leaves = [Argument(parse_type(text), place, None) for place, text in enumerate(types)]
    result = function(*map(Tensor, leaves))
    program = GraphSlice([result.source]).lower(leaves)
    return Pipeline(evaluate=evaluate, verify=True).before_folding(program)


def found_calls(name: str, function: Callable[..., Tensor], *types: str) -> list[FoundCall]:
    region = canonical(function, *types).main.body
    return find_calls(pattern(name).evaluated_by(evaluate), region)


def one(name: str, function: Callable[..., Tensor], *types: str) -> FoundCall:
    found = found_calls(name, function, *types)
    assert len(found) == 1
    return found[0]
