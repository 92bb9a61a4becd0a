"""The description of the trace sink: imported to list plugins."""

from gptrs.api import TraceSinkPlugin

PLUGIN = TraceSinkPlugin(
    name="run-times",
    summary="an example: how long each program ran, at the end",
    factory="run_times.sink:create",
    api="0.1",
)
