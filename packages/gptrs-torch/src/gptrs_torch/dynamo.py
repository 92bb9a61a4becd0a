"""The compile backend for torch: `torch.compile(model, backend="gptrs")`."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import torch
from msgspec import Struct
from torch import _decomp, fx
from torch._decomp import core_aten_decompositions
from torch._dynamo import config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from gptrs import dumping, get_backend
from gptrs.api import UsageError
from gptrs.api.backends import Backend, Precision
from gptrs_torch import ops
from gptrs_torch.conversion import converter_of
from gptrs_torch.encoder_layers import encoder_rules
from gptrs_torch.grids import grid_rules
from gptrs_torch.memory_orders import order_rules
from gptrs_torch.partition import PartitionedGraph, keep_layers, rules, separate_operands
from gptrs_torch.quantized import quantized_rules
from gptrs_torch.resizing import keep_sizes, resizing_rules
from gptrs_torch.weights import Watch, WeightWatch

# Which ATen operators torch decomposes before they are converted.


assert ops  # its modules register the converters
# Dynamo breaks graphs at recurrent layers otherwise, and a module around one runs in torch, with no
# word about it. There is no setting for one backend: `torch.compile` offers none a scope.
config.allow_rnn = True
Rules: TypeAlias = "dict[Any, Callable[..., Any]]"
_ATEN = torch.ops.aten
_MORE = (
    _ATEN.grid_sampler_2d,
    _ATEN.upsample_bilinear2d.vec,
    _ATEN.upsample_bilinear2d.default,
    _ATEN.upsample_bicubic2d.vec,
    _ATEN.upsample_bicubic2d.default,
    _ATEN.upsample_nearest1d.vec,
    _ATEN.upsample_nearest1d.default,
    _ATEN.upsample_nearest2d.vec,
    _ATEN.upsample_nearest2d.default,
    _ATEN.upsample_nearest3d.vec,
    _ATEN.upsample_nearest3d.default,
    _ATEN.upsample_linear1d.vec,
    _ATEN.upsample_trilinear3d.vec,
    _ATEN.upsample_linear1d.default,
    _ATEN.upsample_trilinear3d.default,
    _ATEN._native_batch_norm_legit_functional,
    _ATEN._native_batch_norm_legit.no_stats,
    _ATEN.native_batch_norm.default,
    _ATEN.split_with_sizes_copy,
)
"""Operators of the core set without a converter."""


@cache
def table() -> Rules:
    """Return decompositions into converted operators: to core ATen, and of a part of it.

    Operators with a converter stay whole, so that backends recognize them: `silu`, `linear`,
    attention. So do recurrent layers, under names of their own.
    """
    more = cast("Rules", cast("Any", _decomp).get_decompositions(_MORE))
    found: Rules = {**core_aten_decompositions(), **more}
    taken_apart = {op: rule for op, rule in found.items() if converter_of(op) is None}
    images = {**resizing_rules(found), **grid_rules(found)}
    ours = {**images, **quantized_rules(), **rules(), **encoder_rules()}
    return {**taken_apart, **order_rules(taken_apart), **ours}


# The options of the compile backend.


_WEIGHTS: Final = ("checked", "frozen")
_dumps = ExitStack()
_dumped: set[Path] = set()
atexit.register(_dumps.close)


class Settings(Struct, frozen=True):
    """Options of `torch.compile(..., options={...})`.

    `backend` names a backend of gptrs (None: the default one); `threads` and `precision` are passed
    to it (defaults: `GPTRS_NUM_THREADS` and f32). All programs are dumped to the directory `dump`,
    see `gptrs.dumping`. `weights`: `checked` (the default), or `frozen`, which promises that no
    weight changes in a way that torch does not count, such as by `.data`.
    """

    backend: str | None = None
    threads: int | None = None
    precision: Precision | None = None
    dump: str | None = None
    weights: str | None = "checked"

    @staticmethod
    def of(options: Mapping[str, object] | None) -> Settings:
        """Check options; UsageError for unknown ones and for wrong types."""
        known = Settings.__struct_fields__
        kinds = {"threads": int}
        for name, value in (options or {}).items():
            if name not in known:
                raise UsageError(
                    f"the compile backend `gptrs` has no option `{name}`",
                    hint=f"its options are {', '.join(known)}",
                )
            kind = kinds.get(name, str)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise UsageError(
                    f"the option `{name}` takes a value of type `{kind.__name__}`, got `{value!r}`"
                )
            if name == "weights" and value not in (None, *_WEIGHTS):
                raise UsageError(f"the option `weights` takes `checked` or `frozen`, got `{value}`")
        return Settings(**cast("dict[str, str]", dict(options or {})))  # pyright: ignore[reportArgumentType]

    def engine(self) -> Backend:
        """Return the backend; starts the dump, if there is one, which ends with the process."""
        if self.dump is not None and Path(self.dump).absolute() not in _dumped:
            _dumped.add(Path(self.dump).absolute())
            _dumps.enter_context(dumping(self.dump))
        return get_backend(self.backend, self.threads).with_precision(self.precision)


# A note where dynamo hands over nothing: it runs a model in torch, and tells only its logs.


def note_on_nothing(counted: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return a note if dynamo looked at functions and made no graph of any, by its counters.

    None if it has made graphs, of whatever backend, or has looked at nothing.
    """
    if not counted.get("frames", {}).get("total") or counted.get("stats", {}).get("unique_graphs"):
        return None
    breaks = counted.get("graph_break", {})
    reason = next(iter(breaks), "").partition("\n")[0]
    why = f"; dynamo broke its graphs, first for this reason: {reason}" if breaks else ""
    return (
        "`torch.compile` gave the backend `gptrs` nothing to compile: all ran in torch"
        f"{why}; `TORCH_LOGS=graph_breaks` shows where"
    )


