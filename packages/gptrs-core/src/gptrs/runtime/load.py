"""Load a model of any kind: the directory names the kind, a plugin builds it, a backend runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from gptrs.backend.protocol import Backend
from gptrs.checkpoint.hf_directory import CONFIG, HfDirectory
from gptrs.checkpoint.param_source import ParamSource
from gptrs.checkpoint.params import Params
from gptrs.errors import ModelError, UsageError
from gptrs.functionals.active_overrides import Choice, entered
from gptrs.plugins.capabilities import CausalLM, ImageClassifier, capabilities_of
from gptrs.plugins.manager import manager
from gptrs.runtime.functional_overrides import OverriddenModel, model_choices
from gptrs.runtime.image_processor import ImageProcessor
from gptrs.runtime.image_settings import JsonFiles, image_processor_of
from gptrs.runtime.tokenizer import TextTokenizer


class LoadedModel:
    """A model ready to run, whatever its kind.

    `kind` is the `model_type` of its config, `config` the whole of config.json, `capabilities` what
    it can do (`causal_lm`: generate text), `load_seconds` the time that loading took. Weights are
    read from the memory-mapped checkpoint when a run first needs them. The model runs with the
    overrides of functionals in `overrides`.
    """

    def __init__(
        self,
        name: str,
        directory: HfDirectory,
        module: object,
        backend: Backend,
        load_seconds: float,
        overrides: Mapping[str, Choice],
    ) -> None:
        self.name = name
        self.kind = directory.model_type
        self.config: Mapping[str, object] = directory.config
        self.generation_config: Mapping[str, object] = directory.generation_config
        self.capabilities = capabilities_of(module)
        self.backend = backend
        self.load_seconds = load_seconds
        self._module = OverriddenModel(module, overrides) if overrides else module
        self._files: JsonFiles = directory
        self._image_processor: ImageProcessor | None = None
        self.weights: ParamSource = directory.weights
        self.tokenizer_path = directory.tokenizer
        self._tokenizer: TextTokenizer | None = None

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """Run the model once and give its logits.

        An integer array [B, T] of tokens gives f32 [B, T, V], floats [B, channels, H, W], images as
        `image_processor` prepares them, give f32 [B, classes]. UsageError for an array that is not
        of the kind that the model takes, an unknown token, or more tokens than the context.
        """
        array = np.asarray(inputs)
        if "image_classifier" in self.capabilities:
            classifier = self.image_classifier()
            require_images(array, self.kind, classifier.channels)
            return classifier.classify(array.astype(np.float32, copy=False))
        lm = self.causal_lm()
        if array.ndim != 2 or array.dtype.kind not in "iu" or 0 in array.shape:
            raise UsageError(
                f"a `{self.kind}` model takes an integer array [B, T] of tokens,"
                f" got {array.dtype}{list(array.shape)}"
            )
        if array.shape[1] > lm.context_length:
            raise UsageError(
                f"{array.shape[1]} tokens exceed the context of {lm.context_length} tokens"
            )
        require_known_tokens(array, lm.vocab_size)
        return lm.forward(array.astype(np.int64))

    def causal_lm(self) -> CausalLM:
        """The model as a causal language model; ModelError when it is none."""
        if "causal_lm" not in self.capabilities:
            can = ", ".join(sorted(self.capabilities)) or "nothing that gptrs knows"
            raise ModelError(f"`{self.name}` cannot generate text", hint=f"it offers: {can}")
        return cast("CausalLM", self._module)

    def image_classifier(self) -> ImageClassifier:
        """The model as a classifier of images; ModelError when it is none."""
        if "image_classifier" not in self.capabilities:
            can = ", ".join(sorted(self.capabilities)) or "nothing that gptrs knows"
            raise ModelError(f"`{self.name}` takes no images", hint=f"it offers: {can}")
        return cast("ImageClassifier", self._module)

    @property
    def image_processor(self) -> ImageProcessor:
        """What prepares an image; ModelError for unsupported settings, or a model of no images."""
        if self._image_processor is None:
            default = self.image_classifier().processor
            self._image_processor = image_processor_of(self._files, default)
        return self._image_processor

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer beside the weights; ModelError when there is none."""
        if self._tokenizer is None:
            if self.tokenizer_path is None:
                raise ModelError(
                    f"`{self.name}` has no tokenizer.json",
                    hint="add the file, or give token ids instead of text (--prompt-ids)",
                )
            self._tokenizer = TextTokenizer(self.tokenizer_path)
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be encoded and decoded."""
        return self.tokenizer_path is not None

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The tokens that end a text: of generation_config.json, else of config.json."""
        return frozenset(self._token_setting("eos_token_id"))

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text, if the model has one."""
        tokens = self._token_setting("bos_token_id")
        return tokens[0] if tokens else None

    def _token_setting(self, name: str) -> list[int]:
        for settings in (self.generation_config, self.config):
            value = settings.get(name)
            if value is None:
                continue
            tokens = cast("list[object]", value) if isinstance(value, list) else [value]
            if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
                raise ModelError(f"`{name}` must be a token or a list of tokens, got {value!r}")
            return cast("list[int]", tokens)
        return []


def require_images(array: np.ndarray, kind: str, channels: int) -> None:
    """UsageError unless `array` holds images of floats with that many channels."""
    if array.ndim != 4 or array.dtype.kind != "f" or 0 in array.shape or array.shape[1] != channels:
        raise UsageError(
            f"a `{kind}` model takes images of floats [B, {channels}, H, W],"
            f" got {array.dtype}{list(array.shape)}"
        )


def require_known_tokens(tokens: np.ndarray | Sequence[int], vocab_size: int) -> None:
    """UsageError that names the first token outside [0, vocab_size)."""
    array = np.asarray(tokens)
    bad = array[(array < 0) | (array >= vocab_size)]
    if bad.size:
        raise UsageError(f"token {bad[0]} is not in the vocabulary of {vocab_size} tokens")


def load_model(
    path: str | Path | None = None, backend: str | None = None, threads: int | None = None
) -> LoadedModel:
    """Load the model in directory `path` (None: the bundled demo model) on a backend by name.

    Without `backend` the one in `GPTRS_BACKEND` or the installed one of highest priority is taken;
    `threads` None leaves their number to it. Raises ModelError (no such directory, unknown kind,
    unsupported setting), CheckpointError (damaged or missing weights) or PluginError (backend).

    All that the model computes follows `runtime.functional_overrides` of its config.json, an object
    of policies as `gptrs.overrides` takes them, where the variable `GPTRS_OVERRIDES`, a comma list
    of FUNCTIONAL=POLICY, or an override in force says nothing else.
    """
    started = time.perf_counter()
    plugins = manager()
    folder = plugins.demo_model_path() if path is None else Path(path)
    directory = HfDirectory.open(folder)
    factory = plugins.model_factory(directory.model_type)
    engine = plugins.get_backend(backend, threads)
    params = Params(directory.weights, backend=engine, origin=str(folder))
    choices = model_choices(directory.config, str(directory.path / CONFIG))
    with entered(choices):
        module = factory(directory.config, params)
    elapsed = time.perf_counter() - started
    return LoadedModel(folder.resolve().name, directory, module, engine, elapsed, choices)
