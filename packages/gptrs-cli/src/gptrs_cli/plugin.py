"""The built-in commands as plugins: described here, imported when they run."""

from __future__ import annotations

from gptrs.plugins.descriptions import ALL_KINDS, CommandPlugin, ReferencePlugin
from gptrs_runtime.verbs import VERBS, Verb


def _command(name: str, summary: str, function: str) -> CommandPlugin:
    factory = f"gptrs_cli.commands.{name}:{function}"
    return CommandPlugin(name=name, summary=summary, factory=factory, api="0.1")


def _of_verb(verb: Verb) -> CommandPlugin:
    factory = f"gptrs_cli.commands.verbs:{verb.name}"
    return CommandPlugin(name=verb.name, summary=verb.summary, factory=factory, api="0.1")


GENERATE = _command("generate", "Continue a prompt.", "generate")
CHAT = _command("chat", "Talk with a model, line by line.", "chat")
FORWARD = _command("forward", "Run a model once and print the best classes or tokens.", "forward")
TRACE = _command("trace", "Run a model once and print statistics of its hidden states.", "trace")
STEER = _command("steer", "Learn a steering vector from pairs of texts.", "steer")
EMBED, CLASSIFY, RANK, MATCH, TAG, FILL, TRANSCRIBE, TOKENIZE, PERPLEXITY = map(
    _of_verb, VERBS.values()
)
RUN = _command("run", "Run a program, or an imported model, and print its results.", "app")
LIST = _command("list", "List backends, models, functionals, ops, patterns or plugins.", "app")
MODELS = _command("models", "List, fetch and remove the models on this disk.", "app")
INSPECT = _command("inspect", "Show the contents of a checkpoint, or verify a program.", "inspect")
CONVERT = _command("convert", "Write a model in another format or element type.", "convert")
COMPILE = _command(
    "compile", "Write a model as a shared library that runs without Python.", "command"
)
QUANTIZE = _command("quantize", "Write a model with quantized weights.", "quantize")
VALIDATE = _command(
    "validate", "Compare a model with a reference, or with another model.", "validate"
)
BENCH = _command("bench", "Measure a model on a backend, and the limits of the machine.", "app")
CACHE = _command("cache", "Show, fill or clear the caches on disk.", "app")
DOCTOR = _command("doctor", "Check the installation: machine, versions, plugins, caches.", "doctor")
BISECT = _command("bisect", "Find the instructions that a backend or a pass gets wrong.", "bisect")
REPLAY = _command("replay", "Run a program of a dump again, one instruction at a time.", "replay")
DOCS = _command("docs", "Show the documentation, or look for words in it.", "docs")
CONFORMANCE = _command("conformance", "Check a backend against the definition of PTIR.", "app")
PLUGINS = _command("plugins", "Check a plugin that you write.", "app")

TORCH = ReferencePlugin(
    name="torch",
    summary="models as transformers runs them in torch",
    kinds=(ALL_KINDS,),
    factory="gptrs_cli.validate.against:torch_reference",
    api="0.1",
)
