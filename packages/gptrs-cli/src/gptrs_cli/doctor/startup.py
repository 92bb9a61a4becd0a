"""The startup of the command line: its time, and the heavy modules that it imports."""

from __future__ import annotations

import subprocess
import sys
import time

from gptrs.plugins.state import PluginRecord
from gptrs.quick_dataclass import dataclass

_PROBE = """
import sys
before = set(sys.modules)
from gptrs_cli.main import main
code = main(["--help"])
print(*{name.partition(".")[0] for name in set(sys.modules) - before}, file=sys.stderr)
sys.exit(code)
"""
_OWN = frozenset({"gptrs", "gptrs_cli"})
_NEEDED = frozenset(
    {"annotated_doc", "click", "pluggy", "rich", "shellingham", "typer", "typing_extensions"}
)
"""Modules that typer and plugin discovery import."""


@dataclass(frozen=True)
class Startup:
    """Seconds that `gptrs --help` took, and the modules it imported needlessly."""

    seconds: float
    heavy_modules: tuple[str, ...]


def measure_startup(plugins: list[PluginRecord], runs: int = 3) -> Startup:
    """Run `gptrs --help` in fresh processes; the fastest run counts."""
    light = _OWN | _NEEDED | set(sys.stdlib_module_names)
    # Listing a plugin imports its description, so the package alone does not count as heavy.
    light |= {record.entry_point.partition(":")[0].partition(".")[0] for record in plugins}
    fastest = float("inf")
    imported: set[str] = set()
    for _ in range(runs):
        started = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        )
        fastest = min(fastest, time.perf_counter() - started)
        imported |= set(result.stderr.splitlines()[-1].split())
    return Startup(fastest, tuple(sorted(imported - light)))
