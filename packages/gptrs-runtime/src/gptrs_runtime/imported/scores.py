"""The best classes or tokens in the outputs of an imported model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.backend.settings import Precision
from gptrs.capture.execute import use_backend
from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import GptrsError, ModelError, UnsupportedError, UsageError
from gptrs.ir.program import Program
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.exporters import ImportedModel, ModelInput, import_model, shown_inputs
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted
from gptrs.spans import span
from gptrs.strict_json import parse_object
from gptrs_runtime.forward import TOP, best_scores, class_label, softmax
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.images.processor import ImageProcessor
from gptrs_runtime.images.settings import PREPROCESSOR_CONFIG, image_processor_of
from gptrs_runtime.load_options import LoadOptions, MachineOptions
from gptrs_runtime.option_fields import option_fields
from gptrs_runtime.results import Score
from gptrs_runtime.sources.model_folder import ModelFolder
from gptrs_runtime.sources.model_source import MAX_SETTINGS_BYTES

# A model from a file of another format on a backend, whose errors are wrapped.


_DEFAULTS: Final = LoadOptions()
_TAKEN: Final = (*option_fields(MachineOptions), "precision")
"""Options of loading that change no weights."""


class LoadedImport(Struct, frozen=True):
    """A model read from `path` by the plugin `importer`, ready to run on `backend`."""

    path: Path
    importer: str
    model: ImportedModel
    backend: Backend
    load_seconds: float

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def precision(self) -> Precision:
        """The precision of products."""
        return self.backend.precision

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        GptrsErrors propagate; any other error, or a result that is not a dict of arrays, becomes a
        PluginError that names the importer.
        """
        try:
            with use_backend(self.backend):
                found = cast("object", self.model(**arrays))
            return named_arrays(found)
        except (KeyboardInterrupt, GptrsError):
            raise
        except BaseException as error:
            raise manager().broken(ImporterPlugin, self.importer, error) from error

    def program(self, arrays: Mapping[str, np.ndarray]) -> Program:
        """Return the program for inputs like these, before it is optimized.

        UnsupportedError if the importer makes models without one.
        """
        make = getattr(self.model, "program", None)
        if make is None:
            raise UnsupportedError(f"models of the importer `{self.importer}` show no program")
        try:
            with use_backend(self.backend):
                found = make(**arrays)
            if not isinstance(found, Program):
                raise TypeError(f"`program` gave a `{type(found).__name__}`")
        except (KeyboardInterrupt, GptrsError):
            raise
        except BaseException as error:
            raise manager().broken(ImporterPlugin, self.importer, error) from error
        return found


def load_import(path: Path, importer: str, options: LoadOptions = _DEFAULTS) -> LoadedImport:
    """Return the model in a file.

    UsageError for options that change weights, whose layers its graph does not name. Raises the
    errors of `import_model`.
    """
    started = time.perf_counter()
    own = [name for name in option_fields(LoadOptions) if name not in _TAKEN]
    options.refuse(f"{quoted(str(path), 200)}, which the importer `{importer}` reads,", own)
    with span("load model"):
        engine = options.made_backend().with_precision(options.precision)
        model = import_model(path, importer, engine)
    return LoadedImport(path, importer, model, engine, time.perf_counter() - started)


def named_arrays(found: object) -> dict[str, np.ndarray]:
    """Return outputs as arrays by name, those of a list as `name[0]`; TypeError for others."""
    if not isinstance(found, dict):
        raise TypeError(f"its model gave a `{type(found).__name__}`, arrays by name are needed")
    made: dict[str, np.ndarray] = {}
    for name, value in cast("dict[object, object]", found).items():
        listed = isinstance(value, list)
        for place, each in enumerate(cast("list[object]", value) if listed else [value]):
            if not isinstance(name, str) or not isinstance(each, np.ndarray):
                raise TypeError(f"its model gave a `{type(each).__name__}` as {name!r:.60}")
            made[f"{name}[{place}]" if listed else name] = each
    return made


# The inputs of an imported model by use: images, tokens, and companions of tokens.
#
# Recognized by type and shape, and by the names that exporters of text models agree on.


IMAGE_EDGE: Final = 224
"""The edge of images for models that accept any size."""
_CHANNELS: Final = 3


class ImageAxes(Struct, frozen=True):
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
"""Companion inputs of tokens [B, T], for texts without padding."""


def image_axes(each: ModelInput) -> ImageAxes | None:
    """Return the axes of an input for images of 3 channels, floats or bytes; None for others."""
    shape = each.shape or ()
    if len(shape) != 4 or not (each.dtype.is_float or each.dtype.name == "ui8"):
        return None
    if shape[1] == _CHANNELS:
        return _FIRST
    return _LAST if shape[3] == _CHANNELS else None


def image_inputs(inputs: Mapping[str, ModelInput]) -> list[ModelInput]:
    """Return the inputs that are images; one that may be omitted is a weight."""
    return [e for e in inputs.values() if not e.optional and image_axes(e) is not None]


