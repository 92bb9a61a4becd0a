"""The inputs of an imported model by their use: images, tokens, and what goes with tokens.

Told by type and shape, and by the names that exporters of models of text agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from gptrs.plugins.importers import ModelInput
from gptrs.quick_dataclass import dataclass

IMAGE_EDGE: Final = 224
"""The edge of images where a model takes any."""
_CHANNELS: Final = 3


@dataclass(frozen=True)
class ImageAxes:
    """The axes of a batch of images [B, C, H, W] or [B, H, W, C]."""

    channels: int
    height: int
    width: int


_FIRST: Final = ImageAxes(1, 2, 3)
_LAST: Final = ImageAxes(3, 1, 2)

COMPANIONS: Final[Mapping[str, Callable[[tuple[int, ...]], np.ndarray]]] = {
    "attention_mask": lambda shape: np.ones(shape, np.int64),
    "token_type_ids": lambda shape: np.zeros(shape, np.int64),
    "position_ids": lambda shape: np.broadcast_to(np.arange(shape[-1]), shape),
}
"""Inputs that go with tokens [B, T], for texts without padding."""


def image_axes(each: ModelInput) -> ImageAxes | None:
    """Return the axes of an input of images of 3 channels, floats or bytes; None for any other."""
    shape = each.shape or ()
    if len(shape) != 4 or not (each.dtype.is_float or each.dtype.name == "ui8"):
        return None
    if shape[1] == _CHANNELS:
        return _FIRST
    return _LAST if shape[3] == _CHANNELS else None


def image_inputs(inputs: Mapping[str, ModelInput]) -> list[ModelInput]:
    """Return the inputs that are images."""
    return [each for each in inputs.values() if image_axes(each) is not None]


def is_token_input(each: ModelInput) -> bool:
    """Return whether an input is integers [B, T]."""
    return each.dtype.is_integer and not each.dtype.is_bool and len(each.shape or ()) == 2


def token_inputs(inputs: Mapping[str, ModelInput]) -> list[ModelInput]:
    """Return the inputs that are token ids: integers [B, T] that are not in COMPANIONS."""
    return [
        each for each in inputs.values() if is_token_input(each) and each.name not in COMPANIONS
    ]
