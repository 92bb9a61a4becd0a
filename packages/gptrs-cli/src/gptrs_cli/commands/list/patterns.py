"""`gptrs list patterns`: the calls that backends can find in programs."""

from __future__ import annotations

from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.pattern_listing import ListedPattern, ListedVariant, list_patterns
from gptrs_runtime.results import Result


class ListPatterns(Result, frozen=True, kw_only=True, tag="gptrs.list.patterns/1"):
    """`gptrs list patterns`."""

    patterns: list[ListedPattern]


@command_options()
def patterns(settings: Settings) -> None:
    """List the functions whose calls are found in programs.

    Such a call can be computed by one kernel. With --json, every way in which it can look comes
    with an example program.
    """
    listed = list_patterns()
    if settings.json:
        print_result(ListPatterns(patterns=listed))
    else:
        _print(listed)


def _print(listed: list[ListedPattern]) -> None:
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
