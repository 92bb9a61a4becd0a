"""Capabilities of models: the protocols that the runtime calls, and how a model claims one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from gptrs.errors import PluginError

if TYPE_CHECKING:
    import numpy as np

    from gptrs.ir.dtypes import DType
    from gptrs.nn.cache_spec import CacheSpec
    from gptrs.nn.decoder_cache import DecoderState
    from gptrs.nn.greedy_steps import Chosen, GreedySteps
    from gptrs.nn.page_buffers import PageBuffers
    from gptrs.nn.ragged_step import RaggedStep


class _KnowsTokens(Protocol):
    """A model of texts as tokens, ids in [0, vocab_size)."""

    @property
    def context_length(self) -> int:
        """Most positions of a text that it reads or writes."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        ...


class _WritesTexts(_KnowsTokens, Protocol):
    """A model that writes a text about what it has read or heard."""

    def write(self, tokens: np.ndarray, state: DecoderState) -> np.ndarray:
        """Append tokens si64 [B, T] to the texts; return the logits f32 [B, T, V] after each.

        ContextLengthError for texts that are too long, before any work.
        """
        ...


class _ReadsImages(Protocol):
    """A model of images."""

    @property
    def channels(self) -> int:
        """Channels of the images: 3 for red, green and blue."""
        ...

    @property
    def processor(self) -> str:
        """The processor of transformers for images of its kind, where the files name none."""
        ...


