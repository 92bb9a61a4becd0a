"""`gptrs list ops`: which ops a backend runs, on which element types."""

from __future__ import annotations

from typing import Literal, cast

from gptrs.api.backends import op_support
from gptrs.plugins.manager import get_backend
from gptrs_cli.commands.list.op_matrix import LEGEND, print_op_matrix
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.waiting import Waiting
from gptrs_runtime.results import Result

_Support = dict[str, dict[str, Literal["all", "some", "none"]]]


class ListOps(Result, frozen=True, kw_only=True, tag="gptrs.list.ops/1"):
    """`gptrs list ops`: for each op and element type whether the backend takes it."""

    backend: str
    ops: _Support


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
        return print_result(ListOps(backend=engine.name, ops=cast("_Support", support)))
    print_op_matrix(support)
    states = [state for types in support.values() for state in types.values()]
    taken = sum(state != "none" for state in states)
    print(f"\n{LEGEND}")
    print(f"backend `{engine.name}` takes {taken} of {len(states)} pairs of op and element type")
