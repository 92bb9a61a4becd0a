"""Writes what was measured: JSON for scripts, a table as Markdown, and a chart where possible."""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
from pathlib import Path

from goals import goal_text

Row = dict[str, object]


def write_report(stem: Path, result: dict[str, object]) -> list[Path]:
    """Write `stem`.json, .md and, if matplotlib is installed, .png; returns the files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("json", "md", "png")]
    files[0].write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    files[1].write_text(markdown(result), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        print("no chart: install the extra `bench`, which brings matplotlib")
        return files[:2]
    importlib.import_module("chart").draw(files[2], result)
    return files


def markdown(result: dict[str, object]) -> str:
    """The machine in a paragraph, then all rows as a table."""
    machine, rows = result["machine"], result["rows"]
    assert isinstance(machine, dict)
    assert isinstance(rows, list)
    lines = [
        "# Benchmarks",
        "",
        f"{result['date']}, {machine['processor']}, {machine['cores']['affinity']} cores, "
        f"{machine['platform']}, Python {machine['python']}, load average at the start "
        f"{machine['load_average']:.1f}.",
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".",
        "",
        *(
            f"With {each['threads']} threads the machine reads {each['read_gb_per_s']:.1f} GB/s"
            f" and computes {each['gflop_per_s']:.0f} GFLOP/s (measured by"
            f" `{each['limits_measured_by']}`).  "
            for each in result["limits"]
        ),
        "",
        "Figures of one row are medians of alternating runs; a ratio above 1 means that gptrs is"
        " faster. The command: `" + str(result["command"]) + "`.",
        "",
        "| work | threads | gptrs | peer | ratio | goal | GB/s | GFLOP/s | of limit |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row, goal_text(row, rows)) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, goal: str) -> str:
    peer = "" if row["peer"] is None else f"{row['peer_name']} {_figure(row['peer'], row['unit'])}"
    cells = [row["work"], row["threads"], _figure(row["ours"], row["unit"]), peer]
    cells += ["" if row["ratio"] is None else f"{row['ratio']:.2f}x", goal]
    cells += [_rounded(row.get("gb_per_s")), _rounded(row.get("gflop_per_s"))]
    cells += ["" if row["share_of_limit"] is None else f"{row['share_of_limit']:.0%}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def _figure(value: object, unit: object) -> str:
    return f"{value:.4g} {unit}"


def _rounded(value: object) -> str:
    return "" if value is None else f"{value:.1f}"


def processor() -> str:
    """Return the name of the processor and its widest vectors."""
    text = Path("/proc/cpuinfo").read_text("utf-8")
    pairs = [line.partition(":") for line in text.splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    flags = fields.get("flags", "").split()
    wide = next((each for each in ("amx_tile", "avx512f", "avx2") if each in flags), "")
    return f"{fields.get('model name', platform.machine())} ({wide})"
