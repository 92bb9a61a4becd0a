"""The description of the command; what serves is imported when it runs."""

from gptrs.api import CommandPlugin

PLUGIN = CommandPlugin(
    name="serve",
    summary="Answer the clients of OpenAI's API with models of your own.",
    factory="gptrs_serve.command:serve",
    api="0.1",
)