def _note_at_exit() -> None:
    note = note_on_nothing(cast("Mapping[str, Mapping[str, int]]", counters))
    if note is not None:
        warnings.warn(note, stacklevel=1)


# Not before the end: a function within one that dynamo gave up may still become a graph.
atexit.register(_note_at_exit)
Compiled = Callable[..., Any]


def gptrs_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Compile a graph of torch for a backend of gptrs; torch calls this by its entry point.

    `options` are the fields of `Settings`. Supports inference on the CPU only: if results have
    gradients, or tensors are elsewhere, torch runs the graph, with one warning. Raises UsageError
    for unknown options and modes.
    """
    settings = Settings.of(options)
    if mode not in (None, "default"):
        raise UsageError(
            f"the compile backend `gptrs` has no mode `{mode}`",
            hint="leave `mode` out; `options` may name `threads`, `precision` or a `backend`",
        )
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    elsewhere = [str(each.device) for each in tensors if each.device.type != "cpu"]
    if elsewhere:
        return _left_to_torch(module, _ELSEWHERE.format(elsewhere[0]))
    if _is_trained(module, tensors):
        return _left_to_torch(module, _TRAINED)
    watch = partial(WeightWatch, contents=settings.weights != "frozen")
    compile_graph = partial(_compiled, settings.engine(), watch)
    separate_operands(module.graph)
    keep_layers(module)
    keep_sizes(module)
    compiler = aot_autograd(
        fw_compiler=_trained_graph, inference_compiler=compile_graph, decompositions=table()
    )
    try:
        return compiler(module, example_inputs)
    except TorchDynamoException:  # some of them ask dynamo to trace again
        raise
    except (AssertionError, RuntimeError) as error:  # of torch, before anything is converted
        return _left_to_torch(module, _UNTRACED.format(str(error).partition("\n")[0]))


_TRAINED: Final = (
    "does not train: torch runs this graph; for inference call the model under"
    " `torch.inference_mode()`"
)
_ELSEWHERE: Final = (
    "runs on the CPU, and this graph has tensors on `{}`: torch runs it; move the model and its"
    " inputs with `.cpu()`"
)
_UNTRACED: Final = "cannot convert this graph, which torch does not trace: torch runs it ({})"


def _left_to_torch(module: fx.GraphModule, why: str) -> Compiled:
    """Return the graph as torch runs it, with a warning that says why, and what to do."""
    warnings.warn(f"the compile backend `gptrs` {why}", stacklevel=3)
    return module.forward


def _is_trained(module: fx.GraphModule, tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether a result of a graph has a gradient, by its types, else by its inputs.

    Views of weights require one even where gradients are disabled, and have none to give.
    """
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    results = [each.meta.get("example_value") for each in output.all_input_nodes]
    if any(each is None for each in results):
        return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return any(isinstance(each, torch.Tensor) and each.grad_fn is not None for each in results)


def _trained_graph(module: fx.GraphModule, example_inputs: Sequence[object]) -> Compiled:
    """Return a graph of a forward or backward pass, for gradients that no type of a result told."""
    del example_inputs
    return make_boxed_func(_left_to_torch(module, _TRAINED))


def _compiled(
    backend: Backend, watch: Watch, module: fx.GraphModule, example_inputs: Sequence[object]
) -> Compiled:
    """Return the function for a graph of core ATen, called with a list of its inputs."""
    del example_inputs
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    static: list[int] = []
    if metadata is not None:
        # Weights that the graph itself writes to would be read again in each call.
        changed = [each.mutates_data for each in metadata.input_info]
        static = [i for i in metadata.static_input_indices if i < len(changed) and not changed[i]]
    return PartitionedGraph(module, backend, static, watch=watch).boxed()
