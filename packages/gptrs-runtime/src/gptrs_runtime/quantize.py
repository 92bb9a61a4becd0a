"""Writing a model with quantized weights: `gptrs.quantize`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.tensor_archive import ARCHIVE_SUFFIXES
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.checkpoint.params import Params, WeightUse
from gptrs.checkpoint.quantized_tensor import QuantizedSource
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.exporters import exporter_of
from gptrs.plugins.manager import manager
from gptrs.progress import StepProgress
from gptrs.quoting import listed, quoted
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.converting.convert import (
    WRITERS,
    Destination,
    require_apart,
    require_free,
    watched,
)
from gptrs_runtime.converting.model_content import StoredModel, stored_model
from gptrs_runtime.gguf_export.write import PLAIN_TYPES, SUFFIX, require_gguf, write_model
from gptrs_runtime.load_options import LOADED_TYPES
from gptrs_runtime.quantizing.plan import (
    WeightType,
    planned,
    require_some,
    weight_type,
)
from gptrs_runtime.quantizing.quantizing_source import (
    QuantizingSource,
    compressed_config,
    compressed_tensors,
    rounded_tensor,
)
from gptrs_runtime.quantizing.tensor_rounding import ROUNDINGS, RoundedTensor, Rounding
from gptrs_runtime.results import Quantized, TensorError
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.sources.quantization_config import KEY

# Which weights of a model can be quantized, as its code uses them; quantizing them at load.


def weight_uses(source: ModelSource, backend: Backend) -> Mapping[str, WeightUse]:
    """Return the purposes of a model's matrices; constructs the model, but reads no weight."""
    return uses_and_unused(source, backend)[0]


def uses_and_unused(
    source: ModelSource, backend: Backend
) -> tuple[Mapping[str, WeightUse], Sequence[str]]:
    """Return the purposes of a model's matrices, and the names of unused tensors."""
    params = Params(source.weights, backend=backend, origin=str(source.path))
    model_factory(source.model_type)(source.config, params)
    return params.uses(), params.unused()


def vocab_size_of(source: ModelSource) -> int | None:
    """Return the size of the vocabulary that the config states, if it does."""
    size = source.config.get("vocab_size")
    return size if isinstance(size, int) else None


def quantize_at_load(
    source: ModelSource, backend: Backend, type: str, streamed: bool, threads: int | None = None
) -> None:
    """Let the weights of `source` be quantized when they are loaded, q8 or q4.

    `threads` do the work; by default those of `GPTRS_NUM_THREADS`, else one for each processor.
    Heads and tables of tokens get 8 bits. UsageError for another type, for weights that are
    quantized already, and for `streamed` ones, which would be quantized in each step; ModelError
    for a model without weights to quantize.
    """
    wanted = weight_type(type, LOADED_TYPES)
    if streamed:
        raise UsageError(
            "weights within a budget cannot be quantized when they are loaded",
            hint="`gptrs quantize` writes the model quantized; a budget works with that",
        )
    stored = source.weights
    if isinstance(stored, QuantizedSource):
        forms = [stored.quantized(name) for name in stored.names()]
        known = sorted({each.format for each in forms if each is not None})
        if known:
            raise UsageError(
                f"the weights of {quoted(source.name)} are quantized already, as {known[0]}",
                hint="leave out the type of weights, or `gptrs quantize` the original model",
            )
    uses = weight_uses(source, backend)
    vocab_size = vocab_size_of(source)
    plan = planned(stored, uses, wanted, heads="q8", vocab_size=vocab_size, experts=True)
    require_some(source.name, plan, wanted)
    source.weights = QuantizingSource(stored, plan, uses, threads=threads)


Target = Literal["hf", "gguf"]
"""A folder of compressed-tensors, or a GGUF file."""


def quantize(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    type: str = "q4",
    *,
    to: Target | None = None,
    group: int | None = None,
    keep: Sequence[str] = (),
    rounding: Rounding = "search",
    force: bool = False,
    progress: StepProgress | None = None,
) -> Quantized:
    """Write the model `source` to `destination` with quantized linear layers.

    `to` is "hf", a folder of compressed-tensors, which transformers reads, too, or "gguf", one
    file; None chooses "gguf" for a name that ends in `.gguf`. `type` is `q8`, `q4`, `q4_asym`
    (groups of `group` weights, 32 without it, 0: one a row), in a folder also `int8` (one scale a
    row), in a file also `f32`, `f16` and `bf16`, which quantize nothing. Norms, biases and tensors
    whose names match a pattern of `keep` are not quantized; heads and token embeddings are not
    quantized in a folder, and get 8 bits in a file. `rounding` "nearest" takes scales from the
    largest weights, "search" those with the least error. Peak memory is that of the largest tensor.
    `force` replaces a folder with a model, or a file.

    UsageError for arguments that do not fit, ModelError and CheckpointError as `load_model` and
    `convert` raise them, and where the layers of a kind cannot be stored so.
    """
    _require_rounding(rounding)
    path = Path(destination)
    form: Target = to or ("gguf" if path.suffix.lower() == SUFFIX else "hf")
    if form == "gguf":
        require_gguf(path, type, group)
        require_free(path, "tensors", force)
        return _quantized_file(source, path, type, keep, rounding, progress)
    if to is None:
        _require_folder(path)
    wanted = _folder_type(type)
    wanted = wanted if group is None else wanted.grouped(group)
    require_free(path, "hf", force)
    return _quantized_folder(
        source, Destination(path, None, force), wanted, keep, rounding, progress
    )


