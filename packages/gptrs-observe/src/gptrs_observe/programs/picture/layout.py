"""The coordinates of the picture of a program: boxes, the regions in them, and arrows.

Sizes follow from the text, set in a monospaced font. Each row is placed so that the squared
distances of its vertices to their neighbours above and below are least.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from msgspec import Struct

from gptrs_observe.programs.diagram import Diagram, DiagramNode

# The order of a layered drawing (Sugiyama et al. 1981): the row and position of each node.
#
# Every arrow points down. A value that is read more than one row below passes the rows between in a
# lane, shared by all its readers. Sweeps down and up put each node and lane at the barycenter of
# its neighbours, to reduce crossings; the best order seen is kept.


_SWEEPS = 12


class Link(Struct, frozen=True):
    """A piece of an arrow from one row to the next; ports are in (0, 1), along the node's width.

    `upper` and `lower` are vertices: the nodes of the diagram by number, then the lanes.
    """

    upper: int
    upper_port: float
    lower: int
    lower_port: float


class Layers(Struct, frozen=True):
    """The vertices of each row from left to right, and a chain of links for each edge.

    Vertices numbered `nodes` and above are lanes.
    """

    nodes: int
    rows: list[list[int]]
    chains: list[list[Link]]

    @property
    def links(self) -> list[Link]:
        """Return each link once, although edges share lanes."""
        return list(dict.fromkeys(link for chain in self.chains for link in chain))


def layers_of(diagram: Diagram) -> Layers:
    """Return the rows of nodes and lanes, in an order with few crossings."""
    row_of = _rows(diagram)
    rows: list[list[int]] = [[] for _ in range(max(row_of, default=-1) + 1)]
    for node, row in enumerate(row_of):
        rows[row].append(node)
    chains = _chains(diagram, row_of, rows)
    layers = Layers(len(diagram.nodes), rows, chains)
    _order(layers)
    return layers


def _rows(diagram: Diagram) -> list[int]:
    """Return the row of each node: one below its lowest source, or just above its first reader.

    A node sinks to its readers if the total length of its arrows does not grow: it reads at most as
    many values as it has results, not counting those of sinking nodes that only it reads.
    """
    row_of = [0] * len(diagram.nodes)
    reads: list[set[tuple[int, int]]] = [set() for _ in diagram.nodes]
    gives: list[set[int]] = [set() for _ in diagram.nodes]
    readers: list[set[int]] = [set() for _ in diagram.nodes]
    for edge in diagram.edges:  # in the order of their targets
        row_of[edge.target] = max(row_of[edge.target], row_of[edge.source] + 1)
        reads[edge.target].add((edge.source, edge.output))
        gives[edge.source].add(edge.output)
        readers[edge.source].add(edge.target)
    sinks = [False] * len(diagram.nodes)
    for node in range(len(diagram.nodes)):
        held = [
            source for source, _ in reads[node] if not sinks[source] or len(readers[source]) > 1
        ]
        sinks[node] = bool(readers[node]) and len(held) <= len(gives[node])
    for node in reversed(range(len(diagram.nodes))):
        if sinks[node]:
            row_of[node] = min(row_of[reader] for reader in readers[node]) - 1
    return row_of


def _chains(diagram: Diagram, row_of: Sequence[int], rows: list[list[int]]) -> list[list[Link]]:
    """Return the links of each edge, and add the lanes to `rows`."""
    outputs = [max(len(node.types), 1) for node in diagram.nodes]
    inputs = [0] * len(diagram.nodes)
    for edge in diagram.edges:
        inputs[edge.target] += 1
    lanes: dict[tuple[int, int, int], int] = {}
    vertices = len(diagram.nodes)
    chains: list[list[Link]] = []
    for edge in diagram.edges:
        upper, port = edge.source, _port(edge.output, outputs[edge.source])
        chain: list[Link] = []
        for row in range(row_of[edge.source] + 1, row_of[edge.target]):
            key = (edge.source, edge.output, row)
            if key not in lanes:
                lanes[key] = vertices
                rows[row].append(vertices)
                vertices += 1
            chain.append(Link(upper, port, lanes[key], 0.5))
            upper, port = lanes[key], 0.5
        chain.append(Link(upper, port, edge.target, _port(edge.input, inputs[edge.target])))
        chains.append(chain)
    return chains


def _port(position: int, count: int) -> float:
    return (position + 1) / (count + 1)


def _order(layers: Layers) -> None:
    """Order each row in place, by barycenters."""
    above: dict[int, list[tuple[int, float]]] = {}
    below: dict[int, list[tuple[int, float]]] = {}
    for link in layers.links:
        above.setdefault(link.lower, []).append((link.upper, link.upper_port))
        below.setdefault(link.upper, []).append((link.lower, link.lower_port))
    links = _links_by_row(layers)
    best, fewest = [list(row) for row in layers.rows], _crossings(layers.rows, links)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        order = range(1, len(layers.rows)) if down else range(len(layers.rows) - 2, -1, -1)
        for row in order:
            fixed = layers.rows[row - 1 if down else row + 1]
            _sort_row(layers.rows[row], fixed, above if down else below)
        found = _crossings(layers.rows, links)
        if found < fewest:
            best, fewest = [list(row) for row in layers.rows], found
    layers.rows[:] = best


def _sort_row(
    row: list[int], fixed: Sequence[int], neighbours: dict[int, list[tuple[int, float]]]
) -> None:
    """Sort `row` by the mean position of the neighbours in the adjacent row `fixed`."""
    column = {vertex: position for position, vertex in enumerate(fixed)}
    keys: dict[int, float] = {}
    for position, vertex in enumerate(row):
        columns = [column[other] + port for other, port in neighbours.get(vertex, ())]
        keys[vertex] = sum(columns) / len(columns) if columns else position
    row.sort(key=keys.__getitem__)


def _links_by_row(layers: Layers) -> list[list[Link]]:
    """Return the links that leave each row downwards."""
    row_of = {vertex: row for row, vertices in enumerate(layers.rows) for vertex in vertices}
    grouped: list[list[Link]] = [[] for _ in layers.rows]
    for link in layers.links:
        grouped[row_of[link.upper]].append(link)
    return grouped


def _crossings(rows: Sequence[Sequence[int]], links: Sequence[Sequence[Link]]) -> int:
    """Return the number of pairs of links that cross."""
    column = {vertex: position for row in rows for position, vertex in enumerate(row)}
    total = 0
    for between in links:
        ends = sorted(
            (column[link.upper] + link.upper_port, column[link.lower] + link.lower_port)
            for link in between
        )
        seen: list[float] = []
        for _, lower in ends:
            total += len(seen) - bisect.bisect_right(seen, lower)
            bisect.insort(seen, lower)
    return total


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


class Box(Struct, frozen=True):
    """A node with its coordinates; `regions` lie within it, in the same coordinates."""

    node: DiagramNode
    x: float
    y: float
    width: float
    height: float
    regions: tuple[Placed, ...]


class Placed(Struct, frozen=True):
    """A diagram with its coordinates: boxes, and arrows as points joined by curves."""

    name: str
    x: float
    y: float
    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[tuple[Point, ...], ...]


class _Size(Struct, frozen=True):
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
            center_, weight_, count = blocks.pop()
            total = weight_ + block[1]
            mean = (center_ * weight_ + block[0] * block[1]) / total
            block = (mean, total, count + block[2])
        blocks.append(block)
    columns = [center_ for center_, _, count in blocks for _ in range(count)]
    for vertex, center_, offset in zip(row, columns, gap, strict=True):
        centers[vertex] = center_ + offset
