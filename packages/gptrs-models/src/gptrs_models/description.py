"""The description of a kind of model in this package."""

from __future__ import annotations

from gptrs.api import ModelPlugin


def kind(name: str, summary: str, module: str, relatives: tuple[str, ...] = ()) -> ModelPlugin:
    """Return the description of a kind, which `load` of a module of this package builds.

    `relatives` are kinds of transformers that gptrs lacks, and to which this one is the nearest.
    """
    factory = f"{__package__}.{module}:load"
    return ModelPlugin(name=name, summary=summary, factory=factory, api="0.1", relatives=relatives)
