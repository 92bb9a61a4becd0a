"""Image files as an input of an imported model, prepared as the files beside it say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.importers import ModelInput
from gptrs.quick_dataclass import dataclass
from gptrs.strict_json import parse_object
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.images.processor import ImageProcessor
from gptrs_runtime.images.settings import PREPROCESSOR_CONFIG, image_processor_of
from gptrs_runtime.imported.input_roles import IMAGE_EDGE, image_axes, image_inputs
from gptrs_runtime.sources.model_folder import ModelFolder
from gptrs_runtime.sources.model_source import MAX_SETTINGS_BYTES


class FilesBeside:
    """The JSON files in the folder of a model; `preprocessor` stands for the file of that name."""

    def __init__(self, path: Path, preprocessor: Path | None = None) -> None:
        self._folder = ModelFolder(path.parent)
        self._preprocessor = preprocessor

    def read_json(self, name: str) -> dict[str, object] | None:
        """Return the object in a file, None without it; ModelError if it is malformed."""
        if self._preprocessor is not None:
            if name != PREPROCESSOR_CONFIG:
                return None
            return _object_in(self._preprocessor)
        path = self._folder.find(name)
        return None if path is None else _object_in(path)


@dataclass(frozen=True)
class ImageFiles:
    """Reads images for the model in a file, as `preprocessor` or the files beside it say."""

    path: Path
    preprocessor: Path | None = None

    def slot(self, inputs: Mapping[str, ModelInput]) -> ModelInput:
        """Return the one input of images; UsageError where there is none, or several."""
        slots = image_inputs(inputs)
        if len(slots) != 1:
            shown = ", ".join(f"`{each}`" for each in inputs.values())
            raise UsageError(
                f"the model has {len(slots)} inputs of images of 3 channels,"
                " an image file is for those with one",
                hint=f"its inputs are {shown}; give tensors by their names",
            )
        return slots[0]

    def read(self, slot: ModelInput, paths: Sequence[Path]) -> np.ndarray:
        """Return the images as the input takes them, [B, C, H, W] or [B, H, W, C].

        UsageError where they do not fit together or the model takes another number of them.
        """
        axes = image_axes(slot)
        assert axes is not None
        assert slot.shape is not None
        if isinstance(slot.shape[0], int) and slot.shape[0] != len(paths):
            raise UsageError(
                f"`{slot}` takes {slot.shape[0]} images at once, got {len(paths)}",
                hint="give as many with --input",
            )
        processor = self._processor(slot, (slot.shape[axes.height], slot.shape[axes.width]))
        rows = [processor(read_image(path, on_white=processor.on_white)) for path in paths]
        if len({row.shape for row in rows}) != 1:
            raise UsageError("images of one batch need one size", hint="run them one by one")
        batch = np.stack(rows)
        if axes.channels == 3:
            batch = np.ascontiguousarray(batch.transpose(0, 2, 3, 1))
        return batch.astype(slot.dtype.numpy)

    def _processor(self, slot: ModelInput, edges: tuple[int | str, int | str]) -> ImageProcessor:
        height, width = (edge if isinstance(edge, int) else IMAGE_EDGE for edge in edges)
        files = FilesBeside(self.path, self.preprocessor)
        processor = image_processor_of(files, "", (height, width))
        if slot.dtype.is_float:
            return processor
        return dataclasses.replace(processor, factor=None, mean=None, std=None, offset=0.0)


def _object_in(path: Path) -> dict[str, object]:
    found = parse_object(read_whole(path, MAX_SETTINGS_BYTES), str(path))
    if not found:
        raise ModelError(f"`{path}` says nothing")
    return found
