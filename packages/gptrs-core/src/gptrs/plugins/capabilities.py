"""Capabilities of models: the protocols that the runtime calls, and their claims by models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from gptrs.errors import PluginError

if TYPE_CHECKING:
    import numpy as np

    from gptrs.ir.dtypes import DType
    from gptrs.nn.cache_spec import CacheSpec
    from gptrs.nn.decoder_cache import DecoderState
    from gptrs.nn.draft_head import DraftHead
    from gptrs.nn.greedy_steps import Chosen, GreedySteps
    from gptrs.nn.page_buffers import PageBuffers
    from gptrs.nn.ragged_step import RaggedStep


class _KnowsTokens(Protocol):
    """A model of texts as token ids in [0, vocab_size)."""

    @property
    def context_length(self) -> int:
        """The largest number of positions of a text."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        ...


class _WritesTexts(_KnowsTokens, Protocol):
    """A model that generates a text from what it has read or heard."""

    def write(self, tokens: np.ndarray, state: DecoderState) -> np.ndarray:
        """Append tokens si64 [B, T] to the texts; return the logits f32 [B, T, V] after each.

        Raises ContextLengthError for texts that are too long, before any work.
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
        """The image processor of transformers, for files that name none."""
        ...


class CausalLM(_KnowsTokens, Protocol):
    """The capability `causal_lm`: predicts the next token from those before it.

    Tokens are ids in [0, vocab_size); logits are f32. Up to rounding, the logits of a text depend
    neither on other texts in the step nor on how it was cut into steps.
    """

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits [B, T, V] of every position; ContextLengthError if T is too large."""
        ...

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return the specification of each layer's KV cache; see `gptrs.nn.cache_groups`."""
        ...

    def new_buffers(
        self, pages: Sequence[int], dtype: DType = ..., states: int = ...
    ) -> PageBuffers:
        """Return empty pools of `dtype` (default: f32), with `pages` for each cache group.

        Layers with states keep the last `states` (default: 1) of a page.
        """
        ...

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append the new tokens of B texts to `buffers`; return the logits [B, V] after each text.

        Raises ContextLengthError if a text would exceed the context, before any work. After another
        error, `buffers.usable` tells whether earlier pages are intact.
        """
        ...


class RepeatingLM(Protocol):
    """A `CausalLM` that can take several steps in one run, as every `CausalLMModule` does."""

    @property
    def repeats_steps(self) -> bool:
        """Whether `greedy_steps` is equivalent to repeated calls of `step`."""
        ...

    def greedy_steps(self, steps: GreedySteps, buffers: PageBuffers) -> Chosen:
        """Append the tokens of several steps to `buffers`; return the choice after each.

        Raises the same errors as `step`.
        """
        ...


class ImageLM(Protocol):
    """The capability `image_lm`: a `CausalLM` that reads images among the tokens of a text.

    An image becomes square pictures, as in transformers' Idefics3ImageProcessor; each becomes
    `picture_tokens` vectors, for which the text has as many tokens `image_token`.
    """

    @property
    def image_token(self) -> int:
        """The placeholder token that the vectors replace."""
        ...

    @property
    def image_mark(self) -> str:
        """The text of that token, which chat templates emit once per image."""
        ...

    @property
    def picture_size(self) -> int:
        """Rows and columns of a picture."""
        ...

    @property
    def picture_tokens(self) -> int:
        """The number of vectors of a picture."""
        ...

    def image_prompt(self, rows: int, columns: int) -> str:
        """Return the text for an image of `rows` x `columns` pictures and one of the whole.

        With 0 rows and columns, there is only the whole. The text has a mark for each vector.
        """
        ...

    def image_vectors(self, pictures: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, T, E] of pictures f32 [B, channels, S, S], normalized."""
        ...

    def mixed_step(
        self, step: RaggedStep, vectors: np.ndarray, given: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run `step`; row n is `vectors[n]`, f32 [N, E], where `given[n]`, i1 [N], is true."""
        ...


class ImageClassifier(_ReadsImages, Protocol):
    """The capability `image_classifier`: scores the classes of an image."""

    def classify(self, images: np.ndarray) -> np.ndarray:
        """Return the logits [B, classes] of images f32 [B, channels, H, W], normalized."""
        ...


class ImageEmbedder(_ReadsImages, Protocol):
    """The capability `image_embedder`: maps images to vectors for similarity search."""

    def embed_images(self, images: np.ndarray) -> np.ndarray:
        """Return the vectors [B, E] of images f32 [B, channels, H, W], normalized for the model."""
        ...


class ImageTextScorer(_KnowsTokens, Protocol):
    """The capability `image_text`: vectors of texts and images share a space.

    Such a model is an `ImageEmbedder`, too. The score of a text and an image is the cosine of their
    vectors, times a scale, plus a bias.
    """

    @property
    def pads_texts(self) -> bool:
        """Whether each text is padded to the context length with the tokenizer's padding token."""
        ...

    @property
    def independent_scores(self) -> bool:
        """Whether probabilities are sigmoids of single scores, not a softmax."""
        ...

    def embed_texts(self, tokens: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, E] of tokens si64 [B, T], right-padded.

        ContextLengthError if T is too large.
        """
        ...

    def scale_and_bias(self) -> tuple[float, float]:
        """Return the factor of the cosines, and the bias added afterwards."""
        ...


class TextEmbedder(_KnowsTokens, Protocol):
    """The capability `text_embedder`: maps the tokens of a text to vectors.

    Pooling and normalization do not depend on the kind of model: the files beside the weights
    configure them, and `gptrs.embed` applies them.
    """

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the vectors f32 [B, T, C] of tokens si64 [B, T], where `mask`, i1 [B, T], is true.

        Each text begins in the first column and has at least one token; padding, any known token,
        follows it. Vectors of padding are finite but meaningless. Up to rounding, the vectors of a
        row do not depend on other rows. On backends with symbolic sizes, few programs serve all B
        and T (`jit(dynamic=...)`). Raises ContextLengthError if T is too large.
        """
        ...


class TextClassifier(_KnowsTokens, Protocol):
    """The capability `text_classifier`: scores the classes of a text, or of a pair.

    `id2label` of config.json names the classes; `gptrs.classify` and `gptrs.rank` turn scores into
    probabilities. Texts and padding are as for a `TextEmbedder`.
    """

    def classify_texts(
        self, tokens: np.ndarray, segments: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        """Return the logits f32 [B, classes] of tokens si64 [B, T], where `mask`, i1, is true.

        `segments`, si64 [B, T], are the token types of the tokenizer: 1 for the second text of a
        pair. Kinds without token types ignore them.
        """
        ...


class TokenClassifier(_KnowsTokens, Protocol):
    """The capability `token_classifier`: scores the classes of each token (NER, tagging)."""

    def classify_tokens(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the logits f32 [B, T, classes] of tokens si64 [B, T], where `mask`, i1, is true.

        Texts and padding lie as for a `TextEmbedder`.
        """
        ...


class MaskedLM(_KnowsTokens, Protocol):
    """The capability `masked_lm`: predicts masked tokens from both sides."""

    def predict_tokens(
        self, tokens: np.ndarray, mask: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """Return the logits f32 [N, V] at `positions`, si64 [N] in [0, B * T), of the flat batch.

        Tokens si64 [B, T] and mask i1 [B, T] are as for a `TextEmbedder`.
        """
        ...


class Seq2SeqLM(_WritesTexts, Protocol):
    """The capability `seq2seq`: reads a text, its source, and generates another one from it.

    Generated texts begin with the token `decoder_start_token_id` of generation_config.json or
    config.json. Up to rounding, a text does not depend on others in the batch.
    """

    @property
    def source_length(self) -> int:
        """The largest number of tokens of a source."""
        ...

    def read_sources(self, tokens: np.ndarray, mask: np.ndarray) -> DecoderState:
        """Read sources si64 [B, S], where `mask`, i1 [B, S], is true; return texts without tokens.

        Sources and padding lie as for a `TextEmbedder`. ContextLengthError if S is too large.
        """
        ...


class Transcriber(_WritesTexts, Protocol):
    """The capability `transcriber`: transcribes windows of sound to text."""

    @property
    def mel_bins(self) -> int:
        """The number of frequencies of the features."""
        ...

    @property
    def frames(self) -> int:
        """The number of frames of a window, 100 a second."""
        ...

    def hear(self, features: np.ndarray) -> DecoderState:
        """Read windows f32 [B, mel_bins, frames] of log-mel features; return texts without tokens.

        The features are those of transformers' `WhisperFeatureExtractor`.
        """
        ...


class SoundTranscriber(_WritesTexts, Protocol):
    """The capability `sound_transcriber`: transcribes raw sounds to text.

    Texts begin with `decoder_start_token_id`, as for a `Seq2SeqLM`.
    """

    def frame_count(self, samples: int) -> int:
        """Return how many frames so many samples have, 0 of a sound that is too short."""
        ...

    def hear_sounds(self, samples: np.ndarray, lengths: Sequence[int]) -> DecoderState:
        """Read sounds f32 [B, N]; return texts without tokens.

        Row b has `lengths[b]` samples, at least one frame; the padding after them has no effect
        except on rounding.
        """
        ...


class CTCModel(Protocol):
    """The capability `ctc`: scores the tokens of each frame of a sound.

    The text follows from the best tokens: equal neighbours are merged, and blanks dropped
    (connectionist temporal classification, Graves et al. 2006).
    """

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        ...

    @property
    def frame_samples(self) -> int:
        """The number of samples between two frames."""
        ...

    def frame_count(self, samples: int) -> int:
        """Return how many frames so many samples have, 0 of a sound that is too short."""
        ...

    def score_frames(self, samples: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Return the logits f32 [B, T, V] of the frames of sounds f32 [B, N].

        Row b has `lengths[b]` samples, at least one frame, followed by padding. Up to rounding, its
        first `frame_count(lengths[b])` frames do not depend on padding or other rows.
        """
        ...


class HiddenStates(Protocol):
    """The capability `hidden_states`: returns the states between layers."""

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the states by name, in the order of computation; inputs are as for `forward`.

        `embeddings`, then `layer.0`, `layer.1`, ..., each [B, T, C]: the `hidden_states` of
        transformers; the last one has been through the final norm.
        """
        ...


class DraftHeadSource(Protocol):
    """The capability `draft_head`: a checkpoint that guesses tokens of another model (EAGLE)."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens that it reads."""
        ...

    def head_for(self, model: CausalLM) -> DraftHead:
        """Return the head beside a model; ModelError if it is made for another one."""
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
    "draft_head": DraftHeadSource,
}
"""The protocol of each capability that gptrs knows."""


def capabilities_of(model: object) -> frozenset[str]:
    """Return the names in the class attribute `capabilities` of `model`; none without it.

    Raises PluginError if the attribute is not a set of names, or the model lacks a member of a
    claimed capability's protocol. Names outside of `PROTOCOLS` are not checked: a plugin may define
    capabilities for its own commands.
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
    """Return the names of the members that a protocol requires, beginning with its bases."""
    bases = (base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False))
    return [name for base in bases for name in vars(base) if not name.startswith("_")]


def _missing_members(model: object, protocol: type) -> list[str]:
    return [name for name in members_of(protocol) if not hasattr(model, name)]
