"""Equal keys mean the same program, bit for bit; different keys, different programs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from capture.generated_graphs import GraphGenerator, literal
from capture.made_keys import made_key
from gptrs.backend.contract import InputRole
from gptrs.capture import primitives
from gptrs.capture.caching import program_key
from gptrs.capture.caching.program_key import ASPECTS, ProgramKey
from gptrs.capture.graph import Argument, GraphSlice, role_of
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.printer import print_program
from gptrs.ir.tensor_type import TensorType


class Engine:
    """A backend that nothing runs on; all are equal, so that identity alone tells them apart."""

    def __init__(self, name: str = "engine") -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Engine)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


ENGINE = Engine()
F32 = TensorType(dtypes.f32, (2, 2))


def key_of(*tensors: Tensor, backend: Engine = ENGINE, context: object = ()) -> ProgramKey:
    graph = GraphSlice([tensor.source for tensor in tensors])
    roles = [role_of(leaf) for leaf in graph.leaves]
    return graph.key(graph.leaves, roles, backend, context)


def argument(type_: TensorType = F32, position: int = 0) -> Tensor:
    return Tensor(Argument(type_, position, None))


def weight(name: str, type_: TensorType = F32) -> Tensor:
    array = np.ones(type_.shape, type_.dtype.numpy)
    return Tensor.of_parameter(Parameter(type_, hash(name), name, lambda: array, ENGINE))


def differing(first: ProgramKey, second: ProgramKey) -> list[str]:
    """The aspects in which two keys differ."""
    pairs = zip(ASPECTS, first.parts, second.parts, strict=True)
    return [aspect for aspect, a, b in pairs if a != b]


def test_captured_again_the_key_is_equal():
    def capture() -> ProgramKey:
        x, w = argument(), weight("w")
        (looped,), _ = primitives.scan(lambda state: state * w, [x], [], length=3)
        (called,) = primitives.call(primitives.tanh, looped)
        return key_of(called + 1.5)

    first, second = capture(), capture()
    assert first is not second
    assert first == second
    assert first.digest == second.digest == hash(first)
    assert differing(first, second) == []


def test_weights_that_swap_places_are_told_apart():
    """(x @ p1) @ p2 and (x @ p2) @ p1 have the same ops and types."""
    x, p1, p2 = argument(), weight("p1"), weight("p2")
    first, second = key_of((x @ p1) @ p2), key_of((x @ p2) @ p1)
    assert first != second
    assert differing(first, second) == ["binding"]


def test_one_input_twice_is_not_two_inputs():
    a, b = argument(), argument()
    first, second = key_of(primitives.sub(a, a)), key_of(primitives.sub(a, b))
    assert first != second
    assert "binding" in differing(first, second)
    assert "structure" not in differing(first, second)


def test_the_order_in_which_inputs_are_passed_counts():
    """A jitted function passes its arguments in their order, whichever is read first."""
    a, b = argument(), argument()
    leaves, roles = [a.source, b.source], [InputRole.ARGUMENT] * 2
    forth = GraphSlice([primitives.sub(a, b).source]).key(leaves, roles, ENGINE)
    back = GraphSlice([primitives.sub(b, a).source]).key(leaves, roles, ENGINE)
    assert differing(forth, back) == ["binding"]


def test_inputs_that_nothing_reads_count():
    a, b = argument(), argument()
    graph = GraphSlice([primitives.tanh(a).source])
    alone = graph.key([a.source], [InputRole.ARGUMENT], ENGINE)
    assert alone != graph.key([a.source, b.source], [InputRole.ARGUMENT] * 2, ENGINE)


def test_roles_count():
    x = argument()
    graph = GraphSlice([primitives.tanh(x).source])
    kept = graph.key([x.source], [InputRole.ARGUMENT], ENGINE)
    given = graph.key([x.source], [InputRole.DONATED], ENGINE)
    assert differing(kept, given) == ["role"]
    assert kept != given


def test_the_backend_is_known_by_identity_and_the_context_by_value():
    y = primitives.tanh(argument())
    plain = key_of(y)
    assert differing(plain, key_of(y, backend=Engine())) == ["backend"]
    assert differing(plain, key_of(y, context=("fold", 2))) == ["backend"]
    assert key_of(y, context=("fold", 2)) == key_of(y, context=("fold", 2))


def test_a_renamed_backend_is_another():
    engine = Engine()
    y = primitives.tanh(argument())
    before = key_of(y, backend=engine)
    engine.name = "renamed"
    assert differing(before, key_of(y, backend=engine)) == ["backend"]


def _splat(bits: int) -> Tensor:
    return primitives.broadcast_to(literal(dtypes.f32, bits), (2, 2))


VARIANTS = {
    "structure": [(primitives.tanh, F32), (primitives.exp, F32)],
    "binding": [
        (lambda x: primitives.sub(x, primitives.tanh(x)), F32),
        (lambda x: primitives.sub(primitives.tanh(x), x), F32),
    ],
    "dtype": [(primitives.tanh, F32), (primitives.tanh, F32.with_dtype(dtypes.f16))],
    "shape": [(primitives.tanh, F32), (primitives.tanh, F32.with_shape((3, 2)))],
    "attribute": [
        (lambda x: primitives.transpose(x, (0, 1)), F32),
        (lambda x: primitives.transpose(x, (1, 0)), F32),
    ],
    "literal": [(lambda x: x + _splat(0), F32), (lambda x: x + _splat(1 << 31), F32)],
}
"""For each aspect, two functions with the type of their argument that differ in it alone."""


@pytest.mark.parametrize("aspect", VARIANTS)
def test_a_single_change_shows_in_a_single_aspect(aspect):
    first, second = (key_of(function(argument(type_))) for function, type_ in VARIANTS[aspect])
    assert first != second
    assert differing(first, second) == [aspect]


@pytest.mark.parametrize("aspect", VARIANTS)
def test_a_change_in_a_region_shows_in_the_same_aspect(aspect):
    first, second = (
        key_of(primitives.scan(function, [argument(type_)], [], length=2)[0][0])
        for function, type_ in VARIANTS[aspect]
    )
    assert first != second
    assert differing(first, second) == [aspect]


@pytest.mark.parametrize("aspect", VARIANTS)
def test_a_change_in_a_function_changes_its_name_too(aspect):
    first, second = (
        key_of(*primitives.call(function, argument(type_))) for function, type_ in VARIANTS[aspect]
    )
    assert first != second
    assert set(differing(first, second)) == {aspect, "literal"}


def test_nan_payloads_signs_of_zero_and_kinds_of_numbers_are_told_apart():
    x = argument()
    bits = [0x7FC00000, 0x7FC00001, 0xFFC00000, 0, 0x80000000]
    graphs = [x + primitives.broadcast_to(literal(dtypes.f32, each), (2, 2)) for each in bits]
    values = [1, True, 1.0, 0.0, -0.0]
    graphs += [
        primitives.custom_call("test.kernel.v1", [F32], x, attrs={"value": value})[0]
        for value in values
    ]
    assert len({key_of(graph) for graph in graphs}) == len(bits) + len(values)


def test_which_result_is_read_counts():
    values, indices = primitives.top_k(argument(), 1, 0, indices_dtype=dtypes.si32)
    assert len({key_of(values), key_of(indices), key_of(values, indices)}) == 3


def test_which_results_a_region_returns_counts():
    def loop(body) -> Tensor:
        return primitives.scan(body, [argument(), argument()], [], length=3)[0][0]

    keys = [key_of(loop(body)) for body in (lambda a, b: [a, b], lambda a, b: [b, a])]
    assert differing(*keys) == ["binding"]


def test_operands_of_one_op_are_not_those_of_the_next():
    """Written one after another, the operands of both graphs are a, b, a, %0, a."""
    a, b = (argument(F32.with_shape((0,))) for _ in range(2))
    first = primitives.concat([primitives.concat([a, b, a], 0), a], 0)
    second = primitives.concat([a, primitives.concat([a, b], 0), a], 0)
    graphs = [GraphSlice([tensor.source]) for tensor in (first, second)]
    order, roles = [a.source, b.source], [InputRole.ARGUMENT] * 2
    keys = [graph.key(order, roles, ENGINE) for graph in graphs]
    assert keys[0] != keys[1]
    assert differing(*keys)[0] == "structure"


def test_sizes_are_counted():
    def body(state: Tensor) -> Tensor:
        return primitives.tanh(state + primitives.constant(np.ones((2, 2), np.float32)))

    key = key_of(primitives.scan(body, [argument()], [], length=2)[0][0])
    assert (key.instructions, key.literal_bytes) == (4, 16)


def test_an_equal_digest_is_no_equal_key(monkeypatch):
    x = argument()
    honest = key_of(primitives.tanh(x)), key_of(primitives.exp(x))
    assert honest[0].digest != honest[1].digest
    monkeypatch.setattr(program_key, "digest_of", lambda hashes: 0)
    graphs = [primitives.tanh(x), primitives.exp(x), x + 1, x + 2, x]
    keys = [key_of(graph) for graph in graphs]
    assert {key.digest for key in keys} == {0}
    assert len(set(keys)) == len(graphs)
    table = {key: number for number, key in enumerate(keys)}
    assert [table[key_of(graph)] for graph in graphs] == [0, 1, 2, 3, 4]


def test_equal_hashes_of_all_parts_are_no_equal_key():
    first, second = made_key(shape=-1), made_key(shape=-2)
    assert first.hashes == second.hashes  # since Python hashes -1 to -2
    assert first != second
    assert first == made_key(shape=-1)


@pytest.mark.long
def test_keys_are_equal_exactly_if_the_lowered_programs_are():
    """Thousands of small graphs that differ in little: no two of them collide."""
    generator = GraphGenerator(ENGINE)
    key_of_text: dict[object, ProgramKey] = {}
    text_of_key: dict[ProgramKey, object] = {}
    seen = Counter[object]()
    for seed in range(3000):
        outputs = generator.graph(seed)
        graph = GraphSlice([output.source for output in outputs])
        roles = [role_of(leaf) for leaf in graph.leaves]
        key = graph.key(graph.leaves, roles, ENGINE)
        text = print_program(graph.lower(graph.leaves)), tuple(roles)
        assert key_of_text.setdefault(text, key) == key, text[0]
        assert text_of_key.setdefault(key, text) == text, text[0]
        seen[key] += 1
    assert len(seen) > 2000
    assert sum(count > 1 for count in seen.values()) > 200
