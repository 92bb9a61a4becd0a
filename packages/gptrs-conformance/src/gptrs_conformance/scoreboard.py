"""The scoreboard of backends: one HTML file without scripts or network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from msgspec import Struct

from gptrs.ir.dtypes import ALL
from gptrs_conformance.report import combined
from gptrs_runtime.conformance import Conformance, Status, Verdict

_MARKS = {"pass": "●", "fail": "✗", "fallback": "◐", "refused": "·"}
_WORDS = {
    "pass": "passes",
    "fail": "fails",
    "fallback": "is right on the backend that it falls back to",
    "refused": "is refused",
}
_COUNTS = ("passed", "failed", "fell_back", "refused")
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --line: #d5dae0; --soft: #5f6873;
  --pass: #1a7f37; --fail: #c0212c; --fallback: #9a6700;
  --refused: #9aa2ab; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --back: #14181d; --line: #333b44;
  --soft: #97a1ac; --pass: #4ac26b; --fail: #ff7b72;
  --fallback: #d29922; --refused: #5c6670; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.map { overflow-x: auto; } .map td, .map th { padding: 0 .35rem; text-align: center; }
.map th:first-child { text-align: left; font-weight: normal; font-family: ui-monospace, monospace; }
.pass { color: var(--pass); } .fail { color: var(--fail); font-weight: bold; }
.fallback { color: var(--fallback); }
.refused, .soft { color: var(--soft); }
.bar { display: inline-flex; width: 10rem; height: .7rem; background: var(--refused);
  vertical-align: middle; } .bar i { background: var(--pass); } .bar b { background: var(--fail); }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
"""


class _Board(Struct):
    """The parts of one run, such as shards, put together."""

    backend: str
    of: str
    parts: list[Conformance]
    coverage: dict[str, dict[str, Status]]
    checks: dict[str, Status]

    def share(self, status: Status) -> float:
        """The part of all pairs of op and element type with a status, from 0 to 1."""
        every = [each for types in self.coverage.values() for each in types.values()]
        return every.count(status) / len(every) if every else 0.0


def scoreboard(reports: Sequence[Conformance]) -> str:
    """Return a page that compares backends by their reports.

    Reports of one backend on one level or model are parts of a whole, such as shards: the last one
    counts where two are of the same part.
    """
    boards = [_merged(parts) for parts in _grouped(reports)]
    boards.sort(key=lambda board: (board.of, -board.share("pass"), board.backend))
    rows = "".join(map(_row, boards))
    details = "".join(map(_details, boards))
    heads = "".join(
        f"<th>{title}</th>"
        for title in ("backend", "what", "verdict", "ops x types", "", "passed", "failed",
                      "fell back", "refused", "checks", "seconds")
    )  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>gptrs conformance</title><style>{_STYLE}</style></head><body>"
        "<h1>Conformance of backends</h1>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        '<p class="soft">● passes, ✗ fails, ◐ is right on the backend that it falls back to,'
        " · is refused, blank: not run, or not defined."
        " A backend may refuse what it cannot run; what it claims must be right.</p>"
        f"{details}</body></html>\n"
    )


def _grouped(reports: Sequence[Conformance]) -> list[list[Conformance]]:
    """Return the parts of each whole, the newest of each part."""
    found: dict[tuple[str, str], dict[object, Conformance]] = {}
    for report in reports:
        # What was drawn belongs to the part: two samples of different seeds add up.
        part = (report.shard, report.sample, report.seed)
        found.setdefault((report.backend, _of(report)), {})[part] = report
    return [list(parts.values()) for parts in found.values()]


def _of(report: Conformance) -> str:
    if report.derivatives:
        return "derivatives"
    return f"what {report.model} needs" if report.model else f"level {report.level}"


def _merged(parts: list[Conformance]) -> _Board:
    board = _Board(parts[0].backend, _of(parts[0]), parts, {}, {})
    for part in parts:
        for op, types in part.coverage.items():
            known = board.coverage.setdefault(op, {})
            for dtype, status in types.items():
                # A failure in any part is a failure of the whole.
                known[dtype] = combined(known.get(dtype, "refused"), status)
        board.checks |= part.checks
    return board


def _worst(parts: Sequence[Conformance]) -> Verdict:
    found = {part.verdict for part in parts}
    order: Sequence[Verdict] = ("fail", "interrupted", "refused", "pass")
    return next(verdict for verdict in order if verdict in found)


def _row(board: _Board) -> str:
    passed = sum(status == "pass" for status in board.checks.values())
    checks = f"{passed} of {len(board.checks)}" if board.checks else ""
    verdict = _worst(board.parts)
    kind = verdict if verdict in ("pass", "fail") else "refused"
    shards = "".join(
        f", shard {part.shard[0]}/{part.shard[1]}" for part in board.parts if part.shard != (1, 1)
    )
    bar = (
        f'<span class="bar"><i style="width:{board.share("pass"):.1%}"></i>'
        f'<b style="width:{board.share("fail"):.1%}"></b></span>'
    )
    counts = (sum(getattr(part, name) for part in board.parts) for name in _COUNTS)
    seconds = sum(part.seconds for part in board.parts)
    cells = [
        # Names and messages come from plugins: unescaped, they could put scripts into the page.
        f"<th>{escape(board.backend)}</th>",
        f"<td>{escape(board.of + shards)}</td>",
        f'<td class="{kind}">{verdict}</td>',
        f'<td class="n">{board.share("pass"):.1%}</td><td>{bar}</td>',
        *(f'<td class="n">{count}</td>' for count in counts),
        f'<td class="n">{checks}</td><td class="n">{seconds:.1f}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _details(board: _Board) -> str:
    title = f"{board.backend}, {board.of}"
    failures = "".join(
        f"<li>{escape(str(failure))}</li>" for part in board.parts for failure in part.failures
    )
    told = f'<h3>Failures</h3><ul class="fail">{failures}</ul>' if failures else ""
    checks = "".join(
        f'<tr><td>{escape(name)}</td><td class="{status}">{_WORDS[status]}</td></tr>'
        for name, status in board.checks.items()
    )
    listed = f"<h3>Checks</h3><table>{checks}</table>" if checks else ""
    return (
        f"<details{' open' if failures else ''}><summary>{escape(title)}</summary>"
        f'{told}<div class="map">{_map(board.coverage)}</div>{listed}</details>'
    )


def _map(coverage: Mapping[str, Mapping[str, Status]]) -> str:
    names = [d.name for d in ALL if any(d.name in types for types in coverage.values())]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(op)}</th>{''.join(_cell(types.get(name)) for name in names)}</tr>"
        for op, types in sorted(coverage.items())
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(status: Status | None) -> str:
    if status is None:
        return "<td></td>"
    return f'<td class="{status}" title="{_WORDS[status]}">{_MARKS[status]}</td>'
