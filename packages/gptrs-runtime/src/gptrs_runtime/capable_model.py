"""A model by its capabilities: returns it as the protocol asked for, or raises an error that lists
its capabilities."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

import numpy as np

from gptrs.errors import ModelError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.plugins.capabilities import (
    CausalLM,
    CTCModel,
    ImageClassifier,
    ImageEmbedder,
    ImageTextScorer,
    MaskedLM,
    Seq2SeqLM,
    SoundTranscriber,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
    Transcriber,
)

if TYPE_CHECKING:
    from gptrs_runtime.images.image_prompts import TextsWithImages


# A language model as an embedder: its last states are the token vectors.


class CausalStates(Protocol):
    """A causal language model with accessible hidden states."""

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the states by name, in the order of computation."""
        ...


class CausalEmbedder:
    """A `TextEmbedder` made from a language model, as in sentence-transformers.

    A token sees only earlier tokens, so padding after a text does not affect it.
    """

    def __init__(self, model: CausalStates) -> None:
        self._model = model

    @property
    def context_length(self) -> int:
        """Most tokens of a text."""
        return self._model.context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._model.vocab_size

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the state after the final norm, si64 [B, T] -> f32 [B, T, C].

        ContextLengthError if T is too large.
        """
        del mask  # padding follows the text
        *_, last = self._model.hidden_states(tokens).values()
        return last


_WITH_LOGITS: Final = ("causal_lm", "text_classifier", "token_classifier", "masked_lm")
AS_EMBEDDER: Final = frozenset({"causal_lm", "hidden_states"})
"""The capabilities that a language model needs to embed texts with sentence-transformers files."""
RERANKER: Final = "reranker"
"""The capability of a language model whose files name the logits that form a score."""
_NO_TEXT: Final = "cannot generate text"
_READING: Final = (*_WITH_LOGITS, "seq2seq", "text_embedder", "image_text")
_OF_IMAGES: Final = ("image_classifier", "image_embedder")
_COMMANDS: Final = {
    "causal_lm": "generate",
    "ctc": "transcribe",
    "image_classifier": "forward",
    "image_embedder": "embed --image",
    "image_text": "match",
    "masked_lm": "fill",
    "reranker": "rank",
    "seq2seq": "generate",
    "sound_transcriber": "transcribe",
    "text_classifier": "classify",
    "text_embedder": "embed",
    "token_classifier": "tag",
    "transcriber": "transcribe",
}
"""The command for models with each capability."""


class CapableModel:
    """A model of any kind called `name`, whose `module` implements `capabilities`."""

    def __init__(self, name: str, capabilities: frozenset[str], module: object) -> None:
        self.name = name
        self.capabilities = capabilities
        self.module = module

    @property
    def has_logits(self) -> bool:
        """Whether `forward` can return logits; an embedder without a head has only vectors."""
        return not self.capabilities.isdisjoint(("image_classifier", *_WITH_LOGITS))

    def causal_lm(self) -> CausalLM:
        """Return the model as a causal language model; ModelError if it is not one."""
        reads = "seq2seq" in self.capabilities
        otherwise = (
            "translates or summarizes texts, and does not continue them" if reads else _NO_TEXT
        )
        return cast("CausalLM", self.offering("causal_lm", otherwise))

    def image_classifier(self) -> ImageClassifier:
        """Return the model as an image classifier; ModelError if it is not one."""
        return cast("ImageClassifier", self.offering("image_classifier", "takes no images"))

    @property
    def takes_images(self) -> bool:
        """Whether the model takes images, not tokens."""
        return not self.capabilities.isdisjoint(_OF_IMAGES)

    def image_reader(self) -> ImageClassifier | ImageEmbedder:
        """Return the model as a reader of images, with any output; ModelError if it is not one."""
        name = next((name for name in _OF_IMAGES if name in self.capabilities), _OF_IMAGES[0])
        return cast("ImageClassifier", self.offering(name, "takes no images"))

    def image_embedder(self) -> ImageEmbedder:
        """Return the model as an embedder of images; ModelError if it is not one."""
        return cast("ImageEmbedder", self.offering("image_embedder", "cannot embed images"))

    def image_lm(self) -> TextsWithImages:
        """Return the model as one that reads images among texts; ModelError if it is not one."""
        return cast("TextsWithImages", self.offering("image_lm", "reads no images among texts"))

    def image_text(self) -> ImageTextScorer:
        """Return the model as one that compares images and texts; ModelError if it is not one."""
        found = self.offering("image_text", "does not compare images with texts")
        return cast("ImageTextScorer", found)

    def text_embedder(self) -> TextEmbedder:
        """Return the model as a text embedder; ModelError if it is not one."""
        found = self.offering("text_embedder", "cannot embed texts")
        if self.capabilities >= AS_EMBEDDER:
            return CausalEmbedder(cast("CausalStates", found))
        return cast("TextEmbedder", found)

    def text_classifier(self) -> TextClassifier:
        """Return the model as a classifier of texts; ModelError if it is not one."""
        return cast("TextClassifier", self.offering("text_classifier", "has no classes of texts"))

    def ranker(self) -> object:
        """Return the model as one that scores pairs of texts; ModelError if it is not one."""
        if RERANKER in self.capabilities:
            return self.module
        return self.offering("text_classifier", "has no score of a query and a document")

    def token_classifier(self) -> TokenClassifier:
        """Return the model as a classifier of tokens; ModelError if it is not one."""
        found = self.offering("token_classifier", "has no classes of tokens")
        return cast("TokenClassifier", found)

    def masked_lm(self) -> MaskedLM:
        """Return the model as one that predicts masked tokens; ModelError if it is not one."""
        return cast("MaskedLM", self.offering("masked_lm", "predicts no masked tokens"))

    def seq2seq(self) -> Seq2SeqLM:
        """Return the model as an encoder-decoder for texts; ModelError if it is not one."""
        return cast("Seq2SeqLM", self.offering("seq2seq", "reads no text to write another"))

    def transcriber(self) -> Transcriber:
        """Return the model as a transcriber of log-mel windows; ModelError if it is not one."""
        return cast("Transcriber", self.offering("transcriber", "does not hear"))

    def sound_transcriber(self) -> SoundTranscriber:
        """Return the model as a transcriber of raw audio; ModelError if it is not one."""
        return cast("SoundTranscriber", self.offering("sound_transcriber", "does not hear"))

    def ctc(self) -> CTCModel:
        """Return the model as one that scores tokens per frame; ModelError if it is not one."""
        return cast("CTCModel", self.offering("ctc", "does not score the frames of a sound"))

    def hearer(self) -> Transcriber | SoundTranscriber | CTCModel:
        """Return the model as a reader of audio, with any output; ModelError if it is not one."""
        if "sound_transcriber" in self.capabilities:
            return self.sound_transcriber()
        return self.ctc() if "ctc" in self.capabilities else self.transcriber()

    def token_reader(
        self,
    ) -> (
        CausalLM
        | Seq2SeqLM
        | TextEmbedder
        | TextClassifier
        | TokenClassifier
        | MaskedLM
        | ImageTextScorer
    ):
        """Return the model as a reader of tokens, with any output; ModelError if it is not one."""
        offers = (name for name in _READING if name in self.capabilities)
        name = next(offers, "causal_lm")
        return cast("CausalLM", self.offering(name, "takes no tokens"))

    def offering(self, capability: str, otherwise: str) -> object:
        """Return the module; ModelError for a model without the capability, listing those it
        has."""
        if capability not in self.capabilities:
            offered = sorted(self.capabilities)
            can = ", ".join(offered) or "nothing that gptrs knows"
            commands = sorted(
                {f"`gptrs {_COMMANDS[each]}`" for each in offered if each in _COMMANDS}
            )
            shown = f" ({', '.join(commands)})" if commands else ""
            raise ModelError(f"`{self.name}` {otherwise}", hint=f"it offers: {can}{shown}")
        return self.module


# Runs library calls that recurse as deeply as an untrusted text nests on a large enough stack.


T = TypeVar("T")

_LEAST: Final = 8 << 20
_STEP: Final = 1 << 20
_lock = ForkSafeLock()
"""The stack size of new threads is a process-wide setting, hence the lock."""


def on_deep_stack(function: Callable[[], T], stack_bytes: int) -> T:
    """Return the result of `function`, called on a stack of at least `stack_bytes`.

    Only the part in use takes memory. Errors of the function propagate; MemoryError if there is no
    room for the stack.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            done.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call, name="gptrs-deep-stack", daemon=True)
    with _lock:
        before = threading.stack_size(max(_LEAST, -(-stack_bytes // _STEP) * _STEP))
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no memory is left for a stack of {stack_bytes} bytes") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
