"""Names that the shell completes; each list is read when the user asks for it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import BackendPlugin, DemoModelPlugin, TraceSinkPlugin
from gptrs.plugins.manager import manager

Completion = Callable[[str], list[str]]
_POLICIES: Final = ("benchmark", "force=", "prefer=")


def backend_names() -> Iterator[str]:
    """Yield the names of backends."""
    return (record.name for record in manager().records(BackendPlugin))


def trace_sink_names() -> Iterator[str]:
    """Yield the names of trace sinks."""
    return (record.name for record in manager().records(TraceSinkPlugin))


def excluded_names() -> Iterator[str]:
    """Yield `no:NAME` for each plugin."""
    return (f"no:{record.name}" for record in manager().records())


def model_names() -> Iterator[str]:
    """Yield bundled models, short names, and what the cache of the hub has.

    The shell completes paths itself.
    """
    yield from (record.name for record in manager().records(DemoModelPlugin))
    recommended = importlib.import_module("gptrs_runtime.sources.recommended").recommended()
    yield from (each.short for each in recommended)
    cache = os.environ.get("HF_HUB_CACHE")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    for folder in (Path(cache) if cache else home / "hub").glob("models--*--*"):
        yield folder.name.removeprefix("models--").replace("--", "/", 1)


def functional_policies() -> Iterator[str]:
    """Yield FUNCTIONAL=POLICY for each functional, with the names of its implementations."""
    importlib.import_module("gptrs.functionals")
    registry = importlib.import_module("gptrs.functionals.dispatch.registry")
    for functional, names in registry.implementations().items():
        yield from (f"{functional}={name}" for name in (*names, *_POLICIES))


def pass_names() -> Iterable[str]:
    """Return the names of the passes of the optimizer, and `fallback`."""
    pipeline = importlib.import_module("gptrs.optimizer.pipeline")
    return [*(each.name for each in pipeline.known_passes()), "fallback"]


def completes(names: Callable[[], Iterable[str]]) -> Completion:
    """Return a completer to those of `names` that begin with a word; none after an error."""

    def complete(incomplete: str) -> list[str]:
        try:
            return sorted({name for name in names() if name.startswith(incomplete)})
        except (GptrsError, OSError):
            return []

    return complete
