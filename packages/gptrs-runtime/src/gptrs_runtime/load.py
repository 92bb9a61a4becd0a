"""Load a model of any kind: the directory names the kind, a plugin builds it, a backend runs it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.backend.contract import (
    Backend,
    Precision,
)
from gptrs.checkpoint.low_rank import LowRankAdapter
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.quantized_tensor import QuantizedSource
from gptrs.checkpoint.read_settings import ReadSettings
from gptrs.checkpoint.tensor_plans import PLAN, TensorPlan
from gptrs.errors import ModelError
from gptrs.functionals.dispatch.active_overrides import entered
from gptrs.lazy_module import lazy_module
from gptrs.plugins.importers import importer_of
from gptrs.plugins.manager import backend_of, manager
from gptrs.quoting import quoted
from gptrs.spans import span
from gptrs_runtime.bundled_models import model_path
from gptrs_runtime.functional_overrides import model_choices
from gptrs_runtime.loaded_model import LoadedModel, require_adapted
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.model_source import CONFIG, ModelSource
from gptrs_runtime.unread import unread_of
from gptrs_runtime.weight_streaming import weight_streamer

if TYPE_CHECKING:
    from gptrs.capture.streaming.mru_streamer import MruStreamer
    from gptrs_runtime import weight_quantization as quantization
else:
    quantization = lazy_module("gptrs_runtime.weight_quantization")

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

    `path` is a model folder, a `GPTRSCHK` file or, where nothing has that name, a bundled model
    (`demo`) or one of the Hugging Face hub as `ORG/NAME[@REVISION]`, for which the library
    `huggingface_hub` is needed.

    `backend` is a name, or one that `gptrs.get_backend` made, which has its threads. Without it the
    one in `GPTRS_BACKEND` or the installed one of highest priority is taken; `threads` None leaves
    their number to it. `weights` "q8" or "q4" quantizes them when they are loaded, with as many
    threads; UsageError if they are quantized already. `precision` `f32`, `bf16` or `int8` is that
    of products; None is `f32`, for quantized weights what the backend prefers. UsageError where it
    lacks that. `adapter` is the folder of a LoRA adapter: weights of f32 that stay in memory are
    merged with it; see `LoadedModel.with_adapter` for several. Raises ModelError (no such model,
    unknown kind or setting), CheckpointError (damaged or missing weights) or PluginError (backend).

    All that the model computes follows `runtime.functional_overrides` of its config.json, an object
    of policies as `gptrs.overrides` takes them, where the variable `GPTRS_OVERRIDES`, a comma list
    of FUNCTIONAL=POLICY, or an override in force says nothing else.
    """
    started = time.perf_counter()
    with span("load model"):
        source = _source(path)
        made = backend_of(backend, threads)
        quantized = weights is not None or isinstance(source.weights, QuantizedSource)
        engine = _with_precision(made, precision, quantized)
        config_path = str(source.path / CONFIG)
        streamer = weight_streamer(source.config, config_path, weight_budget, source.weights)
        if weights is not None:
            asked = manager().threads_of(made)
            quantization.quantize_at_load(source, engine, weights, streamer is not None, asked)
        added = None if adapter is None else LowRankAdapter(adapter)
        params = _params(source, engine, streamer, added)
        choices = model_choices(source.config, config_path)
        settings = ReadSettings(source.config)
        with entered(choices):
            module = model_factory(source.model_type)(settings, params)
        if added is not None:
            require_adapted(params, added, source.name)
    _tell(source, settings, params)
    elapsed = time.perf_counter() - started
    return LoadedModel(source, module, engine, elapsed, choices, streamer, weights, params, added)


def _with_precision(made: Backend, precision: Precision | None, quantized: bool) -> Backend:
    wanted = made.quantized_precision() if precision is None and quantized else precision
    return made.with_precision(wanted)


def _source(path: str | Path | None) -> ModelSource:
    """Return the model at `path`; ModelError as `find_model`, with what reads another format."""
    found = model_path(path)
    importer = importer_of(found) if os.path.isfile(found) else None
    if importer is not None and not is_checkpoint(found):
        raise ModelError(
            f"{quoted(str(found), 200)} is read by the importer `{importer}`: it is an imported"
            " model, without the parts of one of gptrs",
            hint="`gptrs run`, `forward`, `inspect`, `bench forward` and `validate` take it",
        )
    return find_model(found)


def _tell(source: ModelSource, settings: ReadSettings, params: Params) -> None:
    unread_of(settings, source.config, params).tell(source.name)
    _warn_if_whole(params, source.name)


def _warn_if_whole(params: Params, name: str) -> None:
    """Warn where a mesh has devices for parts of weights, and no weight has such parts."""
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
        plan=plan,
    )  # fmt: skip
