"""Results of commands that run models and programs."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Number = float | Literal["nan", "inf", "-inf"]
Reason = Literal["eos", "stop", "length", "error", "interrupted"]


class TopToken(TypedDict):
    """A likely token."""

    token_id: int
    logprob: Number


class TokenLogprob(TypedDict):
    """The natural logarithm of a token's probability, and those of the likeliest ones."""

    token_id: int
    logprob: Number
    top: list[TopToken]


class GuessCounts(TypedDict):
    """Tokens that were guessed ahead, and how many of them came true."""

    proposed: int
    accepted: int


class GeneratedText(TypedDict):
    """A text that was generated."""

    text: str
    """Of a conversation the answer without its thoughts."""
    reasoning_content: NotRequired[str]
    """Of a conversation: the thoughts of the model, where there are some."""
    token_ids: list[int]
    finish_reason: Reason
    error: NotRequired[str]
    """Where that is the `finish_reason`: why the text cannot go on."""
    logprobs: NotRequired[list[TokenLogprob]]
    """With `--logprobs`: one of each token."""
    guesses: NotRequired[GuessCounts]
    """With `--prompt-lookup` or `--draft`."""


class GenerationTimings(TypedDict):
    """Seconds and rates of a generation, null where there was nothing to measure."""

    load_s: float
    first_token_s: float | None
    prompt_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class Generate(GeneratedText):
    """`gptrs generate`; with `--stream`, the last line."""

    prompt: str | None
    """The text that was continued, as rendered by a chat template; null for tokens."""
    prompt_token_ids: list[int]
    timings: GenerationTimings
    model: str
    backend: str
    precision: str
    """Of products: `f32`, `bf16`, or `int8` where quantized weights meet activations of 8 bits."""
    adapter: NotRequired[str]
    """With `--adapter`: its folder."""
    generations: NotRequired[list[GeneratedText]]
    """With `--num-return`: all texts; the first is that of the other keys."""
    profile: NotRequired[dict[str, object]]
    """With `--profile`: see `docs/profiles.md`."""


class GenerateEvent(TypedDict):
    """`gptrs generate --stream`: each line but the last one."""

    event: Literal["text", "reasoning"]
    """Whether it is text, or thoughts of an answer in a conversation."""
    text: str
    """Follows the texts of earlier lines of this `event`: whole characters, perhaps none."""
    token_ids: list[int]
    """The tokens since the line before."""


class GenerateLine(GeneratedText):
    """`gptrs generate --prompts`: the result of each prompt, printed or in the file of `--out`."""

    id: str | int
    prompt_token_ids: list[int]
    model: str


class RunTimings(TypedDict):
    """Seconds of loading, and of the work itself."""

    load_s: float
    forward_s: NotRequired[float]
    trace_s: NotRequired[float]
    embed_s: NotRequired[float]
    classify_s: NotRequired[float]
    rank_s: NotRequired[float]
    tag_s: NotRequired[float]
    fill_s: NotRequired[float]
    match_s: NotRequired[float]
    transcribe_s: NotRequired[float]
    validate_s: NotRequired[float]
    perplexity_s: NotRequired[float]


