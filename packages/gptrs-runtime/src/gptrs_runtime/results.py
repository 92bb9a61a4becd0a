"""Result records: returned by functions, printed by `--json`, described by its schema.

A `Result` is the output of a command: its tag, the key `schema`, has its type and version, which
increases when a key is removed or changes its meaning. The other records are parts of results. Keys
are printed in the order of the fields, those of bases first; UNSET ones are omitted. The strings
below fields appear in docs/json.md.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Number = Annotated[
    float,
    Meta(extra_json_schema={"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}),
]
"""A number; infinities and NaN, which JSON lacks, are printed as words."""
Vectors = list[list[Number]]
Profile = dict[str, Any] | UnsetType
Reason = Literal["eos", "stop", "length", "error", "interrupted"]


class Result(Struct, frozen=True, tag_field="schema"):
    """A line of JSON that a command prints."""


def plain(value: Any) -> Any:
    """Return Python's own numbers and lists for those of NumPy, a text for a path.

    For values that msgspec does not know.
    """
    if isinstance(value, PurePath):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


class OfModel(Struct, frozen=True, kw_only=True):
    """The model that a result is of."""

    model: str
    kind: str
    backend: str


class LabelScore(Struct, frozen=True):
    """A class by its name, and the score of a text."""

    label: str
    score: float


class Ranked(Struct, frozen=True):
    """A document: its number in the given order, from 0, its score, and its text."""

    index: int
    score: float
    text: str


class Entity(Struct, frozen=True):
    """A part of a text, `text[start:end]`, with its class and how likely that is."""

    label: str
    score: float
    start: int
    end: int
    text: str


class Filling(Struct, frozen=True):
    """A token for a masked position, its text in isolation, and its probability there."""

    token: int
    text: str
    score: float


class TokenPiece(Struct, frozen=True):
    """A token: its entry of the vocabulary, and the text and bytes that it stands for."""

    id: int
    piece: str
    text: str
    bytes: list[int]


class Segment(Struct, frozen=True):
    """Text between two times, in seconds; `token_ids` include the tokens of the times."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]


class Window(Struct, frozen=True):
    """How a window of a sound, from `start` to `end` in seconds, was decoded."""

    start: float
    end: float
    temperature: float
    """The temperature used; 0 for the likeliest tokens."""
    avg_logprob: Number
    """The mean log-probability of the tokens."""
    compression_ratio: float
    """The compression ratio of the bytes of the text."""
    no_speech_prob: float | None
    """The probability of silence; null if the model has no token for it."""
    is_silent: bool
    """Whether the window has no text for that reason."""


class Transcription(Struct, frozen=True):
    """The text of a sound, and its segments."""

    text: str
    language: str | None
    """The code of the spoken language; null if the model does not detect it."""
    seconds: float
    """The length of the sound."""
    segments: tuple[Segment, ...]
    windows: tuple[Window, ...] = ()
    """How each window was decoded; empty for a model that decodes frame by frame."""


class Score(Struct, frozen=True):
    """A class or token: its number, name, logit, and share in the softmax of all logits.

    The name of a class is its label, the name of a token its text; both may be empty.
    """

    index: int
    name: str
    logit: Number
    probability: Number


class TopToken(Struct, frozen=True):
    """A likely token."""

    token_id: int
    logprob: Number


class TokenLogprob(Struct, frozen=True):
    """The natural logarithm of a token's probability, and of those of the likeliest ones."""

    token_id: int
    logprob: Number
    top: list[TopToken]


class RunTimings(Struct, frozen=True, kw_only=True):
    """Seconds of loading, and of the work itself."""

    load_s: float
    forward_s: float | UnsetType = UNSET
    trace_s: float | UnsetType = UNSET
    embed_s: float | UnsetType = UNSET
    classify_s: float | UnsetType = UNSET
    rank_s: float | UnsetType = UNSET
    tag_s: float | UnsetType = UNSET
    fill_s: float | UnsetType = UNSET
    match_s: float | UnsetType = UNSET
    transcribe_s: float | UnsetType = UNSET
    validate_s: float | UnsetType = UNSET
    perplexity_s: float | UnsetType = UNSET


class TextsRun(OfModel, frozen=True, kw_only=True):
    """A run of a model on texts."""

    timings: RunTimings


class Classify(TextsRun, Result, frozen=True, kw_only=True, tag="gptrs.classify/1"):
    """`gptrs classify`."""

    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    texts: list[str]
    pairs: list[str] | UnsetType = UNSET
    """The second text of each pair, with `--pair`."""
    truncated: list[int] | UnsetType = UNSET
    """Indices of the texts that were cut to the model's context, if any."""
    classes: list[tuple[LabelScore, ...]]
    """The classes of each text, best first."""
    profile: Profile = UNSET