class CausalLM(_KnowsTokens, Protocol):
    """The capability `causal_lm`: predicts the next token from those before it.

    Tokens are ids in [0, vocab_size); logits are f32. The logits of a text do not depend on other
    texts in the step, nor on how it was cut into steps, to rounding at least.
    """

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits [B, T, V] of every position; ContextLengthError if T is too large."""
        ...

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return what the cache of each layer holds; see `gptrs.nn.cache_groups`."""
        ...

    def new_buffers(self, pages: Sequence[int], dtype: DType = ...) -> PageBuffers:
        """Return empty pools of `dtype`, f32 without it, with `pages` for each cache group."""
        ...

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append the new tokens of B texts to `buffers`; return the logits [B, V] after each text.

        ContextLengthError when a text would exceed the context, before any work. After another
        error `buffers.usable` says whether the pages of before are still there.
        """
        ...


class RepeatingLM(Protocol):
    """A `CausalLM` that takes several steps in one run, as every `CausalLMModule` does."""

    @property
    def repeats_steps(self) -> bool:
        """Whether `greedy_steps` does what `step` does."""
        ...

    def greedy_steps(self, steps: GreedySteps, buffers: PageBuffers) -> Chosen:
        """Append the tokens of several steps to `buffers`; return what was chosen after each.

        Errors as of `step`.
        """
        ...


class ImageLM(Protocol):
    """The capability `image_lm`: a `CausalLM` that reads images among the tokens of a text.

    An image becomes square pictures, as transformers' Idefics3ImageProcessor makes them; each of
    these is read as `picture_tokens` vectors, where the text has as many tokens `image_token`.
    """

    @property
    def image_token(self) -> int:
        """The token in whose places the vectors stand."""
        ...

    @property
    def image_mark(self) -> str:
        """The text of that token, which chat templates write once for each image."""
        ...

    @property
    def picture_size(self) -> int:
        """Rows and columns of a picture."""
        ...

    @property
    def picture_tokens(self) -> int:
        """Vectors of a picture."""
        ...

    def image_prompt(self, rows: int, columns: int) -> str:
        """Return the text for an image of `rows` x `columns` pictures and one of the whole.

        With 0 of both there is that of the whole alone. It has a mark for each vector.
        """
        ...

    def image_vectors(self, pictures: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, T, E] of pictures f32 [B, channels, S, S], normalized."""
        ...

    def mixed_step(
        self, step: RaggedStep, vectors: np.ndarray, given: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run `step` where row n is `vectors[n]`, f32 [N, E], if `given[n]`, i1 [N], says so."""
        ...


class ImageClassifier(_ReadsImages, Protocol):
    """The capability `image_classifier`: gives each class of images a score."""

    def classify(self, images: np.ndarray) -> np.ndarray:
        """Return the logits [B, classes] of images f32 [B, channels, H, W], normalized."""
        ...


class ImageEmbedder(_ReadsImages, Protocol):
    """The capability `image_embedder`: gives each image a vector, for searches by likeness."""

    def embed_images(self, images: np.ndarray) -> np.ndarray:
        """Return the vectors [B, E] of images f32 [B, channels, H, W], normalized as it needs."""
        ...


class ImageTextScorer(_KnowsTokens, Protocol):
    """The capability `image_text`: vectors of texts lie in the space of those of images.

    Such a model is an `ImageEmbedder`, too. A text belongs to an image as far as the cosine of both
    vectors says, times a scale and plus a bias.
    """

    @property
    def pads_texts(self) -> bool:
        """Whether each text is filled up to the context with the tokenizer's token of padding."""
        ...

    @property
    def independent_scores(self) -> bool:
        """Whether each score is a probability by its sigmoid, not by a softmax."""
        ...

    def embed_texts(self, tokens: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, E] of tokens si64 [B, T], padded at the right.

        ContextLengthError if T is too large.
        """
        ...

    def scale_and_bias(self) -> tuple[float, float]:
        """Return what cosines are multiplied with, and what is added then."""
        ...


class TextEmbedder(_KnowsTokens, Protocol):
    """The capability `text_embedder`: gives each token of a text a vector.

    Pooling and normalization do not depend on the kind of model: the files beside the weights
    configure them, and `gptrs.embed` applies them.
    """

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, T, C] of tokens si64 [B, T], where `mask`, i1 [B, T], is true.

        Each text begins in the first column and has a token at least; padding, any known token,
        follows it. Vectors of padding are finite and mean nothing. A row's vectors are those that
        it has alone, to rounding. Few programs serve all B and T (`jit(dynamic=...)`) on a backend
        that takes symbols. ContextLengthError if T is too large.
        """
        ...


class TextClassifier(_KnowsTokens, Protocol):
    """The capability `text_classifier`: gives each class of a text, or of a pair, a score.

    `id2label` of config.json names the classes; `gptrs.classify` and `gptrs.rank` make
    probabilities of the scores. Texts and padding lie as for a `TextEmbedder`.
    """

    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        """Return the logits f32 [B, classes] of tokens si64 [B, T], where `mask`, i1, is true.

        `segments`, si64 [B, T], are those of the tokenizer: 1 for the second text of a pair. A kind
        that has none of them ignores them.
        """
        ...


class TokenClassifier(_KnowsTokens, Protocol):
    """The capability `token_classifier`: gives each class of each token a score (NER, tagging)."""

    def classify_tokens(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the logits f32 [B, T, classes] of tokens si64 [B, T], where `mask`, i1, is true.

        Texts and padding lie as for a `TextEmbedder`.
        """
        ...


class MaskedLM(_KnowsTokens, Protocol):
    """The capability `masked_lm`: predicts tokens that are masked, from both sides."""

    def predict_tokens(
        self, tokens: np.ndarray, mask: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the logits f32 [N, V] at `positions`, si64 [N] in [0, B * T), of the flat batch.

        Tokens si64 [B, T] and mask i1 [B, T] lie as for a `TextEmbedder`.
        """
        ...


class Seq2SeqLM(_WritesTexts, Protocol):
    """The capability `seq2seq`: reads a text, its source, and writes another one about it.

    Texts that are written begin with the token that generation_config.json or config.json calls
    `decoder_start_token_id`. A text does not depend on others in the batch, to rounding at least.
    """

    @property
    def source_length(self) -> int:
        """Most tokens of a source."""
        ...

    def read_sources(self, tokens: np.ndarray, mask: np.ndarray) -> DecoderState:
        """Read sources si64 [B, S], where `mask`, i1 [B, S], is true; return texts without tokens.

        Sources and padding lie as for a `TextEmbedder`. ContextLengthError if S is too large.
        """
        ...


class Transcriber(_WritesTexts, Protocol):
    """The capability `transcriber`: hears windows of sound, and writes down what is said."""

    @property
    def mel_bins(self) -> int:
        """Number of frequencies of the features."""
        ...

    @property
    def frames(self) -> int:
        """Frames of a window, 100 a second."""
        ...

    def hear(self, features: np.ndarray) -> DecoderState:
        """Read windows f32 [B, mel_bins, frames] of log-mel features; return texts without tokens.

        The features are those of transformers' `WhisperFeatureExtractor`.
        """
        ...


class SoundTranscriber(_WritesTexts, Protocol):
    """The capability `sound_transcriber`: hears sounds as they are, and writes down what is said.

    Texts begin with `decoder_start_token_id`, as those of a `Seq2SeqLM`.
    """

    def frame_count(self, samples: int) -> int:
        """Return how many frames so many samples have, 0 of a sound that is too short."""
        ...

    def hear_sounds(self, samples: np.ndarray, lengths: Sequence[int]) -> DecoderState:
        """Read sounds f32 [B, N]; return texts without tokens.

        Row b has `lengths[b]` samples, each with a frame at least; padding follows them, and
        changes nothing but roundings.
        """
        ...


class CTCModel(Protocol):
    """The capability `ctc`: scores the tokens of each frame of a sound.

    A text is read off the best tokens: equal neighbours are one, and the blank is none
    (connectionist temporal classification, Graves et al. 2006).
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        ...

    @property
    def frame_samples(self) -> int:
        """Samples between two frames."""
        ...

    def frame_count(self, samples: int) -> int:
        """Return how many frames so many samples have, 0 of a sound that is too short."""
        ...

    def score_frames(self, samples: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Return the logits f32 [B, T, V] of the frames of sounds f32 [B, N].

        Row b has `lengths[b]` samples, each with a frame at least; padding follows them. Its first
        `frame_count(lengths[b])` frames are those that it has alone, to rounding.
        """
        ...


class HiddenStates(Protocol):
    """The capability `hidden_states`: returns the states between its layers."""

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the states by name, in the order of computation; inputs as those of `forward`.

        `embeddings`, then `layer.0`, `layer.1`, ..., each [B, T, C]: what transformers calls
        `hidden_states`, where the last one has been through the final norm.
        """
        ...


PROTOCOLS: Final[dict[str, type]] = {
    "causal_lm": CausalLM,
    "image_lm": ImageLM,
    "image_classifier": ImageClassifier,
    "image_embedder": ImageEmbedder,
    "image_text": ImageTextScorer,
    "text_embedder": TextEmbedder,
    "text_classifier": TextClassifier,
    "token_classifier": TokenClassifier,
    "masked_lm": MaskedLM,
    "seq2seq": Seq2SeqLM,
    "transcriber": Transcriber,
    "sound_transcriber": SoundTranscriber,
    "ctc": CTCModel,
    "hidden_states": HiddenStates,
}
"""The protocol of each capability that gptrs knows."""


def capabilities_of(model: object) -> frozenset[str]:
    """Return the names in the class attribute `capabilities` of `model`; none without it.

    PluginError when the attribute is no set of names, or the model lacks a member that the
    protocol of a claimed capability requires. Names that are not in `PROTOCOLS` pass unchecked: a
    plugin may give its own models capabilities that its own commands ask for.
    """
    kind = type(model)
    claimed: object = getattr(kind, "capabilities", frozenset[str]())
    if isinstance(claimed, str) or not isinstance(claimed, Iterable):
        raise PluginError(f"`{kind.__name__}.capabilities` must be a set of names, got {claimed!r}")
    names = frozenset(map(str, cast("Iterable[object]", claimed)))
    for name in sorted(names & PROTOCOLS.keys()):
        missing = _missing_members(model, PROTOCOLS[name])
        if missing:
            listed = ", ".join(f"`{member}`" for member in missing)
            raise PluginError(
                f"`{kind.__name__}` claims the capability `{name}` but lacks {listed}",
                hint=f"see `{PROTOCOLS[name].__module__}.{PROTOCOLS[name].__name__}`",
            )
    return names


def members_of(protocol: type) -> list[str]:
    """Return the names of the members that a protocol requires, those of its bases first."""
    bases = (base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False))
    return [name for base in bases for name in vars(base) if not name.startswith("_")]


def _missing_members(model: object, protocol: type) -> list[str]:
    return [name for name in members_of(protocol) if not hasattr(model, name)]
