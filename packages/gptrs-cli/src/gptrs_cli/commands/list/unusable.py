"""Says below a list why some of what is in it cannot be used."""

from __future__ import annotations

from collections.abc import Iterable

from gptrs.plugins.state import PluginRecord
from gptrs_cli.terminal.stderr import printable


def explain_unusable(records: Iterable[PluginRecord]) -> None:
    """Print the reason and the hint for each plugin that is not usable."""
    for record in records:
        if not record.state.usable:
            hint = f"; {record.hint}" if record.hint else ""
            reason = f"{record.reason}{hint}"
            print(printable(f"\n{record.kind} `{record.name}` is {record.state}: {reason}"))