class Rank(TextsRun, Result, frozen=True, kw_only=True, tag="gptrs.rank/1"):
    """`gptrs rank`."""

    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    query: str
    ranking: list[Ranked]
    """Best first."""
    truncated: list[int] | UnsetType = UNSET
    """Indices of the documents that were cut to the model's context, if any."""
    profile: Profile = UNSET


class Match(TextsRun, Result, frozen=True, kw_only=True, tag="gptrs.match/1"):
    """`gptrs match`."""

    images: list[str]
    texts: list[str]
    truncated: list[int] | UnsetType = UNSET
    """Indices of the texts that were cut to the model's context, if any."""
    logits: Vectors
    """A row per image, a column per text."""
    probabilities: Vectors
    profile: Profile = UNSET


class Tag(TextsRun, Result, frozen=True, kw_only=True, tag="gptrs.tag/1"):
    """`gptrs tag`."""

    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    texts: list[str]
    entities: list[list[Entity]]
    """The named parts of each text, in the order of the text."""
    profile: Profile = UNSET


class Fill(TextsRun, Result, frozen=True, kw_only=True, tag="gptrs.fill/1"):
    """`gptrs fill`."""

    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    texts: list[str]
    fillings: list[list[tuple[Filling, ...]]]
    """The likeliest tokens for each masked position of each text, best first."""
    profile: Profile = UNSET


class Transcribe(OfModel, Result, frozen=True, kw_only=True, tag="gptrs.transcribe/1"):
    """`gptrs transcribe`."""

    # A Struct inherits fields from only one base, so those of Transcription are repeated.
    file: str
    text: str
    language: str | None
    """The code of the spoken language; null if the model does not detect it."""
    seconds: float
    """The length of the sound."""
    segments: tuple[Segment, ...]
    windows: tuple[Window, ...]
    """How each window was decoded; empty for a model that decodes frame by frame."""
    timings: RunTimings
    profile: Profile = UNSET


class Tokenize(Result, frozen=True, kw_only=True, tag="gptrs.tokenize/1"):
    """`gptrs tokenize`."""

    text: str
    tokens: list[TokenPiece]


class Embed(OfModel, Result, frozen=True, kw_only=True, tag="gptrs.embed/1"):
    """`gptrs embed`."""

    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    texts: list[str]
    truncated: list[int] | UnsetType = UNSET
    """Indices of the texts that were cut to the model's context, if any."""
    shape: list[int]
    dtype: Literal["f32"] = "f32"
    embeddings: Vectors | UnsetType = UNSET
    """One vector per text or image; absent with `--out`."""
    similarity: Vectors | UnsetType = UNSET
    timings: RunTimings
    images: list[str] | UnsetType = UNSET
    """The files, with `--image`."""
    profile: Profile = UNSET


class Perplexity(Result, frozen=True, kw_only=True, tag="gptrs.perplexity/1"):
    """`gptrs perplexity`."""

    perplexity: float | None
    """exp(nll); null if it overflows."""
    standard_error: float | None
    """The standard error of the perplexity, to first order; null if unknown, as of one token."""
    nll: float
    """The mean of -log p of the scored tokens, in nats."""
    bits_per_byte: float
    tokens: int
    scored: int
    windows: int
    window: int
    stride: int
    model: str
    backend: str
    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    timings: RunTimings
    profile: Profile = UNSET


class Inputs(OfModel, frozen=True, kw_only=True):
    """The model and the inputs of a run."""

    inputs: list[str]
    """The origin of each row: a file, `tokens`, `prompt` or `random input SEED`."""


class Forward(Inputs, Result, frozen=True, kw_only=True, tag="gptrs.forward/1"):
    """`gptrs forward`; `kind` of an imported model is the importer."""

    output: str | UnsetType = UNSET
    """For an imported model, the output that has the scores."""
    shape: list[int]
    """The shape of the logits: [B, T, V] or [B, classes]."""
    dtype: Literal["f32"] = "f32"
    top: list[tuple[Score, ...]]
    """The best `--top` N of each row; for language models, of the next token."""
    timings: RunTimings
    profile: Profile = UNSET


class Guesses(Struct, frozen=True):
    """Numbers of guessed tokens and of accepted ones."""

    proposed: int
    accepted: int


class GeneratedText(Struct, frozen=True, kw_only=True):
    """A text that was generated."""

    text: str
    """The text; in a conversation, the answer without thoughts."""
    token_ids: tuple[int, ...]
    finish_reason: Reason
    reasoning_content: str | UnsetType = UNSET
    """The thoughts of the model in a conversation, if any."""
    error: str | UnsetType = UNSET
    """Why the text cannot continue, if `finish_reason` is `error`."""
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    """One per token, with `--logprobs`."""
    guesses: Guesses | UnsetType = UNSET
    """With `--prompt-lookup`, `--draft` or `--mtp`."""


