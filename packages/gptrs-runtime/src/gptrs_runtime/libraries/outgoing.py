"""Models and programs on their way to shared libraries: programs optimized, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import combinations
from typing import Final, cast

import numpy as np

from gptrs.backend.contract import Backend, InputRole, OutgoingLibrary, OutgoingProgram, TextCache
from gptrs.capture import ports
from gptrs.capture.backend_calls import to_device, to_host
from gptrs.capture.compilation import compile_program
from gptrs.capture.execute import host_value
from gptrs.capture.graph import Leaf
from gptrs.capture.jitting.jit import Lowered
from gptrs.capture.parameter import Parameter
from gptrs.errors import UnsupportedError
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbols
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.optimizer.split import Recipe
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.outgoing_model import ModelCapture

_STEP: Final = ("tokens", "positions", "row_starts", "lengths")
_EXAMPLES: Final = ((2, 40), (1, 40), (1, 1), (2, 1), (1, 8))
"""Texts and new tokens of each: more rows than texts and more than a page, one text, a decode
step, and a few rows, which AMX computes by other kernels than many."""
_EXAMPLE: Final = 3
_MOST_ONES: Final = 3
"""Of so many free sizes at most is 1 tried in all combinations."""


def library_of_step(model: LoadedModel, name: str) -> OutgoingLibrary:
    """Return the step of a language model, prompts and single tokens alike, with a cache.

    UnsupportedError for a model without the base class of language models.
    """
    lm = model.causal_lm()
    captured_step = cast("_CapturedStep | None", getattr(lm, "captured_step", None))
    if captured_step is None:
        raise UnsupportedError(f"`{model.name}` has no step that can be captured")
    specs = lm.cache_specs()
    groups = cache_groups(specs)
    tables = [f"{part}.{n}" for part in ("page_table", "slots") for n in range(len(groups))]
    pools = [f"{part}.{layer}" for layer in range(len(specs)) for part in ("keys", "values")]
    short = cast("int | None", getattr(lm, "short_context", None))
    inputs = (*_STEP, *tables, *pools)

    def programs() -> Iterator[OutgoingProgram]:
        made: list[OutgoingProgram] = []
        for texts, length in _EXAMPLES:
            lowered = captured_step(texts, length)
            if not _is_served(lowered.guards, made):
                made.append(_optimized(lowered, model.backend, len(inputs), len(pools)))
                yield made[-1]

    return OutgoingLibrary(
        name=name,
        inputs=inputs,
        outputs=("logits", *pools),
        programs=programs(),
        texts=TextCache(
            vocab_size=lm.vocab_size,
            context_length=lm.context_length if short is None else short,
            page_size=PAGE_SIZE,
            groups=len(groups),
            pools=len(pools),
            rewinds=not any(group.whole for group in groups),
        ),
    )


_CapturedStep = Callable[[int, int], Lowered]


def library_of_computation(captured: ModelCapture, backend: Backend, name: str) -> OutgoingLibrary:
    """Return the computation of a model or of an imported graph, for all sizes that it leaves free.

    Several programs serve them if a size of 1 needs its own.
    """
    inputs = tuple(each.name for each in captured.inputs)
    first, outputs = captured.capture(captured.examples)

    def programs() -> Iterator[OutgoingProgram]:
        made = [_optimized(first, backend, len(inputs))]
        yield made[-1]
        for examples in _with_ones(captured.examples):
            with suppress(UnsupportedError):  # such sizes are refused then, by name
                lowered, _ = captured.capture(examples)
                if not _is_served(lowered.guards, made):
                    made.append(_optimized(lowered, backend, len(inputs)))
                    yield made[-1]

    return OutgoingLibrary(name=name, inputs=inputs, outputs=outputs, programs=programs())


def library_of_program(program: Program, backend: Backend, name: str) -> OutgoingLibrary:
    """Return a program of PTIR for all sizes of its symbols; callers pass all of its inputs."""
    numbers = symbols(program)
    inputs = tuple(program.inputs)

    def programs() -> Iterator[OutgoingProgram]:
        made: list[OutgoingProgram] = []
        examples = dict.fromkeys(map(str, numbers), _EXAMPLE)
        for sizes in (examples, *_with_ones(examples)):
            guards = SizeGuards({int(number): size for number, size in sizes.items()})
            if not _is_served(guards, made):
                lowered = Lowered(program, (), (), guards if numbers else None)
                made.append(_optimized(lowered, backend, len(inputs)))
                yield made[-1]

    outputs = tuple(f"result{n}" for n in range(len(program.main.body.results)))
    return OutgoingLibrary(name=name, inputs=inputs, outputs=outputs, programs=programs())


def _with_ones(examples: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the examples with 1 for some of the sizes: kernels treat axes of one element apart."""
    names = list(examples)[:_MOST_ONES]
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            yield {**examples, **dict.fromkeys(chosen, 1)}


def _is_served(guards: SizeGuards | None, made: Sequence[OutgoingProgram]) -> bool:
    """Return whether a program that was made serves the sizes of an example."""
    sizes = guards.example if guards else {}
    return any(each.guards is None or each.guards.accept(sizes) for each in made)


def _optimized(lowered: Lowered, backend: Backend, given: int, donated: int = 0) -> OutgoingProgram:
    """Return a program whose first `given` parameters callers pass, the last of them donated."""
    roles = [InputRole.ARGUMENT] * (given - donated) + [InputRole.DONATED] * donated
    bound = [
        InputRole.PARAMETER if isinstance(leaf, Parameter) else InputRole.CONSTANT
        for leaf in lowered.bound
    ]
    flags = [role is InputRole.PARAMETER for role in (*roles, *bound)]
    guards = lowered.guards
    with deciding(guards) if guards else nullcontext():
        split = ports.optimize(lowered.program, backend, flags, True, None)
    weights: list[Callable[[], np.ndarray]] = []
    for source in split.inputs[given:]:
        if isinstance(source, Recipe):
            leaves = [lowered.bound[number - given] for number in source.inputs]
            weights.append(partial(_derived, source, leaves, backend))
            roles.append(InputRole.PARAMETER)
        else:
            weights.append(partial(_elements, lowered.bound[source - given]))
            roles.append(bound[source - given])
    return OutgoingProgram(split.program, tuple(roles), tuple(weights), guards)


def _elements(leaf: Leaf) -> np.ndarray:
    if isinstance(leaf, Parameter):
        return to_host(leaf.backend, leaf.buffer(keep=False))
    return host_value(leaf)


def _derived(recipe: Recipe, sources: Sequence[Leaf], backend: Backend) -> np.ndarray:
    buffers = [to_device(backend, _elements(leaf)) for leaf in sources]
    (result,) = compile_program(recipe.program, backend, origin="parameter").run(buffers)
    return to_host(backend, result)
