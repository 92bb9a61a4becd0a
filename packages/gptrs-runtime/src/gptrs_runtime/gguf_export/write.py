"""Writing a model as a GGUF file, its matrices quantized or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gptrs.backend.contract import Backend
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing, write_gguf
from gptrs.checkpoint.params import WeightUse
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.progress import StepProgress
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted
from gptrs_runtime.converting.destination import watched
from gptrs_runtime.gguf_export.rotary import read_rotary
from gptrs_runtime.gguf_export.stacks import stacked
from gptrs_runtime.gguf_export.tensors import GgufNames, extra_tensors, plain_tensors
from gptrs_runtime.gguf_export.vocabulary import vocabulary_of
from gptrs_runtime.quantizing.gguf_blocks import GGUF_WEIGHT_TYPES, quantized_outgoing
from gptrs_runtime.quantizing.group_rounding import Rounding
from gptrs_runtime.quantizing.plan import planned
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor
from gptrs_runtime.quantizing.weight_types import WeightType
from gptrs_runtime.results import TensorError
from gptrs_runtime.sources.gguf_metadata import GgufSettingsOf, Metadata, settings_of
from gptrs_runtime.sources.model_source import CONFIG, GENERATION_CONFIG, TOKENIZER, ModelSource

PLAIN_TYPES = {"f32": dtypes.f32, "f16": dtypes.f16, "bf16": dtypes.bf16}
"""The types of files whose matrices are not quantized."""
SUFFIX = ".gguf"
_FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q4": 2, "q4_asym": 3, "q8": 7}
"""`general.file_type`, for what most matrices are."""
_READ = (CONFIG, GENERATION_CONFIG, TOKENIZER, "tokenizer_config.json", "chat_template.jinja",
         "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")  # fmt: skip
"""Files whose content the metadata have."""


@dataclass(frozen=True)
class WrittenGguf:
    """The errors of rounded tensors, the names of the others, bytes, and files left out."""

    quantized: tuple[TensorError, ...]
    kept: tuple[str, ...]
    nbytes: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def require_gguf(destination: Path, type: str, group: int | None) -> None:
    """UsageError for a name that no reader knows, or a type that such files do not have."""
    if destination.suffix.lower() != SUFFIX:
        raise UsageError(
            f"{quoted(str(destination), 200)} is not called like a GGUF file",
            hint=f"choose a name that ends in `{SUFFIX}`",
        )
    known = (*GGUF_WEIGHT_TYPES, *PLAIN_TYPES)
    if type not in known:
        raise UsageError(
            f"a GGUF file has no weights of the type {quoted(type)}",
            hint=f"choose from {listed(known, 99)}",
        )
    if group not in (None, 32):
        raise UsageError(f"a GGUF file has groups of 32 weights, not of {group}")


def write_model(
    source: ModelSource,
    destination: Path,
    type: str,
    uses: Mapping[str, WeightUse],
    unused: Sequence[str],
    backend: Backend,
    *,
    keep: Sequence[str],
    rounding: Rounding,
    progress: StepProgress | None,
) -> WrittenGguf:
    """Write the file whole or not at all; memory is that of the largest tensor.

    Heads and tables of tokens get 8 bits. `unused` tensors are those that the model does not read:
    they are left out. Errors of products are those of `backend`. ModelError for what the format has
    no word for, CheckpointError for weights that cannot be read or rounded.
    """
    settings = settings_of(source.config, source.model_type, read_rotary)
    stored, names = source.weights, GgufNames(settings)
    weights = [name for name in stored.names() if name not in unused]
    table = next(name for name in weights if names.name_of(name) == "token_embd.weight")
    vocab_size = stored.type_of(table).shape[0]
    plan: Mapping[str, WeightType] = {}
    if wanted := GGUF_WEIGHT_TYPES.get(type):
        plan = planned(stored, uses, wanted, keep, heads="q8", vocab_size=vocab_size, experts=True)
    rounded = {
        name: _rounded(source, names, name, uses[name], plan[name].name, rounding, backend)
        for name in weights
        if name in plan and not names.is_router(names.name_of(name))
    }
    kept = [name for name in weights if name not in rounded]
    tensors = stacked(
        [
            *(quantized_outgoing(each, names.name_of(name)) for name, each in rounded.items()),
            *plain_tensors(stored, kept, uses, names, PLAIN_TYPES.get(type)),
            *extra_tensors(settings),
        ]
    )
    vocabulary = vocabulary_of(source, vocab_size)
    metadata = {**_general(source, settings, type), **vocabulary.metadata}
    with atomic_file(destination) as file:
        write_gguf(file, metadata, _watched(tensors, progress))
    return WrittenGguf(
        tuple(each.error() for each in rounded.values()),
        tuple(kept),
        sum(tensor.data.type.size for tensor in tensors),
        tuple(name for name in source.file_names() if name not in _READ),
        () if vocabulary.note is None else (vocabulary.note,),
    )


def _general(source: ModelSource, settings: GgufSettingsOf, type: str) -> Metadata:
    return {
        "general.architecture": settings.architecture,
        "general.name": source.name,
        "general.file_type": _FILE_TYPES[type],
        "general.quantization_version": 2,
        **settings.metadata,
    }


def _rounded(
    source: ModelSource,
    names: GgufNames,
    name: str,
    use: WeightUse,
    type: str,
    rounding: Rounding,
    backend: Backend,
) -> RoundedTensor:
    rows, columns = source.weights.type_of(name).shape
    turned = use == "turned"
    shape = (columns, rows) if turned else (rows, columns)
    load = names.ordered(names.name_of(name), lambda: source.weights.load(name))
    kind = GGUF_WEIGHT_TYPES[type]
    rounded = RoundedTensor(name, load, shape, kind, rounding, turned=turned)
    return rounded.computed_on(backend)


def _watched(
    tensors: Sequence[GgufOutgoing], progress: StepProgress | None
) -> Sequence[GgufOutgoing]:
    data = watched([tensor.data for tensor in tensors], progress)
    return [replace(tensor, data=each) for tensor, each in zip(tensors, data, strict=True)]
