"""Models that timm saves, as transformers saves the same ones: names of tensors, and settings."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gptrs.errors import ModelError
from gptrs.quoting import quoted
from gptrs_runtime.sources.timm_families import FAMILIES, Family, Shapes

_WITHOUT_TIMM: Final = (
    "export it from timm with `torch.export.save(torch.export.export(model.eval(), (image,)),"
    ' "model.pt2")`: a file `.pt2` is imported'
)
_SUPPORTED: Final = (
    "resnet18 to 152, regnetx_* and regnety_*, efficientnet_b* and relatives, mobilenetv3_*,"
    " vit_*_patch*, deit_*_patch16_*, swin_*_patch4_window*, convnext_* and convnextv2_*"
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
    match = next(
        (
            (family, found)
            for family in FAMILIES
            if (found := re.fullmatch(family.architectures, architecture)) is not None
        ),
        None,
    )
    shown = f"the architecture {quoted(architecture)} of timm in {quoted(where, 200)}"
    if match is None:
        raise ModelError(
            f"{shown} is not supported; supported are {_SUPPORTED}", hint=_WITHOUT_TIMM
        )
    family, found = match
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
        return family.settings(found, shapes), parts
    except (KeyError, IndexError):
        raise ModelError(
            f"{shown} lacks tensors of its layers", hint="download the weights again"
        ) from None


def _renamed(family: Family, name: str, shapes: Shapes, shown: str) -> dict[str, Part]:
    shape, counted = shapes[name], family.counted(name, shapes)
    if not counted:
        return {}
    for pattern, names in family.rules:
        found = re.fullmatch(pattern, counted)
        if found is not None:
            count = len(names)
            own = _shape(name, shape)
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


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor in the kind: affine layers are matrices."""
    if ".mlp.grn." in name:
        return (1, 1, 1, *shape)
    if ".mlp.fc" in name and shape[2:] == (1, 1):
        return shape[:2]
    return shape
