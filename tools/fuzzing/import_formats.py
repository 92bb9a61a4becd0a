"""Models of other libraries: which of these are installed, and inputs to try the models on."""

from __future__ import annotations

import math
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from fuzzing.file_formats import FileFormat
from gptrs.api.importers import ImportedModel, ModelInput

IMPORTED = {
    "onnx": ("fuzzing.onnx_files", ("onnx", "gptrs_onnx")),
    "pt2": ("fuzzing.torch_archives", ("torch", "gptrs_torch")),
}
"""Modules with a `FORMAT`, and what they need."""
LARGEST = 10_000
"""Most elements of an input that is made up."""


def import_formats(asked: Collection[str] = ()) -> dict[str, FileFormat]:
    """Return the formats whose libraries are installed, by name: all of them, or those asked for.

    Their libraries are imported.
    """
    return {
        name: import_module(module).FORMAT
        for name, (module, needed) in IMPORTED.items()
        if (not asked or name in asked) and all(map(find_spec, needed))
    }


def run_on_ones(model: ImportedModel) -> None:
    """Run a model on inputs that are made up, unless these are large."""
    shapes = {name: _shape(slot) for name, slot in model.inputs.items()}
    if all(math.prod(shape) <= LARGEST for shape in shapes.values()):
        slots = model.inputs
        model(**{name: np.ones(s, slots[name].dtype.numpy) for name, s in shapes.items()})


def _shape(slot: ModelInput) -> list[int]:
    return [2 if isinstance(size, str) else size for size in slot.shape or ()]