def is_token_input(each: ModelInput) -> bool:
    """Return whether an input that is needed is integers [B, T]."""
    is_ids = each.dtype.is_integer and not each.dtype.is_bool
    return is_ids and not each.optional and len(each.shape or ()) == 2


def token_inputs(inputs: Mapping[str, ModelInput]) -> list[ModelInput]:
    """Return the inputs that are token ids: integers [B, T] that are not in COMPANIONS."""
    return [
        each for each in inputs.values() if is_token_input(each) and each.name not in COMPANIONS
    ]


# Image files as an input of an imported model, preprocessed as the files next to it say.


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


class ImageFiles(Struct, frozen=True):
    """Reads images for the model in a file, as `preprocessor` or the files next to it say."""

    path: Path
    preprocessor: Path | None = None

    def slot(self, inputs: Mapping[str, ModelInput]) -> ModelInput:
        """Return the only image input; UsageError if there is none, or several."""
        slots = image_inputs(inputs)
        if len(slots) != 1:
            shown = shown_inputs(inputs, "`")
            raise UsageError(
                f"the model has {len(slots)} inputs of images of 3 channels,"
                " an image file is for those with one",
                hint=f"its inputs are {shown}; give tensors by their names",
            )
        return slots[0]

    def read(self, slot: ModelInput, paths: Sequence[Path]) -> np.ndarray:
        """Return the images as the input takes them, [B, C, H, W] or [B, H, W, C].

        UsageError if they do not fit together or the model takes another number of them.
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
        return replace(processor, factor=None, mean=None, std=None, offset=0.0)


def _object_in(path: Path) -> dict[str, object]:
    found = parse_object(read_whole(path, MAX_SETTINGS_BYTES), str(path))
    if not found:
        raise ModelError(f"`{path}` says nothing")
    return found


_LOGITS: Final = "logits"
_CONFIG: Final = "config.json"
_NO_LABELS: Final[Mapping[str, object]] = {}
_CLOSE: Final = 1e-3
"""Tolerance of a sum of probabilities from 1, for any element type."""


class ImportedScores(Struct, frozen=True):
    """The outcome of a run: the output with scores, [B, classes] or [B, T, V], and the best ones.

    Token scores are those of the last position. `are_probabilities`: the model ends with a softmax.
    """

    output: str
    scores: np.ndarray
    best: tuple[tuple[Score, ...], ...]
    are_tokens: bool
    are_probabilities: bool
    seconds: float


def run_scores(
    loaded: LoadedImport, arrays: Mapping[str, np.ndarray], top: int = TOP
) -> ImportedScores:
    """Run a model and find the `top` best of each row, or all that there are.

    They are looked for in the output called `logits`, else in the first one of the right shape.
    UsageError if no output has scores; otherwise raises the errors of `LoadedImport.run`.
    """
    started = time.perf_counter()
    outputs = loaded.run(arrays)
    seconds = time.perf_counter() - started
    reads_tokens = bool(token_inputs(loaded.model.inputs))
    name, scores = _scores(outputs, reads_tokens)
    rows = scores[:, -1] if scores.ndim == 3 else scores
    are_tokens = scores.ndim == 3
    label = _nameless if are_tokens else _labels(loaded, rows.shape[-1])
    sure = bool(rows.min() >= 0 and np.abs(rows.sum(-1, dtype=np.float64) - 1).max() < _CLOSE)
    best = tuple(best_scores(row, row if sure else softmax(row), top, label) for row in rows)
    return ImportedScores(name, scores, best, are_tokens, sure, seconds)


def _scores(outputs: Mapping[str, np.ndarray], reads_tokens: bool) -> tuple[str, np.ndarray]:
    """Return the name of the output with scores, and these, f32."""
    names = sorted(outputs, key=lambda name: name != _LOGITS)
    for name in names:
        array = outputs[name]
        if array.ndim == 4 and array.shape[2:] == (1, 1):
            array = array[:, :, 0, 0]
        if array.ndim in ((2, 3) if reads_tokens else (2,)) and array.size and _is_float(array):
            return name, array.astype(np.float32)
    shown = ", ".join(f"{quoted(each)} {list(outputs[each].shape)}" for each in outputs)
    raise UsageError(
        f"the model returns no scores of classes [batch, classes], but {shown}",
        hint="`gptrs run` prints the raw outputs",
    )


def _nameless(index: int) -> str:
    del index
    return ""


def _is_float(array: np.ndarray) -> bool:
    return bool(np.can_cast(array.dtype, np.float64)) and array.dtype.kind not in "iub"


def _labels(loaded: LoadedImport, classes: int) -> Callable[[int], str]:
    """Return the names of classes in the config.json next to the file, if their number matches."""
    config = FilesBeside(loaded.path).read_json(_CONFIG) or {}
    labels = config.get("id2label")
    if isinstance(labels, Mapping) and len(cast("Mapping[object, object]", labels)) == classes:
        return partial(class_label, config)
    return partial(class_label, _NO_LABELS)
