"""Models and programs on their way to shared libraries: programs optimized, and their weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
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
from gptrs.errors import ModelError, UnsupportedError, UsageError
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbol_sources, symbols
from gptrs.ir.symbolic_dim import evaluated
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.ragged_step import PAGE_SIZE, pages_for
from gptrs.optimizer.split import Recipe
from gptrs_runtime.imported.batch import type_with
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.outgoing_model import ModelCapture

_STEP: Final = ("tokens", "positions", "row_starts", "lengths")
_EXAMPLES: Final = (
    {"texts": 2, "length": 40, "cached": 0},
    {"texts": 1, "length": 40, "cached": 0},
    {"texts": 1, "length": 1, "cached": 0},
    {"texts": 2, "length": 1, "cached": 0},
)
"""Texts, and new and cached tokens of each: more rows than texts and more than a page, one text,
and a step of decoding."""
_EXAMPLE: Final = 3
_MOST_ONES: Final = 3
"""Of so many free sizes at most is 1 tried in all combinations."""
_LARGEST: Final = 1 << 14
"""Larger examples are not tried."""
_MOST_PROGRAMS: Final = 32

_Sizes = Mapping[str, int]
_Shapes = Callable[[_Sizes], Sequence[tuple[int, ...]]]
"""Returns the shapes of the inputs for sizes by name."""


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
    context = lm.context_length if short is None else short
    inputs = (*_STEP, *tables, *pools)

    def made(example: _Sizes) -> OutgoingProgram | None:
        if example["cached"] + example["length"] > context:
            return None
        lowered = captured_step(**example)
        return _optimized(lowered, model.backend, len(inputs), len(pools))

    def shapes(example: _Sizes) -> list[tuple[int, ...]]:
        known = _step_shapes(**example)
        return [known.get(each.partition(".")[0], known["keys"]) for each in inputs]

    return OutgoingLibrary(
        name=name,
        inputs=inputs,
        outputs=("logits", *pools),
        programs=_covering(_EXAMPLES, made, shapes),
        texts=TextCache(
            vocab_size=lm.vocab_size,
            context_length=context,
            page_size=PAGE_SIZE,
            groups=len(groups),
            pools=len(pools),
            rewinds=not any(group.whole for group in groups),
        ),
    )


_CapturedStep = Callable[..., Lowered]


def _step_shapes(texts: int, length: int, cached: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a step; of pools, the first size."""
    rows, width = texts * length, pages_for(cached + length)
    return {
        "tokens": (rows,), "positions": (rows,), "row_starts": (texts + 1,), "lengths": (texts,),
        "page_table": (texts, width), "slots": (rows,), "keys": (texts * width,),
    }  # fmt: skip


def library_of_computation(captured: ModelCapture, backend: Backend, name: str) -> OutgoingLibrary:
    """Return the computation of a model or of an imported graph, for all sizes that it leaves free.

    Several programs serve them if some sizes need their own.
    """
    inputs = tuple(each.name for each in captured.inputs)
    first, outputs = captured.capture(captured.examples)

    def made(example: _Sizes) -> OutgoingProgram | None:
        if example == captured.examples:
            return _optimized(first, backend, len(inputs))
        try:
            lowered, _ = captured.capture(example)
        # Such as more tokens than there are positions: refused then, by name.
        except (ModelError, UnsupportedError, UsageError):
            return None
        return _optimized(lowered, backend, len(inputs))

    def shapes(example: _Sizes) -> list[tuple[int, ...]]:
        return [type_with(each, example).shape for each in captured.inputs]

    examples = captured.examples, *_with_ones(captured.examples)
    programs = _covering(examples, made, shapes)
    return OutgoingLibrary(name=name, inputs=inputs, outputs=outputs, programs=programs)


def library_of_program(program: Program, backend: Backend, name: str) -> OutgoingLibrary:
    """Return a program of PTIR for all sizes of its symbols; callers pass all of its inputs."""
    numbers = symbols(program)
    inputs = tuple(program.inputs)

    def made(example: _Sizes) -> OutgoingProgram:
        guards = SizeGuards({int(number): size for number, size in example.items()})
        lowered = Lowered(program, (), (), guards if numbers else None)
        return _optimized(lowered, backend, len(inputs))

    def shapes(example: _Sizes) -> list[tuple[int, ...]]:
        sizes = {int(number): size for number, size in example.items()}
        dims = [each.type.shape for each in program.inputs.values()]
        return [tuple(evaluated(dim, sizes) for dim in shape) for shape in dims]

    examples = dict.fromkeys(map(str, numbers), _EXAMPLE)
    programs = _covering((examples, *_with_ones(examples)), made, shapes)
    outputs = tuple(f"result{n}" for n in range(len(program.main.body.results)))
    return OutgoingLibrary(name=name, inputs=inputs, outputs=outputs, programs=programs)


def _with_ones(examples: _Sizes) -> Iterator[dict[str, int]]:
    """Yield the examples with 1 for some of the sizes: kernels treat axes of one element apart."""
    names = list(examples)[:_MOST_ONES]
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            yield {**examples, **dict.fromkeys(chosen, 1)}


def _covering(
    examples: Iterable[_Sizes],
    made: Callable[[_Sizes], OutgoingProgram | None],
    shapes: _Shapes,
) -> Iterator[OutgoingProgram]:
    """Yield programs until they serve the examples and all sizes beside those, as far as known.

    Which sizes a program serves is known once the caller has lowered it: the next examples are the
    first sizes that it refuses. `made` returns None for sizes that cannot be served, and `shapes`
    the shapes of the inputs.
    """
    found: list[OutgoingProgram] = []
    waiting = deque(examples)
    while waiting and len(found) < _MOST_PROGRAMS:
        example = waiting.popleft()
        if any(_serves(each, shapes(example)) for each in found):
            continue
        program = made(example)
        if program is None:
            continue
        yield program
        found.append(program)
        waiting.extend(_refused(example, program, shapes))


def _serves(program: OutgoingProgram, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a program accepts inputs of these shapes."""
    if program.guards is None:
        return True
    sources = symbol_sources(program.program.main.body.params[: len(shapes)])
    return program.guards.accept(
        {number: shapes[position][axis] for number, (position, axis) in sources.items()}
    )


def _refused(example: _Sizes, program: OutgoingProgram, shapes: _Shapes) -> Iterator[_Sizes]:
    """Yield the example with one size changed to the next ones that its program refuses.

    Steps double while it accepts, and are 1 again before a size that it refuses.
    """
    for name, size in example.items():
        for away in (1, -1):
            near, step = size, 1
            while near != (far := min(max(near + away * step, 1), _LARGEST)):
                if _serves(program, shapes({**example, name: far})):
                    near, step = far, 2 * step
                elif abs(far - near) == 1:
                    yield {**example, name: far}
                    break
                else:
                    step = 1


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
