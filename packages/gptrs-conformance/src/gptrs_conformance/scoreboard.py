"""The scoreboard of backends: one HTML file without scripts or network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, cast

from gptrs.ir.dtypes import ALL
from gptrs_conformance.op_runner import Status
from gptrs_conformance.report import combined

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


def scoreboard(reports: Sequence[Mapping[str, object]]) -> str:
    """Return a page that compares backends by their reports, as `Report.as_json` gives them.

    Reports of one backend on one level or model are parts of a whole, such as shards: the last one
    counts where two are of the same part.
    """
    boards = [_merged(parts) for parts in _grouped(reports)]
    boards.sort(key=lambda board: (str(board["of"]), -board["share"], board["backend"]))
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


def _grouped(reports: Sequence[Mapping[str, object]]) -> list[list[Mapping[str, Any]]]:
    """Return the parts of each whole, the newest of each part."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for report in reports:
        # What was drawn belongs to the part: two samples of different seeds add up.
        part = f"{report.get('shard')} {report.get('sample')} {report.get('seed')}"
        whole = found.setdefault((str(report["backend"]), _of(report)), {})
        whole[part] = report
    return [list(parts.values()) for parts in found.values()]


def _of(report: Mapping[str, object]) -> str:
    if report.get("derivatives"):
        return "derivatives"
    model = report.get("model")
    return f"what {model} needs" if model else f"level {report['level']}"


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    coverage: dict[str, dict[str, Status]] = {}
    checks: dict[str, Status] = {}
    for part in parts:
        for op, types in cast("Mapping[str, Mapping[str, Status]]", part["coverage"]).items():
            for dtype, status in types.items():
                known = coverage.setdefault(op, {})
                # A failure in any part is a failure of the whole.
                known[dtype] = combined(known.get(dtype, "refused"), status)
        checks |= part["checks"]
    statuses = [status for types in coverage.values() for status in types.values()]
    # Reports of earlier versions have no `fell_back`.
    counts = {name: sum(int(part.get(name, 0)) for part in parts) for name in _COUNTS}
    return {
        **counts,
        "backend": str(parts[0]["backend"]),
        "of": _of(parts[0]),
        "verdict": _worst([str(part["verdict"]) for part in parts]),
        "seconds": sum(float(part["seconds"]) for part in parts),
        "coverage": coverage,
        "checks": checks,
        "failures": [failure for part in parts for failure in part["failures"]],
        "share": statuses.count("pass") / len(statuses) if statuses else 0.0,
        "wrong": statuses.count("fail") / len(statuses) if statuses else 0.0,
        "shards": [part["shard"] for part in parts if part["shard"] != [1, 1]],
    }


def _worst(verdicts: Sequence[str]) -> str:
    order = ("fail", "interrupted", "refused", "pass")
    return min(verdicts, key=order.index)


def _row(board: Mapping[str, Any]) -> str:
    passed = sum(status == "pass" for status in board["checks"].values())
    checks = f"{passed} of {len(board['checks'])}" if board["checks"] else ""
    kind = {"pass": "pass", "fail": "fail"}.get(board["verdict"], "refused")
    shards = "".join(f", shard {index}/{count}" for index, count in board["shards"])
    bar = (
        f'<span class="bar"><i style="width:{board["share"]:.1%}"></i>'
        f'<b style="width:{board["wrong"]:.1%}"></b></span>'
    )
    cells = [
        # Names and messages come from plugins: unescaped, they could put scripts into the page.
        f"<th>{escape(board['backend'])}</th>",
        f"<td>{escape(board['of'] + shards)}</td>",
        f'<td class="{kind}">{board["verdict"]}</td>',
        f'<td class="n">{board["share"]:.1%}</td><td>{bar}</td>',
        *(f'<td class="n">{board[name]}</td>' for name in _COUNTS),
        f'<td class="n">{checks}</td><td class="n">{board["seconds"]:.1f}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _details(board: Mapping[str, Any]) -> str:
    title = f"{board['backend']}, {board['of']}"
    failures = "".join(f"<li>{escape(_told(failure))}</li>" for failure in board["failures"])
    told = f'<h3>Failures</h3><ul class="fail">{failures}</ul>' if failures else ""
    checks = "".join(
        f'<tr><td>{escape(name)}</td><td class="{status}">{_WORDS[status]}</td></tr>'
        for name, status in board["checks"].items()
    )
    listed = f"<h3>Checks</h3><table>{checks}</table>" if checks else ""
    return (
        f"<details{' open' if failures else ''}><summary>{escape(title)}</summary>"
        f'{told}<div class="map">{_map(board["coverage"])}</div>{listed}</details>'
    )


def _told(failure: Mapping[str, str]) -> str:
    where = " ".join(filter(None, (failure["name"], failure["dtype"])))
    case = f" ({failure['case']})" if failure["case"] else ""
    return f"{where}{case}: {failure['reason']}"


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
