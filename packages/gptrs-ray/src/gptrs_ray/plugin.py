"""The description of the command; running it imports Ray."""

from gptrs.api import CommandPlugin

PLUGIN = CommandPlugin(
    name="batch",
    summary="Run a model over a file of rows, on a Ray cluster.",
    factory="gptrs_ray.command:batch",
    api="0.1",
)
