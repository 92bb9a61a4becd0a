"""The model in a folder, run by transformers: the reference of `gptrs validate`.

This is the only module of the packages that imports both torch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.image_utils import load_image
from typing_extensions import override

from gptrs.errors import ModelError
from gptrs.plugins.references import Reference
from gptrs.quoting import clipped, quoted
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.gguf_model import GgufModel

_CLASSES: Final[dict[str, Any]] = {
    "causal_lm": transformers.AutoModelForCausalLM,
    "image_classifier": transformers.AutoModelForImageClassification,
    "text_classifier": transformers.AutoModelForSequenceClassification,
    "token_classifier": transformers.AutoModelForTokenClassification,
    "masked_lm": transformers.AutoModelForMaskedLM,
    "text_embedder": transformers.AutoModel,
}
"""The class of transformers that loads a model, by capability."""
_PROCESSOR: Final[Any] = transformers.AutoImageProcessor
_UNUSED = "pooler."
"""Weights tied to the token embeddings, which a folder may lack."""

Result = TypeVar("Result")


class TorchReference(Reference):
    """The model loaded by transformers in f32, only from this folder, without running its code.

    GGUF files count as well: transformers reads them by the package `gguf`.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Load the model; ModelError if transformers cannot, or lacks weights for a part of it."""
        capability = next((name for name in _CLASSES if name in model.capabilities), None)
        if capability is None:
            raise ModelError(
                f"`{model.name}` has no capability that transformers could be compared on"
            )
        self._path = self._folder = model.files.path
        where: dict[str, object] = {"use_safetensors": True}
        if isinstance(model.files, GgufModel):  # transformers dequantizes its weights
            self._folder = self._path.parent
            where = {"gguf_file": self._path.name}
        self._embeds = capability == "text_embedder"
        # transformers warns about every unused weight, and draws bars into the table.
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        loaded, report = self._load(
            _CLASSES[capability].from_pretrained,
            dtype=torch.float32,
            output_loading_info=True,
            **where,
        )
        self._require_weights(report["missing_keys"])
        self._model = loaded.eval()

    @override
    def use_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    @property
    @override
    def versions(self) -> dict[str, str]:
        """Versions of the libraries."""
        return {"torch": str(torch.__version__), "transformers": transformers.__version__}

    @override
    def output(self, inputs: np.ndarray) -> np.ndarray:
        """Return logits of tokens [B, T] or images [B, C, H, W], vectors [B, T, D] of embedders."""
        found = self._run(inputs)
        return _array(found.last_hidden_state if self._embeds else found.logits)

    @override
    def hidden_states(self, inputs: np.ndarray) -> list[np.ndarray]:
        """Return the hidden states in the order of computation."""
        return [_array(s) for s in self._run(inputs, output_hidden_states=True).hidden_states]

    @override
    def modules(self, inputs: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the inputs and outputs of modules, as `NAME.input` and `NAME.output`.

        A name matches the module of the same name, or the only one that ends with it; others are
        left out.
        """
        known = dict(self._model.named_modules())
        found: dict[str, np.ndarray] = {}
        handles: list[Any] = []
        for name in names:
            theirs = [each for each in known if each == name or each.endswith(f".{name}")]
            if name in known or len(theirs) == 1:
                module = known[name if name in known else theirs[0]]
                handles.append(module.register_forward_hook(_reading(name, found)))
        try:
            self._run(inputs)
        finally:
            for handle in handles:
                handle.remove()
        return found

    @override
    def greedy(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """Return the logits [N, V] before each of `count` greedy tokens after a prompt [T]."""
        rows: list[np.ndarray] = []
        # transformers calls it `cache` since 5.24, and warns about the old name.
        takes = inspect.signature(self._model.forward).parameters
        name = "cache" if "cache" in takes else "past_key_values"
        tokens, cache = prompt[np.newaxis], None
        for _ in range(count):
            found = self._run(tokens, **{name: cache}, use_cache=True)
            rows.append(_array(found.logits)[0, -1])
            tokens, cache = np.array([[rows[-1].argmax()]]), getattr(found, name)
        return np.stack(rows)

    @override
    def image(self, path: Path) -> np.ndarray:
        """Return the image [C, H, W] of a file, decoded and preprocessed by transformers."""
        processor: Any = self._load(_PROCESSOR.from_pretrained, backend="pil")
        with Image.open(path) as file:
            found = processor(load_image(file), return_tensors="np")
        return np.asarray(found["pixel_values"][0], np.float32)

    def _run(self, inputs: np.ndarray, **options: object) -> Any:
        with torch.inference_mode():
            return self._model(torch.as_tensor(inputs), **options)

    def _load(self, load: Callable[..., Result], **options: object) -> Result:
        try:
            # Neither the network nor code of the folder: the comparison is with these files alone.
            return load(self._folder, local_files_only=True, trust_remote_code=False, **options)
        except Exception as problem:  # a library may raise anything on untrusted files
            reason = clipped(" ".join(str(problem).split()) or type(problem).__name__, 300)
            raise ModelError(
                f"transformers cannot load {quoted(str(self._path), 200)}: {reason}",
                hint="a plugin can be the reference of a kind: see `gptrs docs extension_points`",
            ) from problem

    def _require_weights(self, missing: set[str]) -> None:
        names = sorted(name for name in missing if not name.startswith(_UNUSED))
        if names:
            raise ModelError(
                f"transformers finds no weights for {len(names)} tensors in"
                f" {quoted(str(self._path), 200)}, such as {quoted(names[0])}",
                hint="compare a folder that transformers saved",
            )


def _reading(name: str, found: dict[str, np.ndarray]) -> Callable[..., None]:
    def read(_: object, given: tuple[Any, ...], result: Any) -> None:
        first: Any = cast("tuple[Any, ...]", result)[0] if isinstance(result, tuple) else result
        told: dict[str, Any] = {"input": given[0] if given else None, "output": first}
        for suffix, value in told.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                # A copy: modules may change their results in place later. The first call counts, as
                # layers may be shared.
                found.setdefault(f"{name}.{suffix}", _array(value).copy())

    return read


def _array(values: torch.Tensor) -> np.ndarray:
    return values.numpy()
