"""The coordinates of the picture of a program: boxes, the regions in them, and arrows.

Sizes follow from the text, set in a monospaced font. Each row is placed so that the squared
distances of its vertices to their neighbours above and below are least.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gptrs.quick_dataclass import dataclass
from gptrs_observe.programs.diagram import Diagram, DiagramNode
from gptrs_observe.programs.picture.layers import Layers, Link, layers_of

FONT_SIZE = 12
CHARACTER = 7.3
"""Width of a character, slightly above that of usual monospaced fonts."""
LINE = 16
PADDING = 9
_COLUMN_GAP = 26
_LANE_GAP = 14
_ROW_GAP = 38
_LANE_WIDTH = 2
_PASSES = 16
_LANE_WEIGHT = 4
"""Weight of a link between two lanes, where others have 1: it keeps lanes straight."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its coordinates; `regions` lie within it, in the same coordinates."""

    node: DiagramNode
    x: float
    y: float
    width: float
    height: float
    regions: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A diagram with its coordinates: boxes, and arrows as points joined by curves."""

    name: str
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True, slots=True)
class _Size:
    width: float
    height: float
    regions: tuple[Placed, ...]


def place(diagram: Diagram, x: float = 0, y: float = 0) -> Placed:
    """Lay out a diagram and everything within it, with its top left corner at (x, y)."""
    sizes = [_size(node) for node in diagram.nodes]
    layers = layers_of(diagram)
    widths = [size.width for size in sizes]
    centers = _centers(layers, widths)
    left = min((centers[n] - widths[n] / 2 for n in range(len(sizes))), default=0)
    left = min([left, *(centers[v] for v in range(layers.nodes, len(centers)))])
    heights = [max((sizes[v].height for v in row if v < layers.nodes), default=0)
               for row in layers.rows]  # fmt: skip
    top = y + PADDING + LINE + PADDING
    tops: list[float] = []
    for height in heights:
        tops.append(top)
        top += height + _ROW_GAP
    shift = x + PADDING * 2 - left
    boxes: list[Box | None] = [None] * layers.nodes
    spans: list[tuple[float, float]] = [(0, 0)] * len(centers)
    for row, vertices in enumerate(layers.rows):
        for vertex in vertices:
            spans[vertex] = (tops[row], tops[row] + heights[row])
            if vertex < layers.nodes:
                size = sizes[vertex]
                box_x = centers[vertex] + shift - size.width / 2
                box_y = tops[row] + (heights[row] - size.height) / 2
                boxes[vertex] = _box(diagram.nodes[vertex], size, box_x, box_y)
    placed = tuple(box for box in boxes if box is not None)
    arrows = tuple(_arrow(chain, placed, centers, spans, shift) for chain in layers.chains)
    right = max((box.x + box.width for box in placed), default=x)
    right = max([right, *(centers[v] + shift for v in range(layers.nodes, len(centers)))])
    width = max(right - x + PADDING * 2, len(diagram.name) * CHARACTER + 4 * PADDING)
    bottom = top - _ROW_GAP if heights else top
    return Placed(diagram.name, x, y, width, bottom + PADDING * 2 - y, placed, arrows)


def _size(node: DiagramNode) -> _Size:
    lines = [node.title, *node.details, *node.types]
    regions: list[Placed] = []
    offset = float(PADDING)
    for inner in node.inner:
        placed = place(inner)
        regions.append(_moved(placed, offset, 0))
        offset += placed.width + PADDING
    width = max(len(line) for line in lines) * CHARACTER + 2 * PADDING
    below = max((region.height for region in regions), default=0)
    height = len(lines) * LINE + PADDING + (below + PADDING if regions else 0)
    return _Size(max(width, offset if regions else 0), height, tuple(regions))


def _box(node: DiagramNode, size: _Size, x: float, y: float) -> Box:
    text = (1 + len(node.details)) * LINE + PADDING
    regions = tuple(_moved(region, x, y + text) for region in size.regions)
    return Box(node, x, y, size.width, size.height, regions)


def _moved(placed: Placed, x: float, y: float) -> Placed:
    return Placed(
        placed.name,
        placed.x + x,
        placed.y + y,
        placed.width,
        placed.height,
        tuple(
            Box(
                box.node,
                box.x + x,
                box.y + y,
                box.width,
                box.height,
                tuple(_moved(region, x, y) for region in box.regions),
            )
            for box in placed.boxes
        ),
        tuple(tuple((px + x, py + y) for px, py in arrow) for arrow in placed.arrows),
    )


def _arrow(
    chain: Sequence[Link],
    boxes: Sequence[Box],
    centers: Sequence[float],
    spans: Sequence[tuple[float, float]],
    shift: float,
) -> tuple[Point, ...]:
    """Return points in pairs: a straight line joins a pair, a curve joins one pair to the next."""
    first, last = chain[0], chain[-1]
    source, target = boxes[first.upper], boxes[last.lower]
    x = source.x + source.width * first.upper_port
    points: list[Point] = [(x, source.y + source.height), (x, spans[first.upper][1])]
    for link in chain[:-1]:
        lane, (top, bottom) = centers[link.lower] + shift, spans[link.lower]
        points += [(lane, top), (lane, bottom)]
    x = target.x + target.width * last.lower_port
    return (*points, (x, spans[last.lower][0]), (x, target.y))


def _centers(layers: Layers, widths: Sequence[float]) -> list[float]:
    """Return the horizontal center of each vertex."""
    vertices = sum(map(len, layers.rows))
    width = [*widths, *[_LANE_WIDTH] * (vertices - layers.nodes)]
    centers = [0.0] * vertices
    pulls: list[list[tuple[int, float, float]]] = [[] for _ in range(vertices)]
    for link in layers.links:
        at_upper = (link.upper_port - 0.5) * width[link.upper]
        at_lower = (link.lower_port - 0.5) * width[link.lower]
        both_lanes = link.upper >= layers.nodes and link.lower >= layers.nodes
        weight = _LANE_WEIGHT if both_lanes else 1
        pulls[link.lower].append((link.upper, at_upper - at_lower, weight))
        pulls[link.upper].append((link.lower, at_lower - at_upper, weight))
    gaps = [_gaps(row, width, layers.nodes) for row in layers.rows]
    for row, gap in zip(layers.rows, gaps, strict=True):
        for position, vertex in enumerate(row):
            centers[vertex] = gap[position] - gap[-1] / 2
    for turn in range(_PASSES):
        order = range(len(layers.rows))
        for row in order if turn % 2 == 0 else reversed(order):
            _pull(layers.rows[row], gaps[row], pulls, centers)
    return centers


def _gaps(row: Sequence[int], width: Sequence[float], nodes: int) -> list[float]:
    """Return the least distance of each center from the first center of the row."""
    offsets = [0.0]
    for left, right in itertools.pairwise(row):
        between = _COLUMN_GAP if left < nodes and right < nodes else _LANE_GAP
        offsets.append(offsets[-1] + (width[left] + width[right]) / 2 + between)
    return offsets


def _pull(
    row: Sequence[int],
    gap: Sequence[float],
    pulls: Sequence[Sequence[tuple[int, float, float]]],
    centers: list[float],
) -> None:
    """Move the centers of a row as close to where they are pulled as their order allows.

    This is isotonic regression (pool adjacent violators) of the wishes less the gaps.
    """
    blocks: list[tuple[float, float, int]] = []
    for position, vertex in enumerate(row):
        weight = sum(w for _, _, w in pulls[vertex]) or 0.01
        wish = sum(w * (centers[other] + by) for other, by, w in pulls[vertex]) / weight
        wish = wish if pulls[vertex] else centers[vertex]
        block = (wish - gap[position], weight, 1)
        while blocks and blocks[-1][0] >= block[0]:
            place_, weight_, count = blocks.pop()
            total = weight_ + block[1]
            mean = (place_ * weight_ + block[0] * block[1]) / total
            block = (mean, total, count + block[2])
        blocks.append(block)
    places = [place_ for place_, _, count in blocks for _ in range(count)]
    for vertex, place_, offset in zip(row, places, gap, strict=True):
        centers[vertex] = place_ + offset
