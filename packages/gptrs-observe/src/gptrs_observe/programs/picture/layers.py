"""The order of a layered drawing (Sugiyama et al. 1981): the row and position of each node.

Every arrow points down. A value that is read more than one row below passes the rows between in a
lane, shared by all its readers. Sweeps down and up put each node and lane at the barycenter of its
neighbours, to reduce crossings; the best order seen is kept.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from gptrs.quick_dataclass import dataclass
from gptrs_observe.programs.diagram import Diagram

_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Link:
    """A piece of an arrow from one row to the next; ports are in (0, 1), along the node's width.

    `upper` and `lower` are vertices: the nodes of the diagram by number, then the lanes.
    """

    upper: int
    upper_port: float
    lower: int
    lower_port: float


@dataclass(frozen=True, slots=True)
class Layers:
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

    A node sinks to its readers if its arrows do not get longer in all: it reads at most as many
    values as it gives, not counting those of nodes that sink and that it alone reads.
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
    place = {vertex: position for position, vertex in enumerate(fixed)}
    keys: dict[int, float] = {}
    for position, vertex in enumerate(row):
        places = [place[other] + port for other, port in neighbours.get(vertex, ())]
        keys[vertex] = sum(places) / len(places) if places else position
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
    place = {vertex: position for row in rows for position, vertex in enumerate(row)}
    total = 0
    for between in links:
        ends = sorted(
            (place[link.upper] + link.upper_port, place[link.lower] + link.lower_port)
            for link in between
        )
        seen: list[float] = []
        for _, lower in ends:
            total += len(seen) - bisect.bisect_right(seen, lower)
            bisect.insort(seen, lower)
    return total