def _quantized_folder(
    source: str | os.PathLike[str],
    target: Destination,
    wanted: WeightType,
    keep: Sequence[str],
    rounding: Rounding,
    progress: StepProgress | None,
) -> Quantized:
    found = find_model(model_path(source))
    require_apart(found.path, target.path)
    backend = manager().get_backend(None)
    uses = weight_uses(found, backend)
    _require_linear(found, uses)
    plan = planned(found.weights, uses, wanted, keep, vocab_size=vocab_size_of(found))
    require_some(found.name, plan, wanted)
    weights = found.weights
    rounded = [
        rounded_tensor(weights, name, uses[name], plan[name], rounding).computed_on(backend)
        for name in plan
    ]
    ready, kept = _compressed(stored_model(found), rounded, wanted, uses)
    model = replace(ready, tensors=watched(ready.tensors, progress))
    files, left_out = WRITERS["hf"](model, target)
    errors = tuple(each.error() for each in rounded)
    return Quantized(
        form="hf",
        kind=found.model_type,
        type=wanted.name,
        rounding=rounding,
        precision=backend.quantized_precision(),
        files=tuple(files),
        quantized=errors,
        bits_per_weight=_mean(errors, "bits"),
        product_rms=_mean(errors, "product_rms"),
        kept=kept,
        nbytes=sum(stored_bytes(tensor.type) for tensor in ready.tensors),
        left_out=tuple(left_out),
    )


def _mean(tensors: Sequence[TensorError], field: Literal["bits", "product_rms"]) -> float:
    """Return the mean over the weights of all tensors; 0 if there are none."""
    # Weighted by size: a small layer with a large error changes little.
    sizes = [each.shape[0] * each.shape[1] for each in tensors]
    total = sum(getattr(each, field) * size for each, size in zip(tensors, sizes, strict=True))
    return total / sum(sizes) if sizes else 0.0


def _quantized_file(
    source: str | os.PathLike[str],
    path: Path,
    type: str,
    keep: Sequence[str],
    rounding: Rounding,
    progress: StepProgress | None,
) -> Quantized:
    found = find_model(model_path(source))
    # By the file, not the name: a link, or another spelling, would overwrite the model while it is
    # read.
    if path.exists() and found.path.exists() and path.samefile(found.path):
        raise UsageError(f"{quoted(str(path), 200)} is the model that is to be quantized")
    backend = manager().get_backend(None)
    uses, unused = uses_and_unused(found, backend)
    written = write_model(
        found, path, type, uses, unused, backend, keep=keep, rounding=rounding, progress=progress
    )
    return Quantized(
        form="gguf",
        kind=found.model_type,
        type=type,
        rounding=rounding,
        precision=backend.quantized_precision(),
        files=(path.name,),
        quantized=written.quantized,
        bits_per_weight=_mean(written.quantized, "bits"),
        product_rms=_mean(written.quantized, "product_rms"),
        kept=written.kept,
        nbytes=written.nbytes,
        left_out=written.left_out,
        notes=written.notes,
    )


def _require_folder(path: Path) -> None:
    """Raise UsageError for a name of another file format: a folder would be written."""
    if path.suffix.lower() in (".gptrschk", ".ptir", *ARCHIVE_SUFFIXES) or exporter_of(path):
        raise UsageError(
            f"{quoted(str(path), 200)} is called like a file of a format that quantized weights are"
            " not written in",
            hint=f"name a folder, or a file that ends in `{SUFFIX}`",
        )


def _folder_type(type: str) -> WeightType:
    if type in PLAIN_TYPES:
        raise UsageError(
            f"a folder with quantized weights has none of the type {quoted(type)}",
            hint=f"`gptrs convert --dtype {type}` writes such a folder, `--to gguf` such a file",
        )
    return weight_type(type)


def _require_rounding(rounding: str) -> None:
    if rounding not in ROUNDINGS:
        raise UsageError(
            f"weights cannot be rounded by {quoted(rounding)}",
            hint=f"choose from {listed(ROUNDINGS)}",
        )


def _require_linear(source: ModelSource, uses: Mapping[str, WeightUse]) -> None:
    """ModelError for a kind whose matrices are stored the other way round."""
    turned = [name for name, use in uses.items() if use == "turned"]
    if turned:
        raise ModelError(
            f"layers of a `{source.model_type}` model, such as {quoted(turned[0])}, are stored as"
            " [inputs, outputs], which compressed-tensors has no name for",
            hint="`--to gguf` writes a file, `--weights` quantizes the model when it is loaded",
        )


def _compressed(
    model: StoredModel,
    rounded: Sequence[RoundedTensor],
    type: WeightType,
    uses: Mapping[str, WeightUse],
) -> tuple[StoredModel, tuple[str, ...]]:
    """Return the content of the folder, and the names of the tensors that are not quantized."""
    by_name = {each.name: each for each in rounded}
    plain = [tensor for tensor in model.tensors if tensor.name not in by_name]
    tensors: list[OutgoingTensor] = list(plain)
    for each in rounded:
        tensors += compressed_tensors(each)
    kept = tuple(tensor.name for tensor in plain)
    stay = [name.removesuffix(".weight") for name in kept if uses.get(name) == "linear"]
    ignored = list(dict.fromkeys([*stay, "lm_head"]))  # a tied head has no separate weight
    config = {**(model.config or {}), KEY: compressed_config(type, ignored)}
    return replace(model, tensors=tensors, config=config), kept
