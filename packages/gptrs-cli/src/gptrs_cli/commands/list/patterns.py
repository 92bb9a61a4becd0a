"""`gptrs list patterns`: the calls that backends can find in programs."""

from __future__ import annotations

import dataclasses
import json as json_format
from typing import TYPE_CHECKING

import typer

from gptrs_cli.options.settings import DebugOption, JsonOption, PluginsOption, settings_of

if TYPE_CHECKING:
    from gptrs.runtime.pattern_listing import ListedPattern, ListedVariant


def patterns(
    context: typer.Context,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """List the functions whose calls are found in programs.

    Such a call can be computed by one kernel. With --json, every way in which it can look comes
    with an example program.
    """
    from gptrs.runtime.pattern_listing import list_patterns

    listed = list_patterns()
    if settings_of(context).json:
        print(json_format.dumps([dataclasses.asdict(each) for each in listed], indent=2))
    else:
        _print(listed)


def _print(listed: list[ListedPattern]) -> None:
    from gptrs_cli.terminal.tables import print_table

    rows = [
        [
            each.name if number == 0 else "",
            ", ".join(variant.operands),
            str(count),
            _settings(variant),
        ]
        for each in listed
        for number, (variant, count) in enumerate(_alike(each))
    ]
    print_table(["function", "operands", "forms", "settings"], rows)


def _alike(pattern: ListedPattern) -> list[tuple[ListedVariant, int]]:
    """Variants that differ in nothing but the types that are computed in, with their number."""
    counts: dict[str, tuple[ListedVariant, int]] = {}
    for variant in pattern.variants:
        key = f"{variant.operands} {_settings(variant)}"
        counts[key] = (variant, counts[key][1] + 1) if key in counts else (variant, 1)
    return list(counts.values())


def _settings(variant: ListedVariant) -> str:
    fixed = [f"{name}={value}" for name, value in variant.fixed.items()]
    return ", ".join([*fixed, *(f"{name}=any" for name in variant.read)])
