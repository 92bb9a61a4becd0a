"""The effect of a pass on a program, for `gptrs inspect --why`."""

from __future__ import annotations

from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import printable
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.programs.pass_report import PassReport
from gptrs_observe.results import InspectPass


def print_pass(report: PassReport, *, as_json: bool) -> None:
    """Print the report, as JSON or for people."""
    if as_json:
        result = InspectPass(
            name=report.name,
            instructions={"before": report.before, "after": report.after},
            fired=report.fired,
            declined=list(report.declined),
        )
        return print_result(result)
    print(f"pass        {report.name}")
    print(f"program     {report.before} instructions before it, {report.after} after it")
    if not report.equations:
        print("\nThe pass has no rewrites of its own that could decline.")
        return
    if report.fired:
        print()
        rows = [[name, str(n), report.equations.get(name, "")] for name, n in report.fired.items()]
        print_table(["applied", "times", "what it does"], rows)
    if report.declined:
        print()
        rows = [
            [each.rewrite, str(each.times), each.instruction, each.reason]
            for each in report.declined
        ]
        print_table(["declined", "times", "at", "because"], rows)
    if not report.fired and not report.declined:
        print(printable(f"\nNone of its rewrites fits: {', '.join(report.equations)}."))
