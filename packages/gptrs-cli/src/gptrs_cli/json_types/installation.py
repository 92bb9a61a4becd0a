"""Results of commands about what is installed, about files and programs; and errors."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Support = Literal["all", "some", "none"]


class Error(TypedDict):
    """Failure of any command; the exit code says the same more coarsely."""

    code: str
    message: str
    hint: str | None


class PluginRecord(TypedDict):
    """A plugin that is installed."""

    name: str
    kind: str
    distribution: str | None
    version: str | None
    api: str | None
    state: str
    reason: str | None
    hint: str | None
    entry_point: str
    summary: str | None


class Device(TypedDict):
    """A device of a backend."""

    name: str
    """The name that `--device` takes."""
    kind: str
    memory: int | None
    """Bytes, null where they are not known."""
    used: bool
    """Whether the backend runs on it."""


class BackendRecord(PluginRecord):
    """A backend that is installed."""

    priority: int | None
    default: bool
    devices: NotRequired[list[Device]]
    """With `--devices`."""


class ListBackends(TypedDict):
    """`gptrs list backends`."""

    backends: list[BackendRecord]


class RefusedKind(TypedDict):
    """A kind of model that is known and not supported, and the nearest one that is."""

    name: str
    nearest: str


class ListModels(TypedDict):
    """`gptrs list models`: kinds of models, and bundled models."""

    models: list[PluginRecord]
    refused: NotRequired[list[RefusedKind]]
    """With `--all`."""


class ListPlugins(TypedDict):
    """`gptrs list plugins`."""

    plugins: list[PluginRecord]


class Implementation(TypedDict):
    """An implementation of a functional, perhaps of a plugin."""

    name: str
    state: str
    plugin: str | None
    distribution: str | None
    version: str | None
    reason: str | None
    hint: str | None


class ImplementationChoice(TypedDict):
    """An implementation that the policy `benchmark` found to be the fastest."""

    functional: str
    implementation: str
    operands: list[str]
    """Their types; a symbolic size is a range, `f32[2..16, 768]`."""
    backend: str
    seconds: dict[str, float]
    """Of each implementation that was timed."""


class Functional(TypedDict):
    """A functional, and which of its implementations is `active`."""

    name: str
    active: str
    because: str
    implementations: list[Implementation]
    choices: list[ImplementationChoice]
    """Those of `benchmark` so far, on any backend."""


class ListFunctionals(TypedDict):
    """`gptrs list functionals`."""

    functionals: list[Functional]


class ListOps(TypedDict):
    """`gptrs list ops`: for each op and element type whether the backend takes it."""

    backend: str
    ops: dict[str, dict[str, Support]]


class ListPatterns(TypedDict):
    """`gptrs list patterns`."""

    patterns: list[dict[str, object]]


class DiskModel(TypedDict):
    """A model on this disk; `problem` says why it does not run, null if it does.

    `architecture` is the class of transformers that config.json names, null if it names none.
    """

    name: str
    source: Literal["bundled", "hub", "folder"]
    kind: str | None
    architecture: str | None
    bytes: int
    path: str
    problem: str | None


class ModelsList(TypedDict):
    """`gptrs models list`."""

    models: list[DiskModel]


class ModelsPull(TypedDict):
    """`gptrs models pull`."""

    model: str
    kind: str
    path: str
    bytes: int


class ModelsPath(TypedDict):
    """`gptrs models path`."""

    model: str
    path: str


class ModelsRemove(TypedDict):
    """`gptrs models remove`: the commits that went, and the bytes that are free now."""

    model: str
    revisions: list[str]
    bytes: int


class Check(TypedDict):
    """A check: what was looked at, what was found, what to do."""

    name: str
    state: Literal["ok", "note", "broken"]
    detail: str
    hint: str | None
    data: dict[str, object]


class Doctor(TypedDict):
    """`gptrs doctor`; `ok` unless something is broken."""

    ok: bool
    checks: list[Check]


class CheckedPlugin(TypedDict):
    """A plugin, and what was tried with it."""

    name: str
    kind: str
    distribution: str | None
    version: str | None
    ok: bool
    checks: list[Check]


class PluginsCheck(TypedDict):
    """`gptrs plugins check`."""

    ok: bool
    plugins: list[CheckedPlugin]


class ConformanceFailure(TypedDict):
    """A case or check that failed; `dtype` is empty for a check."""

    name: str
    dtype: str
    case: str
    reason: str


class Conformance(TypedDict):
    """`gptrs conformance run`."""

    backend: str
    level: str
    passed: int
    failed: int
    refused: int
    seconds: float
    coverage: dict[str, dict[str, Literal["pass", "fail", "refused"]]]
    checks: dict[str, str]
    failures: list[ConformanceFailure]
    verdict: str
    complete: bool
    claimed: bool
    model: str | None
    sample: int | None
    seed: int
    shard: list[int]


class ConformanceReport(TypedDict):
    """`gptrs conformance report`: the page that was written, and what is in it."""

    html: str
    reports: list[dict[str, object]]


class CachePart(TypedDict):
    """Entries of one version, or of one file of weights."""

    version: NotRequired[str]
    path: NotRequired[str]
    current: bool
    entries: int
    bytes: int


class CacheReport(TypedDict):
    """Content of a cache."""

    backend: NotRequired[str]
    folder: str | None
    entries: int
    bytes: int
    budget_bytes: int
    stale_entries: int
    stale_bytes: int
    versions: NotRequired[list[CachePart]]
    files: NotRequired[list[CachePart]]


class CacheInfo(TypedDict):
    """`gptrs cache info`: compiled kernels, packed weights, optimized programs, digests."""

    caches: list[CacheReport]
    weights: list[CacheReport]
    programs: list[CacheReport]
    digests: list[CacheReport]


class CacheWarm(TypedDict):
    """`gptrs cache warm`."""

    model: str
    backend: str
    compiled: int
    weights: int
    weight_bytes: int
    programs: int
    program_bytes: int
    seconds: float


class Cleared(TypedDict):
    """Entries that were removed from a cache."""

    backend: NotRequired[str]
    removed: int
    bytes: int


class CacheClear(TypedDict):
    """`gptrs cache clear`."""

    caches: list[Cleared]
    weights: list[Cleared]
    programs: list[Cleared]
    digests: list[Cleared]


class Convert(TypedDict):
    """`gptrs convert`."""

    source: str
    destination: str
    format: str
    kind: str | None
    files: list[str]
    tensors: int
    parameters: int
    bytes: int
    rounded: int
    left_out: list[str]
    limits: list[str]
    """The conditions on the free sizes of a model that a plugin wrote."""
    seconds: float


class QuantizedTensor(TypedDict):
    """A tensor that was quantized; `relative_rms` is the error as a share of the weights.

    `product_rms` is the error of products with normal inputs, as the default backend computes them.
    """

    name: str
    type: str
    shape: list[int]
    bits: float
    """Of an element, with its share of scales and zero points."""
    relative_rms: float
    product_rms: float
    max_error: float


class Quantize(TypedDict):
    """`gptrs quantize`."""

    source: str
    destination: str
    format: str
    kind: str
    type: str
    rounding: str
    precision: Literal["f32", "bf16", "int8"]
    """In which the default backend will run the copy; `int8` rounds inputs of products, too."""
    product_rms: float
    """The mean over the weights of all quantized tensors."""
    files: list[str]
    bytes: int
    bits_per_weight: float
    quantized: list[QuantizedTensor]
    kept: list[str]
    """Tensors that stayed as they were."""
    left_out: list[str]
    notes: list[str]
    """Of what other readers of the copy will do otherwise."""
    seconds: float


class InspectCheckpoint(TypedDict):
    """`gptrs inspect` of a model or a file of tensors."""

    checkpoint: str
    kind: str | None
    support: str
    model: dict[str, object]
    """Its settings: layers, heads, context, vocabulary and the like."""
    files: list[dict[str, object]]
    load: dict[str, int] | None
    unread: dict[str, list[str]] | None
    """Weights, and settings of either file, that no code reads; null where none loads the kind."""
    tensors: list[dict[str, object]]
    totals: dict[str, object]


class InspectProgram(TypedDict):
    """`gptrs inspect` of a program; `work` is null where it depends on symbols."""

    program: str
    instructions: int
    inputs: list[dict[str, str]]
    results: list[dict[str, str]]
    symbols: list[str]
    functions: dict[str, int]
    unused: list[str]
    work: dict[str, object] | None


class ImportedInput(TypedDict):
    """An input of an imported model; `shape` has names for free sizes, and is null for any rank."""

    name: str
    dtype: str
    shape: list[int | str] | None
    optional: bool


class InspectModel(TypedDict):
    """`gptrs inspect` of a model that an importer reads."""

    model: str
    importer: str
    support: str
    inputs: list[ImportedInput]
    outputs: list[str]
    sizes: dict[str, int] | None
    """Those that the program was made for, none where it has symbols."""
    program: dict[str, object] | None
    """As in `gptrs inspect` of a program; null where the model cannot be converted."""
    refused: str | None
    """Why it cannot be."""


InspectPass = TypedDict(
    "InspectPass",
    {
        "pass": str,
        "instructions": dict[str, int],
        "fired": dict[str, int],
        "declined": list[dict[str, object]],
    },
)
InspectPass.__doc__ = "`gptrs inspect --why NAME`."