class ModelRun(TypedDict):
    """A run of a model."""

    model: str
    kind: str
    backend: str
    inputs: list[str]
    """The origin of each row: a file, `tokens`, `prompt` or `random input SEED`."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class Score(TypedDict):
    """A class or token."""

    index: int
    name: str
    logit: Number
    probability: Number


class Forward(ModelRun):
    """`gptrs forward`; `kind` of an imported model is the importer."""

    output: NotRequired[str]
    """Of an imported model: the output that has the scores."""
    shape: list[int]
    """That of the logits: [B, T, V] or [B, classes]."""
    dtype: Literal["f32"]
    top: list[list[Score]]
    """For each row the best `--top` N, of tokens those after the last position."""


class State(TypedDict):
    """Statistics of a hidden state, or of what a module has."""

    name: str
    type: str
    mean: Number
    std: Number
    min: Number
    max: Number
    non_finite: Number
    """The share of elements that are NaN or infinite."""
    norm: Number


class LensToken(TypedDict):
    """A next token that a hidden state predicts."""

    token: int
    probability: Number
    text: str | None


class ComparedValue(TypedDict):
    """A value beside that of the reference; errors are shares of the range of the reference."""

    name: str
    type: str
    max_error: Number
    mean_error: Number
    agrees: bool


class TraceComparison(TypedDict):
    """With `--against`: how far the values are from those of another run."""

    tolerance: Number
    agrees: bool
    first_mismatch: str | None
    without_counterpart: list[str]
    values: list[ComparedValue]
    """In the order of computation; with `--stop-on-first-mismatch` up to that."""


class Trace(ModelRun):
    """`gptrs trace`."""

    states: list[State]
    logit_lens: NotRequired[dict[str, list[LensToken]]]
    """With `--logit-lens`: the likeliest next tokens by each hidden state."""
    comparison: NotRequired[TraceComparison]


class TraceModules(TypedDict):
    """`gptrs trace --modules`."""

    modules: list[str]


class Embed(TypedDict):
    """`gptrs embed`."""

    model: str
    kind: str
    backend: str
    adapter: NotRequired[str]
    """With `--adapter`: its folder."""
    texts: list[str]
    truncated: NotRequired[list[int]]
    """The numbers, from 0, of texts that were cut to what the model reads, if there are some."""
    images: NotRequired[list[str]]
    """The files, with `--image`."""
    shape: list[int]
    dtype: Literal["f32"]
    embeddings: NotRequired[list[list[Number]]]
    """A vector for each text or image; not with `--out`."""
    similarity: NotRequired[list[list[Number]]]
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class TokenPiece(TypedDict):
    """A token: its entry of the vocabulary, and the text and bytes that it is of others."""

    id: int
    piece: str
    text: str
    bytes: list[int]


class Tokenize(TypedDict):
    """`gptrs tokenize`."""

    text: str
    tokens: list[TokenPiece]


class Perplexity(TypedDict):
    """`gptrs perplexity`."""

    perplexity: float | None
    """exp(nll); null where that is too large."""
    standard_error: float | None
    """Of the perplexity, to first order."""
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
    adapter: NotRequired[str]
    """With `--adapter`: its folder."""
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class ProgramResult(TypedDict):
    """A result of a program."""

    name: str
    dtype: str
    shape: list[int]
    values: NotRequired[object]
    """A nested list, of at most 64 elements; a complex number is the list of its parts."""


class Run(TypedDict):
    """`gptrs run`."""

    backend: str
    results: list[ProgramResult]
    seconds: float
    profile: NotRequired[dict[str, object]]


class Agreement(TypedDict):
    """How far an array is from that of the reference."""

    name: str
    type: str
    max_error: Number
    mean_error: Number
    range: Number
    relative_max_error: Number
    relative_mean_error: Number
    agrees: bool


class GreedyAgreement(TypedDict):
    """Tokens that were chosen greedily: the first `equal` of `tokens` are the same."""

    tokens: int
    equal: int
    gap: Number
    agrees: bool


class Validate(ModelRun):
    """`gptrs validate`."""

    reference: dict[str, str]
    """The versions of the libraries."""
    tolerance: float
    agrees: bool
    output: Agreement
    images: Agreement | None
    top1: Number | None
    top5: Number | None
    cosine: Number | None
    greedy: GreedyAgreement | None
    layers: list[Agreement]
    first_layer: str | None
    """The first state beyond the tolerance."""


class ValidateAgainst(TypedDict):
    """`gptrs validate --against`: null where it does not apply to the kind of models."""

    model: str
    weights: str | None
    """The type of `--weights`."""
    reference: str
    backend: str
    kl: float | None
    """The mean divergence of the next token, in nats."""
    kl_error: float | None
    kl_worst: float | None
    """99 % of the positions are below it."""
    top1: float | None
    perplexity: float | None
    reference_perplexity: float | None
    scored: int | None
    window: int | None
    texts: int | None
    cosine: float | None
    least_cosine: float | None
    timings: RunTimings
    profile: NotRequired[dict[str, object]]


class ValidateOutputs(ModelRun):
    """`gptrs validate` of an imported model; `kind` is the importer."""

    reference: str
    tolerance: float
    agrees: bool
    outputs: list[Agreement]


class BenchRow(TypedDict):
    """A figure: `ours`, in `unit`, of some `work`."""

    work: str
    threads: int | None
    ours: float
    unit: str
    peer: float | None
    peer_name: str | None
    ratio: float | None
    share_of_limit: float | None
    """Of what the machine can read or compute, whichever is closer."""
    gb_per_s: float | None
    gflop_per_s: float | None


class Bench(TypedDict):
    """`gptrs bench`."""

    machine: dict[str, object]
    model: str
    backend: str
    adapter: NotRequired[str]
    """With `--adapter`: its folder."""
    precision: str
    rows: list[BenchRow]


class LoadRow(TypedDict):
    """So many streams of the engine in the process, or over HTTP; times in milliseconds.

    Endings `_25`, `_75` and `_99` are percentiles.
    """

    streams: int
    over: str
    requests: int
    """Of a run."""
    requests_per_s: float
    tokens_per_s: float
    tokens_per_s_25: float
    tokens_per_s_75: float
    first_token_ms: float
    first_token_ms_99: float
    gap_ms: float
    gap_ms_99: float


class Spread(TypedDict):
    """A median of rounds, and between what lies the middle half."""

    median: float
    low: float
    high: float


class LoadRatio(TypedDict):
    """Streams of the same round compared; times in milliseconds."""

    streams: int
    of_fewest: Spread
    """Tokens a second of the engine, over those of the fewest streams."""
    of_engine: Spread
    """Tokens a second over HTTP, over those of the engine."""
    later_ms: Spread
    """First tokens over HTTP, after those of the engine."""


class BenchServe(TypedDict):
    """`gptrs bench serve`."""

    model: str
    backend: str
    precision: str
    rounds: int
    prompt_tokens: int
    new_tokens: int
    rows: list[LoadRow]
    ratios: list[LoadRatio]
