"""Pictures: boxes that do not overlap, arrows that point down, all text escaped and in its box."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest

from gptrs.ir import dtypes, parse_program, print_program
from gptrs.ir.builder import Builder
from gptrs.ir.ops.elementwise import Add, Neg
from gptrs.ir.program import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_observe.programs.diagram import Diagram, DiagramNode, Edge, diagrams_of
from gptrs_observe.programs.picture.layout import CHARACTER, Box, Placed, layers_of, place
from gptrs_observe.programs.picture.svg import to_dot, to_svg

NESTED = """
ptir.v0.5
func @helper(%v: f32[2]) -> f32[2] {
  %0 = neg %v : f32[2]
  return %0
}
func @unused(%v: f32[2]) -> f32[2] {
  return %v
}
func @main(%p: i1[], %x: f32[2], %unread: f32[1]) -> (f32[2], f32[2]) {
  %one = constant {value = splat(1.0)} : f32[2]
  %a = add %x, %one : f32[2]
  %b = cond %p, %a
    then(%y: f32[2]) {
      %c = mul %y, %y : f32[2]
      %f = constant {value = true} : i1[]
      %d = cond %f, %c
        then(%z: f32[2]) {
          return %z
        }
        else(%z: f32[2]) {
          %e = exp %z : f32[2]
          return %e
        } : f32[2]
      return %d
    }
    else(%y: f32[2]) {
      return %y
    } : f32[2]
  %h = call %b {function = @helper} : f32[2]
  %i = add %h, %one : f32[2]
  return %i, %x
}
"""


def _random_program(seed: int, size: int) -> Program:
    rng = np.random.default_rng(seed)
    builder = Builder()
    values = [builder.param(TensorType(dtypes.f32, (2,))) for _ in range(3)]
    for _ in range(size):
        if rng.random() < 0.5:
            values.append(builder.emit(Neg(), values[int(rng.integers(len(values)))]))
        else:
            picked = [values[int(i)] for i in rng.integers(0, len(values), 2)]
            values.append(builder.emit(Add(), *picked))
    return builder.program(*values[-2:])


def _programs() -> Iterator[Program]:
    yield parse_program(NESTED)
    yield parse_program("ptir.v0.5\nfunc @main(%x: f32[1]) -> f32[1] {\n  return %x\n}\n")
    for seed, size in enumerate([1, 5, 20, 60, 150]):
        yield _random_program(seed, size)


PROGRAMS = list(_programs())


def _all_placed(placed: Placed) -> Iterator[Placed]:
    yield placed
    for box in placed.boxes:
        for region in box.regions:
            yield from _all_placed(region)


def _panels(program: Program) -> list[Placed]:
    return [each for d in diagrams_of(program) for each in _all_placed(place(d))]


def _within(inner: Box | Placed, outer: Box | Placed) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width
        and inner.y + inner.height <= outer.y + outer.height
    )


def _apart(one: Box | Placed, other: Box | Placed) -> bool:
    return (
        one.x + one.width < other.x
        or other.x + other.width < one.x
        or one.y + one.height < other.y
        or other.y + other.height < one.y
    )


def test_the_diagram_has_the_names_of_the_text_form():
    program = parse_program(NESTED)
    text = print_program(program)
    main, helper = diagrams_of(program)
    assert (main.name, helper.name) == ("@main", "@helper")
    titles = [node.title for node in _nodes(main) if "=" in node.title]
    assert len(titles) == len(set(titles)) + 1  # the constant stands beside both of its readers
    for title in titles:
        assert f"{title} " in text
    assert main.size() == len(list(_nodes(main)))


def _nodes(diagram: Diagram) -> Iterator[DiagramNode]:
    for node in diagram.nodes:
        yield node
        for inner in node.inner:
            yield from _nodes(inner)


def test_a_large_literal_is_told_by_its_size():
    literal = ", ".join(str(i) for i in range(1000))
    program = parse_program(
        "ptir.v0.5\nfunc @main() -> si32[1000] {\n"
        f"  %0 = constant {{value = [{literal}]}} : si32[1000]\n  return %0\n}}\n"
    )
    [diagram] = diagrams_of(program)
    assert diagram.nodes[0].details == ("value = 4000 bytes",)


@pytest.mark.parametrize("program", PROGRAMS)
def test_arrows_point_down_and_reach_from_box_to_box(program):
    for diagram in diagrams_of(program):
        placed = place(diagram)
        assert len(placed.arrows) == len(diagram.edges)
        for edge, arrow in zip(diagram.edges, placed.arrows, strict=True):
            source, target = placed.boxes[edge.source], placed.boxes[edge.target]
            (x, y), (end_x, end_y) = arrow[0], arrow[-1]
            assert source.x < x < source.x + source.width
            assert y == pytest.approx(source.y + source.height)
            assert target.x < end_x < target.x + target.width
            assert end_y == pytest.approx(target.y)
            assert all(a[1] <= b[1] for a, b in itertools.pairwise(arrow))


@pytest.mark.parametrize("program", PROGRAMS)
def test_boxes_do_not_overlap_and_stay_in_their_panel(program):
    for panel in _panels(program):
        for one, other in itertools.combinations(panel.boxes, 2):
            assert _apart(one, other)
        for box in panel.boxes:
            assert _within(box, panel)
            lines = (box.node.title, *box.node.details, *box.node.types)
            assert max(map(len, lines)) * CHARACTER < box.width
            for one, other in itertools.combinations(box.regions, 2):
                assert _apart(one, other)
            assert all(_within(region, box) for region in box.regions)
        for x, y in itertools.chain.from_iterable(panel.arrows):
            assert panel.x <= x <= panel.x + panel.width
            assert panel.y <= y <= panel.y + panel.height


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_arrow_passes_through_a_box(program):
    for panel in _panels(program):
        for arrow in panel.arrows:
            lanes = zip(arrow[2:-2:2], arrow[3:-2:2], strict=True)
            for (x, top), (_, bottom) in lanes:
                for box in panel.boxes:
                    beside = x < box.x or x > box.x + box.width
                    assert beside or bottom < box.y or top > box.y + box.height


def _node(title: str) -> DiagramNode:
    return DiagramNode("instruction", title, (), ("f32[]",))


def test_crossings_are_removed():
    nodes = tuple(_node(name) for name in "abcdef")
    crossed = Diagram("@main", nodes, (Edge(0, 0, 5, 0), Edge(1, 0, 4, 0), Edge(2, 0, 3, 0)))
    tops, bottoms = layers_of(crossed).rows
    reader = {0: 5, 1: 4, 2: 3}
    assert [reader[top] for top in tops] == bottoms


def test_what_reads_nothing_stands_above_its_first_reader():
    nodes = tuple(_node(name) for name in "abcde")
    edges = (Edge(0, 0, 1, 0), Edge(1, 0, 2, 0), Edge(2, 0, 4, 0), Edge(3, 0, 4, 1))
    assert layers_of(Diagram("@main", nodes, edges)).rows == [[0], [1], [2, 3], [4]]


def test_a_value_read_far_below_has_one_lane():
    nodes = tuple(_node(name) for name in "abcdef")
    chain = tuple(Edge(i, 0, i + 1, 0) for i in range(4))
    far = (Edge(0, 0, 4, 1), Edge(0, 0, 5, 0))
    layers = layers_of(Diagram("@main", nodes, (*chain, Edge(3, 0, 5, 1), *far)))
    lanes = {v for row in layers.rows for v in row if v >= layers.nodes}
    assert len(lanes) == 3


def test_text_is_escaped():
    odd = DiagramNode("instruction", '<a> & "b" \\n', ("k = ]]>",), ("f32[]",))
    diagrams = [Diagram("@main", (odd,), ())]
    root = ET.fromstring(to_svg(diagrams))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["@main", '<a> & "b" \\n', "k = ]]>", "f32[]"]
    assert r'label="<a> & \"b\" \\n\nk = ]]>\nf32[]"' in to_dot(diagrams)


@pytest.mark.parametrize("program", PROGRAMS)
def test_svg_is_well_formed_and_has_an_arrow_for_each_operand(program):
    diagrams = diagrams_of(program)
    root = ET.fromstring(to_svg(diagrams))
    arrows = root.findall(".//{http://www.w3.org/2000/svg}path[@class='arrow']")
    nested = [inner for diagram in diagrams for inner in _diagrams(diagram)]
    assert len(arrows) == sum(len(diagram.edges) for diagram in nested)
    numbers = re.findall(r"nan|inf", to_svg(diagrams))
    assert numbers == []


def _diagrams(diagram: Diagram) -> Iterator[Diagram]:
    yield diagram
    for node in diagram.nodes:
        for inner in node.inner:
            yield from _diagrams(inner)


@pytest.mark.parametrize("program", PROGRAMS)
def test_dot_declares_each_node_once_before_it_is_connected(program):
    lines = to_dot(diagrams_of(program)).splitlines()
    declared = [match[1] for line in lines if (match := re.match(r' *"(\w+)" \[label=', line))]
    assert len(declared) == len(set(declared))
    connected = {
        name
        for line in lines
        if (match := re.match(r' *"(\w+)" -> "(\w+)"', line))
        for name in match.groups()
    }
    assert connected <= set(declared)
    assert "\n".join(lines).count("{") == "\n".join(lines).count("}")
