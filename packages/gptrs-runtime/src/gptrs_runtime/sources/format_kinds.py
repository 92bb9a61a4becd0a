"""Kinds of models by their names in other formats, and their descriptions of these."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar, cast

from gptrs.errors import ModelError, PluginError
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.gguf_architecture import GgufArchitecture, TimmFamily
from gptrs.plugins.manager import manager
from gptrs.plugins.selection import is_own
from gptrs.quoting import joined, listed, quoted

Described = TypeVar("Described")


def usable_kinds() -> Iterator[tuple[ModelPlugin, bool]]:
    """Yield the description of each usable kind, and whether it belongs to gptrs itself."""
    for record, plugin in manager().described(ModelPlugin):
        if plugin is not None and record.state.usable:
            yield plugin, is_own(record.distribution)


def kind_named(name: object) -> ModelPlugin | None:
    """Return the description of the usable kind `name`; None if there is none."""
    found = manager().plugin(ModelPlugin, name) if isinstance(name, str) else None
    if found is None or not found.record.state.usable:
        return None
    return cast("ModelPlugin", found.description)


def described_by(plugin: ModelPlugin, reference: str, wanted: type[Described]) -> Described:
    """Import a kind's description of a format; PluginError if that fails or is not a `wanted`."""

    def checked(found: object, reference: str) -> Described:
        if not isinstance(found, wanted):
            kind = type(found).__name__
            raise PluginError(f"`{reference}` must be a `{wanted.__name__}`, it is a `{kind}`")
        return found

    return manager().imported(ModelPlugin, plugin.name, reference, checked)


def gguf_kind(
    architecture: str | None, has: Container[str], where: str
) -> tuple[str, GgufArchitecture]:
    """Return the kind of a GGUF file of an architecture, and its description.

    `has` are the tensors and keys of the file. Kinds with more markers among them take precedence
    over those with less, then those of gptrs over others. ModelError if no kind reads the file, or
    several third-party ones do.
    """
    found: list[tuple[int, bool, str, GgufArchitecture]] = []
    for plugin, own in usable_kinds():
        reference = plugin.gguf.get(architecture or "")
        if reference is None:
            continue
        read = described_by(plugin, reference, GgufArchitecture).in_file(has)
        if read is not None:
            found.append((-len(read.marker.split()), not own, plugin.name, read))
    shown = "nothing" if architecture is None else quoted(architecture)
    said = f"`general.architecture` {where} is {shown}, which"
    if not found:
        known = sorted({word for plugin, _ in usable_kinds() for word in plugin.gguf})
        raise ModelError(
            f"{said} gptrs does not read",
            hint="take the safetensors of the model, if `gptrs list models` has its kind; the"
            f" architectures that are read: {listed(known, 99)}",
        )
    found.sort(key=lambda each: each[:2])
    _require_one([name for *order, name, _ in found if tuple(order) == found[0][:2]], said)
    return found[0][2:]


def timm_kind(architecture: str, said: str, hint: str) -> tuple[str, TimmFamily, re.Match[str]]:
    """Return the kind of an architecture of timm, its description, and the match of the name.

    Kinds of gptrs take precedence. ModelError, beginning with `said` and with `hint`, if no kind
    has the architecture, or several third-party ones do.
    """
    found: list[tuple[bool, str, TimmFamily, re.Match[str]]] = []
    for plugin, own in usable_kinds():
        for wildcards, reference in plugin.timm.items():
            if fnmatchcase(architecture, wildcards):
                family = described_by(plugin, reference, TimmFamily)
                match = re.fullmatch(family.architectures, architecture)
                if match is not None:
                    found.append((not own, plugin.name, family, match))
    if not found:
        known = sorted({wildcards for plugin, _ in usable_kinds() for wildcards in plugin.timm})
        raise ModelError(
            f"{said} is not supported; supported are most of {listed(known, 99)}", hint=hint
        )
    found.sort(key=lambda each: each[0])
    _require_one([name for other, name, *_ in found if other == found[0][0]], f"{said}, which")
    return found[0][1:]


def _require_one(kinds: Sequence[str], said: str) -> None:
    """Raise ModelError if several different kinds read a model."""
    if len(set(kinds)) > 1:
        raise ModelError(
            f"{said} {joined([f'`{kind}`' for kind in kinds], 'and')} read",
            hint="leave out one of them with `-p no:NAME` or `GPTRS_DISABLE_PLUGINS`",
        )


def gguf_architecture_of(kind: str) -> tuple[str, GgufArchitecture]:
    """Return the architecture for writing models of `kind`; ModelError if there is none."""
    plugin = kind_named(kind)
    for architecture, own in _written(plugin) if plugin is not None else ():
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
