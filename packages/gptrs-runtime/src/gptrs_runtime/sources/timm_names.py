"""Models that timm saves, as transformers saves the same ones: names of tensors, and settings."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gptrs.errors import ModelError
from gptrs.plugins.timm_family import Shapes, TimmFamily
from gptrs.quoting import quoted
from gptrs_runtime.sources.format_kinds import timm_kind

_WITHOUT_TIMM: Final = (
    "export it from timm with `torch.export.save(torch.export.export(model.eval(), (image,)),"
    ' "model.pt2")`: a file `.pt2` is imported'
)


class Part(NamedTuple):
    """A stored tensor, or the rows of its part `number` of `parts` equal ones, in another shape."""

    stored: str
    shape: tuple[int, ...]
    number: int = 0
    parts: int = 1


def translated(
    architecture: str, pooling: str, shapes: Shapes, where: str
) -> tuple[dict[str, object], dict[str, Part]]:
    """Return the settings of the kind of an architecture, and its tensors by the kind's names.

    `pooling` is the `global_pool` of its config.json. ModelError for an architecture, a pooling or
    a tensor that no kind has.
    """
    shown = f"the architecture {quoted(architecture)} of timm in {quoted(where, 200)}"
    kind, family, found = timm_kind(architecture, shown, _WITHOUT_TIMM)
    if pooling not in ("", family.pooling):
        raise ModelError(
            f"{shown} is supported with the `global_pool` {quoted(family.pooling)} alone,"
            f" found {quoted(pooling)}",
            hint=_WITHOUT_TIMM,
        )
    if family.head is not None and family.head not in shapes:
        raise ModelError(
            f"{shown} has no tensor {quoted(family.head)}: without a head it is not supported",
            hint=_WITHOUT_TIMM,
        )
    parts: dict[str, Part] = {}
    for name in shapes:
        parts |= _renamed(family, name, shapes, shown)
    try:
        return {"model_type": kind, **family.settings(found, shapes)}, parts
    except (KeyError, IndexError):
        raise ModelError(
            f"{shown} lacks tensors of its layers", hint="download the weights again"
        ) from None


def _renamed(family: TimmFamily, name: str, shapes: Shapes, shown: str) -> dict[str, Part]:
    shape, counted = shapes[name], family.counted(name, shapes)
    if not counted:
        return {}
    for pattern, names in family.rules:
        found = re.fullmatch(pattern, counted)
        if found is not None:
            count = len(names)
            own = family.shaped(name, shape)
            if own and own[0] % count:
                break
            own = (own[0] // count, *own[1:]) if count > 1 else own
            return {
                found.expand(each): Part(name, own, index, count)
                for index, each in enumerate(names)
            }
    raise ModelError(
        f"{shown} has a tensor {quoted(name)} {list(shape)}, which the kind does not have",
        hint=_WITHOUT_TIMM,
    )
