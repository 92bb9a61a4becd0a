"""Derivative rules of branches, loops and calls, which differentiate regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gptrs.capture import primitives as p
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import (
    Cotangents,
    Step,
    rule_of_many,
    run_region,
    varying,
    zeros,
)
from gptrs.ir.ops.control_flow import Call, Cond, Scan
from gptrs.ir.program import Region


@rule_of_many(Cond)
def _cond(step: Step[Cond], cotangents: Cotangents) -> Cotangents:
    """Run the derivative of the branch taken, which recomputes its values, so nothing is kept."""
    predicate, *operands = step.operands
    wanted = step.wanted[1:]
    given = [each for each in cotangents if each is not None]

    def backward(region: Region) -> Callable[..., Sequence[Tensor]]:
        def body(*tensors: Tensor) -> Sequence[Tensor]:
            inputs, rest = tensors[: len(operands)], iter(tensors[len(operands) :])
            own = [None if each is None else next(rest) for each in cotangents]
            pulled = Linearized(region, step.functions, inputs, wanted).pull(own)
            return [
                zeros(x) if found is None else found
                for x, found, asked in zip(inputs, pulled, wanted, strict=True)
                if asked
            ]

        return body

    then, otherwise = map(backward, step.regions)
    results = iter(p.cond(predicate, then, otherwise, *operands, *given))
    return [None, *(next(results) if asked else None for asked in wanted)]


def _call_forward(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    op: Call = step.op
    body = step.functions[op.function].body
    called = Linearized(body, step.functions, step.operands, step.wanted)
    return called.results, called


@rule_of_many(Call, forward=_call_forward)
def _call(step: Step[Call], cotangents: Cotangents) -> Cotangents:
    called: Linearized = step.kept
    return called.pull(cotangents)


# Loops: the values of each step are stacked, and a second loop runs from the last step to the
# first.


class Loop:
    """A `scan`, with its loop invariants and the values that depend on the differentiated inputs.

    A carried value that the body returns unchanged, such as a weight, is not kept for each step,
    and its cotangents are added up rather than stacked.
    """

    def __init__(self, step: Step[Scan]) -> None:
        (self.body,), op = step.regions, step.op
        self.count = count = op.carry_count
        pairs = zip(self.body.params, self.body.results, strict=False)
        stays = [param is result for param, result in pairs][:count]
        self.moving = [at for at in range(count) if not stays[at]]
        self.varies = varying_carries(self.body, step.wanted, count)
        self.changed = [at for at in self.moving if self.varies[at]]
        self.constant = [at for at in range(count) if stays[at] and self.varies[at]]
        self.scanned = [at for at in range(count, len(self.varies)) if self.varies[at]]


def varying_carries(body: Region, given: Sequence[bool], count: int) -> list[bool]:
    """Return which parameters of a loop body vary in some step; the first `count` are carried."""
    varies = list(given)
    while True:
        results = varying(body, varies)[:count]
        wider = [old or new for old, new in zip(varies[:count], results, strict=True)]
        if wider == varies[:count]:
            return varies
        varies[:count] = wider


def _scan_forward(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    """Run the loop, and also stack the carried values at the start of each step."""
    op: Scan = step.op
    loop = Loop(step)
    carried, scanned = step.operands[: loop.count], step.operands[loop.count :]

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        results = run_region(loop.body, step.functions, tensors)
        return [*results, *(tensors[at] for at in loop.moving)]

    last, stacked = p.scan(body, carried, scanned, op.length, op.reverse)
    own = len(loop.body.results) - loop.count
    return (*last, *stacked[:own]), (loop, stacked[own:])


@rule_of_many(Scan, forward=_scan_forward)
def _scan(step: Step[Scan], cotangents: Cotangents) -> Cotangents:
    loop: Loop
    loop, entered = step.kept
    count, operands = loop.count, step.operands
    of_last, of_stacked = cotangents[:count], cotangents[count:]
    starts = [
        zeros(operands[at]) if (given := of_last[at]) is None else given for at in loop.changed
    ]
    sums = [zeros(operands[at]) for at in loop.constant]
    given = [each for each in of_stacked if each is not None]
    scanned = [*entered, *operands[count:], *given]

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        rest = iter(tensors)
        later = {at: next(rest) for at in loop.changed}
        so_far = [next(rest) for _ in loop.constant]
        inputs = list(operands)
        for at in [*loop.moving, *range(count, len(operands))]:
            inputs[at] = next(rest)
        rows = [None if each is None else next(rest) for each in of_stacked]
        ran = Linearized(loop.body, step.functions, inputs, loop.varies)
        pulled = ran.pull([*(later.get(at) for at in range(count)), *rows])
        found = {
            at: zeros(inputs[at]) if (own := pulled[at]) is None else own
            for at in [*loop.changed, *loop.constant, *loop.scanned]
        }
        added = [p.add(old, found[at]) for old, at in zip(so_far, loop.constant, strict=True)]
        return [
            *(found[at] for at in loop.changed),
            *added,
            *(found[at] for at in loop.scanned),
        ]

    last, stacked = p.scan(body, [*starts, *sums], scanned, step.op.length, not step.op.reverse)
    result: list[Tensor | None] = [None] * len(operands)
    for at, found in zip(
        [*loop.changed, *loop.constant, *loop.scanned], last + stacked, strict=True
    ):
        result[at] = found
    for at in loop.constant:  # also a result of the loop
        extra, summed = of_last[at], result[at]
        if extra is not None and summed is not None:
            result[at] = p.add(summed, extra)
    return result