class GenerationTimings(Struct, frozen=True):
    """Seconds and rates of a generation, null where there was nothing to measure."""

    load_s: float
    first_token_s: float | None
    prompt_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class Generate(GeneratedText, Result, frozen=True, kw_only=True, tag="gptrs.generate/1"):
    """`gptrs generate`; with `--stream`, the last line."""

    prompt: str | None
    """The text that was continued, as rendered by a chat template; null for tokens."""
    prompt_token_ids: tuple[int, ...]
    timings: GenerationTimings
    model: str
    backend: str
    precision: str
    """The precision of products; `int8` if quantized weights meet 8-bit activations."""
    adapter: str | UnsetType = UNSET
    """The folder of the adapter, with `--adapter`."""
    generations: list[GeneratedText] | UnsetType = UNSET
    """All texts, with `--num-return`; the other keys describe the first."""
    profile: Profile = UNSET
    """With `--profile`: see `docs/profiles.md`."""


class GenerateEvent(Result, frozen=True, kw_only=True, tag="gptrs.generate.event/1"):
    """`gptrs generate --stream`: each line but the last one."""

    event: Literal["text", "reasoning"]
    """The kind of text; `reasoning` for thoughts in a conversation."""
    text: str
    """Continues the text of earlier lines of this `event`: whole characters, possibly none."""
    token_ids: tuple[int, ...]
    """The tokens since the previous line."""


class GenerateLine(Result, frozen=True, kw_only=True, tag="gptrs.generate.line/1"):
    """`gptrs generate --prompts`: the result of each prompt, printed or in the file of `--out`."""

    id: str | int
    text: str
    """The text; in a conversation, the answer without thoughts."""
    token_ids: tuple[int, ...]
    finish_reason: Reason
    reasoning_content: str | UnsetType = UNSET
    """The thoughts of the model in a conversation, if any."""
    error: str | UnsetType = UNSET
    """Why the text cannot continue, if `finish_reason` is `error`."""
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    """One per token, with `--logprobs`."""
    guesses: Guesses | UnsetType = UNSET
    """With `--prompt-lookup`, `--draft` or `--mtp`."""
    prompt_token_ids: tuple[int, ...]
    model: str


class Converted(Struct, frozen=True, kw_only=True, rename={"form": "format", "nbytes": "bytes"}):
    """The files and tensors that `convert` wrote."""

    form: str
    """`hf`, `gptrschk` or `tensors`, or the name of an exporter."""
    kind: str | None
    files: tuple[str, ...]
    tensors: int
    parameters: int
    nbytes: int
    rounded: int
    """The number of tensors that changed type."""
    left_out: tuple[str, ...]
    """Files next to the weights that were not copied."""
    limits: tuple[str, ...] = ()
    """Conditions on the free sizes of an exported model, `sequence <= 512`."""


class Convert(Converted, Result, frozen=True, kw_only=True, tag="gptrs.convert/1"):
    """`gptrs convert`."""

    source: str
    destination: str
    seconds: float


class TensorError(Struct, frozen=True):
    """The error of a quantized weight of `type`, with `bits` per element in total.

    `relative_rms` is the root of the mean square of the errors over that of the weights, and
    `max_error` the largest one. `product_rms` is the same for products with normal inputs, as the
    model will compute them: on a backend of the precision `int8` inputs are rounded, too. 0 where
    products were not measured.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    bits: float
    """Bits per element, including its share of scales and zero points."""
    relative_rms: float
    product_rms: float
    max_error: float


class Quantized(Struct, frozen=True, kw_only=True, rename={"form": "format", "nbytes": "bytes"}):
    """The files and errors of a quantization."""

    form: Literal["hf", "gguf"]
    kind: str
    type: str
    rounding: str
    precision: Literal["f32", "bf16", "int8"]
    """The precision in which the default backend will run the copy; `int8` also rounds inputs of
    products.
    """
    product_rms: float
    """The mean over the weights of all quantized tensors."""
    files: tuple[str, ...]
    nbytes: int
    """The size of all tensors."""
    bits_per_weight: float
    """Bits of codes, scales and zero points per element of the quantized tensors."""
    quantized: tuple[TensorError, ...]
    kept: tuple[str, ...]
    """Tensors that were not quantized."""
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Differences in how other programs run the copy."""


class Quantize(Quantized, Result, frozen=True, kw_only=True, tag="gptrs.quantize/1"):
    """`gptrs quantize`."""

    source: str
    destination: str
    seconds: float
