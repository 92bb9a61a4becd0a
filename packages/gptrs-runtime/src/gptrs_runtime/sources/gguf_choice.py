"""Chooses a GGUF file of a repository or folder that holds one model in several quantizations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from gptrs.backend.memory import memory_bytes
from gptrs.errors import ModelError
from gptrs.quoting import did_you_mean, quoted
from gptrs_runtime.sources.gguf_model import SHARD

PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1"),
    *("Q6_K", "Q8_0", "MXFP4", "BF16", "F16", "F32"),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_K_S"),
)
"""The quantizations chosen by default, best first, among those that gptrs reads. Q4_K_M comes first
because other tools default to it, too.
"""
_LABEL = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]_[A-Z0-9]+(?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|BF16|F16|F32))"
    r"(?=[-.]|$)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""Files beside a model: the image encoder of llama.cpp, and statistics that quantizers use."""
_PLAIN = re.compile(r"(?:[\w+-][\w.+ -]*/)*[\w+-][\w.+ -]*\.gguf")
"""Paths below the folder; no part begins with a dot."""
_ROOM = 0.8
"""Share of the memory that weights may take: the rest is for the context and the system."""


class GgufVariant(Struct, frozen=True):
    """A model in one GGUF file or its parts: `label` is Q4_K_M and the like, None if unnamed."""

    stem: str
    label: str | None
    parts: tuple[str, ...]
    nbytes: int

    @property
    def tag(self) -> str:
        """The text after the colon that means this file."""
        return self.label or self.stem.rpartition("/")[2]


def variants(files: Mapping[str, int]) -> list[GgufVariant]:
    """Return the models among paths with their sizes, by path; split ones only if they are whole.

    A tag that two of them share becomes the name of the file, so that each tag means one.
    """
    grouped: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for path in sorted(files):
        if not _PLAIN.fullmatch(path) or _NO_MODEL.search(path.rpartition("/")[2]):
            continue
        shard = SHARD.fullmatch(path)
        stem = shard[1] if shard else path.removesuffix(".gguf")
        grouped.setdefault(stem, {})[int(shard[2]) if shard else 1] = path
        counts[stem] = int(shard[3]) if shard else 1
    found = [
        GgufVariant(
            stem,
            _label(stem),
            tuple(parts[number] for number in sorted(parts)),
            sum(files[part] for part in parts.values()),
        )
        for stem, parts in grouped.items()
        if sorted(parts) == [*range(1, counts[stem] + 1)]
    ]
    labels = [each.label for each in found]
    return [
        each
        # Two files of one quantization are not distinguished by it: they are named by their stems.
        if labels.count(each.label) == 1
        else GgufVariant(each.stem, None, each.parts, each.nbytes)
        for each in found
    ]


def _label(stem: str) -> str | None:
    """Return the quantization in the name of a file, else in that of its folder."""
    for name in reversed(stem.split("/")[-2:]):
        labels = _LABEL.findall(name)
        if labels:
            return str(labels[-1]).upper()
    return None


def files_below(folder: str | os.PathLike[str]) -> dict[str, int]:
    """Return the GGUF files in a folder and the folders in it, with their sizes in bytes."""
    top = Path(folder)
    found: dict[str, int] = {}
    for path in (*top.glob("*.gguf"), *top.glob("*/*.gguf")):
        if path.is_file():  # no dangling link of the hub's cache
            found[path.relative_to(top).as_posix()] = path.stat().st_size
    return found


def chosen(found: Sequence[GgufVariant], tag: str | None, whose: str) -> GgufVariant:
    """Return the model that `tag` means; None: the preferred one that fits the memory.

    A tag is a quantization, in any case, or the name of a file. ModelError names the tags that
    there are: none of them is `tag`, or none can be preferred. `whose` begins the message.
    """
    if tag is None:
        return _preferred(found, whose)
    wanted = tag.removesuffix(".gguf").lower()
    same = [each for each in found if wanted in _names(each)]
    if not same:  # files of unsloth: `UD-Q4_K_XL`
        same = [each for each in found if each.tag.lower() == f"ud-{wanted}"]
    if len(same) == 1:
        return same[0]
    guess = did_you_mean(tag.upper(), {each.tag for each in found})
    problem = f"has no {quoted(tag)}" if not same else f"has {len(same)} models {quoted(tag)}"
    raise ModelError(f"{whose} {problem}", hint=f"{guess}{_offer(same or found)}")


def _names(variant: GgufVariant) -> set[str]:
    labels = {_label(variant.stem) or "", variant.tag, variant.stem.rpartition("/")[2]}
    return {each.lower() for each in labels} - {""}


def _preferred(found: Sequence[GgufVariant], whose: str) -> GgufVariant:
    if len(found) == 1:
        return found[0]
    by_label = {each.label: each for each in found if each.label is not None}
    usual = [by_label[label] for label in PREFERRED if label in by_label]
    if not usual:
        raise ModelError(
            f"{whose} has several GGUF files, and none is named as a usual quantization",
            hint=_offer(found),
        )
    room = memory_bytes()
    fitting = [each for each in usual if room is None or each.nbytes <= room * _ROOM]
    return fitting[0] if fitting else min(usual, key=lambda each: each.nbytes)


def _offer(found: Iterable[GgufVariant]) -> str:
    shown = ", ".join(f"`:{each.tag}` ({shown_size(each.nbytes)})" for each in found)
    return f"add one of {shown}"


def shown_size(nbytes: int) -> str:
    """Return a size in the units of file listings, such as `4.7 GB`."""
    size, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
