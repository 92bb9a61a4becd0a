"""Find kinds of models by their words in other formats, and import what they say of these."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TypeVar

from gptrs.errors import ModelError, PluginError
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.gguf_architecture import GgufArchitecture
from gptrs.plugins.manager import manager
from gptrs.plugins.selection import is_own
from gptrs.quoting import joined, listed, quoted

Described = TypeVar("Described")


def usable_kinds() -> Iterator[tuple[ModelPlugin, bool]]:
    """Yield the description of each usable kind, and whether it is one of gptrs itself."""
    for record, plugin in manager().described(ModelPlugin):
        if plugin is not None and record.state.usable:
            yield plugin, is_own(record.distribution)


def described_by(plugin: ModelPlugin, reference: str, wanted: type[Described]) -> Described:
    """Import what a kind says of a format; PluginError if that fails or is no `wanted`."""

    def checked(found: object, reference: str) -> Described:
        if not isinstance(found, wanted):
            kind = type(found).__name__
            raise PluginError(f"`{reference}` must be a `{wanted.__name__}`, it is a `{kind}`")
        return found

    return manager().imported(ModelPlugin, plugin.name, reference, checked)


def gguf_kind(
    architecture: str | None, tensors: Container[str], where: str
) -> tuple[str, GgufArchitecture]:
    """Return the kind of a GGUF file of an architecture with these tensors, and how it is read.

    A kind whose marker is among the tensors comes before those without one, then those of gptrs
    before others. ModelError where no kind reads the file, or several of strangers do.
    """
    known: set[str] = set()
    found: dict[tuple[bool, bool], list[tuple[str, GgufArchitecture]]] = {}
    for plugin, own in usable_kinds():
        known |= plugin.gguf.keys()
        reference = plugin.gguf.get(architecture or "")
        if reference is None:
            continue
        read = described_by(plugin, reference, GgufArchitecture).in_file(tensors)
        if read is not None:
            found.setdefault((not read.marker, not own), []).append((plugin.name, read))
    if not found:
        shown = "nothing" if architecture is None else quoted(architecture)
        raise ModelError(
            f"`general.architecture` {where} is {shown}, which gptrs does not read",
            hint=f"the architectures that are read: {listed(sorted(known), 99)}",
        )
    kinds = found[min(found)]
    if len(kinds) > 1:
        names = joined([f"`{name}`" for name, _ in kinds], "and")
        raise ModelError(
            f"`general.architecture` {where} is {quoted(str(architecture))}, which {names} read",
            hint="leave out one of them with `-p no:NAME` or `GPTRS_DISABLE_PLUGINS`",
        )
    return kinds[0]


def gguf_architecture_of(kind: str) -> tuple[str, GgufArchitecture]:
    """Return the architecture that models of `kind` are written as; ModelError if there is none."""
    for plugin, _ in usable_kinds():
        if plugin.name == kind:
            for architecture, own in _written(plugin):
                return architecture, own
    names = [plugin.name for plugin, _ in usable_kinds() if any(_written(plugin))]
    raise ModelError(
        f"a model of the kind {quoted(kind)} cannot be written as a GGUF file",
        hint=f"kinds that can: {listed(names, 99)}; others are quantized to a folder",
    )


def _written(plugin: ModelPlugin) -> Iterator[tuple[str, GgufArchitecture]]:
    for architecture, reference in plugin.gguf.items():
        own = described_by(plugin, reference, GgufArchitecture)
        if own.written:
            yield architecture, own
