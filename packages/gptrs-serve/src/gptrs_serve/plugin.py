"""The description of the command; what serves is imported when it runs."""

from gptrs.api import CommandPlugin

PLUGIN = CommandPlugin(
    name="serve",
    summary="Answer the clients of OpenAI, Anthropic and Ollama with your models.",
    factory="gptrs_serve.command:serve",
    api="0.1",
)
