"""Loads a model of any kind: its files name the kind, a plugin builds it, a backend runs it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.backend.contract import Backend
from gptrs.backend.settings import Precision
from gptrs.capture.parameter import PIN_BELOW, PREFETCH, Streaming
from gptrs.checkpoint import adapter_config
from gptrs.checkpoint.adapter_config import LowRankAdapter
from gptrs.checkpoint.config_fields import ReadSettings
from gptrs.checkpoint.param_source import PLAN, ParamSource, TensorPlan
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.quantized_tensor import QuantizedSource
from gptrs.errors import CheckpointError, GptrsError, ModelError, UsageError
from gptrs.functionals.dispatch.active_overrides import entered
from gptrs.ir import dtypes
from gptrs.lazy_module import lazy_module
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.exporters import importer_of
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted, shown_value
from gptrs.spans import span
from gptrs_runtime.content_digest import model_path, weights_digest
from gptrs_runtime.forward import model_choices
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.loaded_model import LoadedModel, adapted_config, require_adapted
from gptrs_runtime.option_fields import option_fields
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.find_model import find_model, is_model_file
from gptrs_runtime.sources.model_source import (
    CONFIG,
    ModelSource,
    WeightStreaming,
    runtime_settings,
)
from gptrs_runtime.text_batches import parsed_bytes, shown_bytes
from gptrs_runtime.unread import unread_of

if TYPE_CHECKING:
    from gptrs.capture.streaming.streamed_executable import MruStreamer
    from gptrs_runtime import quantize as quantization
else:
    quantization = lazy_module("gptrs_runtime.quantize")

# The memory budget of a model's weights, from the caller, the environment, or config.json.


if TYPE_CHECKING:
    from gptrs.capture.streaming import streamed_executable
    from gptrs.capture.streaming.streamed_executable import MruStreamer
else:
    streamed_executable = lazy_module("gptrs.capture.streaming.streamed_executable")

VARIABLE = "GPTRS_WEIGHT_BUDGET"
_KEY = "`runtime.weight_streaming`"
_OFF = "off"
_logger = logging.getLogger("gptrs")


def weight_streamer(
    config: Mapping[str, object], origin: str, budget: int | str | None, weights: ParamSource
) -> MruStreamer | None:
    """Return the streamer that keeps `weights` within a budget; None without one, or if all fit.

    `budget` takes precedence over the variable `GPTRS_WEIGHT_BUDGET`, and that over
    `runtime.weight_streaming` of config.json, `{"budget": .., "prefetch": .., "pin_below": ..}`. It
    is a number of bytes, a text such as `2GB`, `512MiB` or `50%` (of the weights), or `off`.
    `origin` names the config in errors. ModelError for a malformed setting in it, UsageError for
    one from elsewhere.
    """
    where = f"{_KEY} of {quoted(origin, 200)}"
    settings = runtime_settings(config, origin).weight_streaming or WeightStreaming()
    environment = os.environ.get(VARIABLE, "").strip()
    error: Callable[..., GptrsError] = UsageError
    if budget is not None:
        stated, called = budget, "`weight_budget`"
        error = option_fields(LoadOptions)["weight_budget"].error
    elif environment:
        stated, called = environment, f"`{VARIABLE}`"
    else:
        stated, called, error = settings.budget, f"`budget` in {where}", ModelError
    if stated is None or stated == _OFF:
        return None
    total = _total_bytes(weights)
    nbytes = parsed_bytes(stated, total)
    if nbytes is None:
        raise error(
            f"{called} must be a size above 0 or a share of the weights,"
            f" found {shown_value(stated)}",
            hint="give bytes, a size such as `2GB` or `512MiB`, a share such as `50%`, or `off`",
        )
    prefetch = PREFETCH if settings.prefetch is None else settings.prefetch
    pin_below = PIN_BELOW if settings.pin_below is None else settings.pin_below
    return _streamer(Streaming(nbytes, prefetch, pin_below), total)


def _streamer(streaming: Streaming, total: int) -> MruStreamer | None:
    most = streaming.budget
    if most >= total:
        _logger.info("weight streaming is off: all weights, %s, fit", shown_bytes(total))
        return None
    _logger.info(
        "weight streaming is on: %s of weights pass through %s of memory, a step reads up to %s",
        shown_bytes(total),
        shown_bytes(most),
        shown_bytes(min(total, total - most + 2 * streaming.share)),
    )
    return streamed_executable.MruStreamer(streaming)


def _total_bytes(weights: ParamSource) -> int:
    total = 0
    for name in weights.names():
        with contextlib.suppress(CheckpointError):  # of no known dtype: no model reads it
            total += weights.type_of(name).nbytes
    return total


_LOG = logging.getLogger(__name__)


def load_model(
    path: str | Path | None = None,
    backend: str | Backend | None = None,
    threads: int | None = None,
    weight_budget: int | str | None = None,
    weights: str | None = None,
    precision: Precision | None = None,
    adapter: str | Path | None = None,
) -> LoadedModel:
    """Load the model at `path` (None: the bundled demo model) on a backend by name.

    `path` is a model folder, a `GPTRSCHK` or GGUF file, an ONNX file of a language model beside its
    settings and tokenizer or, where nothing has that name, a bundled
    model (`demo`) or one on the Hugging Face hub as `ORG/NAME[@REVISION]`, for a GGUF file of it
    `ORG/NAME:Q4_K_M`, which needs the library `huggingface_hub`.

    `backend` is a name, or one that `gptrs.get_backend` made, which has its threads. By default the
    one in `GPTRS_BACKEND` or the installed one of highest priority is used; `threads` None leaves
    their number to it. `weights` "q8" or "q4" quantizes them when they are loaded, with as many
    threads; UsageError if they are quantized already. `precision` `f32`, `bf16` or `int8` applies
    to products; None is `f32`, or for quantized weights the backend's preference. UsageError where
    it lacks that. `adapter` is the folder of a LoRA adapter, merged into f32 weights that are not
    streamed; see `LoadedModel.with_adapter` for several. Raises ModelError (no such model, unknown
    kind or setting), CheckpointError (damaged or missing weights) or PluginError (backend).

    The model runs with the overrides in `runtime.functional_overrides` of its config.json, an
    object of policies as in `gptrs.overrides`; the variable `GPTRS_OVERRIDES`, a comma list of
    FUNCTIONAL=POLICY, and active overrides take precedence.
    """
    return load(
        path,
        LoadOptions(
            backend=backend,
            threads=threads,
            weight_budget=weight_budget,
            weights=weights,
            precision=precision,
            adapter=adapter,
        ),
    )


def load(path: str | Path | None, options: LoadOptions) -> LoadedModel:
    """Load a model as `load_model` does, by options that also say on which devices."""
    started = time.perf_counter()
    weights = options.weights
    with span("load model"):
        source = _agreed_source(path, options.backend)
        made = options.made_backend()
        quantized = weights is not None or isinstance(source.weights, QuantizedSource)
        engine = _with_precision(made, options.precision, quantized)
        added = None if options.adapter is None else LowRankAdapter(options.adapter)
        engine.agree(lambda: _facts(source, options, added))
        config_path = str(source.path / CONFIG)
        if source.model_file is not None:
            _require_unchanged_weights(source, options)
        budget = options.weight_budget
        streamer = weight_streamer(source.config, config_path, budget, source.weights)
        if weights is not None:
            asked = manager().threads_of(made)
            quantization.quantize_at_load(source, engine, weights, streamer is not None, asked)
        params = _params(source, engine, streamer, added)
        choices = model_choices(source.config, config_path)
        settings = ReadSettings(adapted_config(source.config, added))
        with entered(choices):
            module = _module(source, settings, params)
        if added is not None:
            require_adapted(params, added, source)
    elapsed = time.perf_counter() - started
    if source.model_file is not None:
        return LoadedModel(source, module, engine, elapsed, choices, streamer)
    _tell(source, settings, params)
    if added is None and source.has_file(adapter_config.CONFIG):
        _LOG.warning(
            "%s has an adapter beside its weights (`%s`), which is not applied: `adapter`,"
            " `--adapter` takes its folder",
            quoted(source.name),
            adapter_config.CONFIG,
        )
    return LoadedModel(source, module, engine, elapsed, choices, streamer, weights, params, added)


def _facts(
    source: ModelSource, options: LoadOptions, adapter: LowRankAdapter | None
) -> dict[str, str]:
    """Return what identifies a model to processes that compute it together."""
    return {
        "model": weights_digest(source.weights).hex()
        + json.dumps(dict(source.config), sort_keys=True),
        "type of weights": str(options.weights),
        "precision": str(options.precision),
        "adapter": "none" if adapter is None else adapter.digest,
    }


def _module(source: ModelSource, settings: ReadSettings, params: Params) -> object:
    """Return the model of a source: of its kind, or of its file of another format."""
    if source.model_file is None:
        return model_factory(source.model_type)(settings, params)
    return source.model_file.build(settings, params)


def _require_unchanged_weights(source: ModelSource, options: LoadOptions) -> None:
    """Raise ModelError for an option that changes weights, whose layers an import does not name."""
    for option in ("weights", "adapter"):
        if getattr(options, option) is not None:
            raise ModelError(
                f"`{option}` does not apply to {quoted(source.name)}, an imported model: its graph"
                " does not say which weights are those of layers",
                hint="take the checkpoint that it was exported from",
            )


def _with_precision(made: Backend, precision: Precision | None, quantized: bool) -> Backend:
    wanted = made.quantized_precision() if precision is None and quantized else precision
    return made.with_precision(wanted)


def _agreed_source(path: str | Path | None, backend: str | Backend | None) -> ModelSource:
    """Return the model at `path`; processes that load it together learn that one of them cannot."""
    try:
        return _source(path)
    except GptrsError as error:
        if isinstance(backend, Backend):
            told = f"none: {error.message}"
            backend.agree(lambda: {"model": told})
        raise


def _source(path: str | Path | None) -> ModelSource:
    """Return the model at `path`; ModelError as in `find_model`, naming the importer of other
    formats."""
    found = model_path(path)
    importer = importer_of(found) if os.path.isfile(found) else None
    if importer is not None and not is_model_file(found):
        raise ModelError(
            f"{quoted(str(found), 200)} is read by the importer `{importer}`, as a graph of"
            " arrays: it has no tokenizer, settings or named layers",
            hint="`gptrs run`, `forward`, `inspect`, `bench forward` and `validate` take it; in"
            f" Python, {_python_call(importer)}",
        )
    return find_model(found)


def _python_call(importer: str) -> str:
    module, _, name = manager().find(ImporterPlugin, importer).factory.partition(":")
    return f"`from {module} import {name}; {name}(path, gptrs.get_backend())`"


def _tell(source: ModelSource, settings: ReadSettings, params: Params) -> None:
    unread_of(settings, source.config, params).tell(source.name)
    _warn_if_whole(params, source.name)


def _warn_if_whole(params: Params, name: str) -> None:
    """Warn if a mesh has devices for parts of weights but no weight can be split."""
    mesh = params.backend.mesh
    if mesh is None or mesh.sizes.get("tensor", 1) == 1 or "tensor" in params.split_axes(mesh):
        return
    _LOG.warning(
        "no weight of %s can be split over `tensor` of the mesh `%s`: its devices compute the same;"
        " take `data` alone, or see docs/distributed.md",
        quoted(name),
        mesh,
    )


def _params(
    source: ModelSource,
    backend: Backend,
    streamer: MruStreamer | None,
    adapter: LowRankAdapter | None,
) -> Params:
    origin = str(source.path)
    found = source.config.get(PLAN)
    plan = None if found is None else TensorPlan(found, str(source.path / CONFIG))
    return Params(
        source.weights, backend=backend, origin=origin, streamer=streamer, adapter=adapter,
        plan=plan, dtype=dtypes.f32 if source.model_file is None else None,
    )  # fmt: skip
