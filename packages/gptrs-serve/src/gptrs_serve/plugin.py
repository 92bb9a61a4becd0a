"""The description of the command; what serves is imported when it runs."""

from gptrs.api import CommandPlugin

PLUGIN = CommandPlugin(
    name="serve",
    summary="Serve models to clients of OpenAI, Anthropic and Ollama.",
    factory="gptrs_serve.command:serve",
    api="0.1",
)
