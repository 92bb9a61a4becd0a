"""`gptrs list ops`: which ops a backend runs, on which element types."""

from __future__ import annotations

from gptrs.api.backends import op_support
from gptrs.plugins.manager import get_backend
from gptrs_cli.commands.list.op_matrix import LEGEND, print_op_matrix
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.waiting import Waiting


@command_options("backend")
def ops(settings: Settings) -> None:
    """List what a backend says it runs: ops by element types.

    Nothing is run to find out. Some forms: it depends on other types, attributes or shapes.
    `gptrs conformance run` tells whether what a backend runs is right.
    """
    engine = get_backend(settings.backend)
    with Waiting(f"asking {engine.name}"):
        support = op_support(engine)
    if settings.json:
        print_result("list.ops", {"backend": engine.name, "ops": support})
        return
    print_op_matrix(support)
    states = [state for types in support.values() for state in types.values()]
    taken = sum(state != "none" for state in states)
    print(f"\n{LEGEND}")
    print(f"backend `{engine.name}` takes {taken} of {len(states)} pairs of op and element type")
