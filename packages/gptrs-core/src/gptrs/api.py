"""The names that plugins may import: everything else in gptrs may change without notice.

A plugin states the `API_VERSION` that it was written for; within that version these names keep
their meaning. The descriptions are here at once, all other names are imported on first use, so that
the module an entry point names stays light.

- Descriptions: `BackendPlugin`, `ModelPlugin`, `FunctionalPlugin`, `CommandPlugin`,
  `DemoModelPlugin`, `TraceSinkPlugin`, `hookimpl`, `API_VERSION`.
- For backends: `Backend`, `Executable`, `Buffer`, `InputRole`, `OpTable`, `require_supported`,
  `dying_values`; what the process is granted: `requested_threads`, `granted_cpus`,
  `affinity_cpus`, `cpu_quota`, `memory_limit`; and the program they are given: `Program`,
  `Function`, `Region`, `Instruction`, `Value`, `Op`, `Signature`, `TensorType`, `DType`, `Literal`,
  `Scalar`, `Dictionary`, `FunctionName`; the modules `ops` (one module a family) and `dtypes`.
  `run_conformance` checks a
  backend and `op_support` lists what it takes, both by the package `gptrs-conformance`, whose
  pytest class is `gptrs_conformance.suite.ConformanceSuite`. What a backend may offer
  besides: `BackendWithPasses`, with `Pass`, `RewritePass`, `Rewrite`, `FusionPass`, `find_views`,
  `View` and `pattern`; `KernelCache`, with `CacheReport`, `CacheVersion` and `Entries`;
  `ProfiledExecutable`, with `KernelRun`; `BindingExecutable`, with `BoundInputs`;
  `MachineProbe`.
- For models: `Tensor`, `tensor`, `jit`, `register_pytree`, `Module`, `Params`, `ConfigFields`,
  `KVCache`, `CacheLayer`, `LayerCache`, `CachePosition`; the modules `nn` and `functionals`. What
  a model promises: `CausalLM`, `ImageClassifier`, `TextEmbedder`, `HiddenStates`.
- For trace sinks: `ExecutionTraceSink` and its events `CompileStart`, `PassEvent`, `CompileEnd`,
  `RunStart`, `RunEnd`, `KernelEvent`.
- For functionals: `functional`, `implement`, and the module `primitives`.
- For programs and tests: `Builder`, `parse_program`, `print_program`, `parse_json`, `print_json`,
  `verify`, `symbols`, `bind`, `specialize`, `run_program`.
- Errors: `GptrsError` and its subclasses, each saying when it is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gptrs.errors import (
    BackendError,
    CheckpointError,
    ConsumedTensorError,
    ContextLengthError,
    ExecutionError,
    GptrsError,
    ModelError,
    ParseError,
    PluginError,
    ProgramError,
    UnsupportedError,
    UsageError,
)
from gptrs.plugins.descriptions import (
    API_VERSION,
    BackendPlugin,
    CommandPlugin,
    DemoModelPlugin,
    FunctionalPlugin,
    ModelPlugin,
    TraceSinkPlugin,
)
from gptrs.plugins.hookspecs import hookimpl
from gptrs.plugins.references import load_reference

if TYPE_CHECKING:
    from gptrs import functionals, nn
    from gptrs.backend.bound_inputs import BindingExecutable, BoundInputs
    from gptrs.backend.kernel_cache import CacheReport, CacheVersion, Entries, KernelCache
    from gptrs.backend.machine_probe import MachineProbe
    from gptrs.backend.memory_plan import dying_values
    from gptrs.backend.op_table import OpTable, require_supported
    from gptrs.backend.process_limits import (
        affinity_cpus,
        cpu_quota,
        granted_cpus,
        memory_limit,
        requested_threads,
    )
    from gptrs.backend.profiled import KernelRun, ProfiledExecutable
    from gptrs.backend.protocol import Backend, Buffer, Executable, InputRole
    from gptrs.capture import primitives
    from gptrs.capture.compilation import BackendWithPasses
    from gptrs.capture.events.trace import (
        CompileEnd,
        CompileStart,
        ExecutionTraceSink,
        KernelEvent,
        PassEvent,
        RunEnd,
        RunStart,
    )
    from gptrs.capture.jitting.jit import jit
    from gptrs.capture.jitting.pytree import register_pytree
    from gptrs.capture.tensor import Tensor, tensor
    from gptrs.checkpoint.config_fields import ConfigFields
    from gptrs.checkpoint.params import Params
    from gptrs.functionals.dispatch.registry import functional, implement
    from gptrs.functionals.matching.patterns import pattern
    from gptrs.ir import (
        dtypes,
        ops,
        parse_json,
        parse_program,
        print_json,
        print_program,
        verify,
    )
    from gptrs.ir.attributes import FunctionName
    from gptrs.ir.builder import Builder
    from gptrs.ir.dictionary import Dictionary
    from gptrs.ir.dtypes import DType
    from gptrs.ir.literal import Literal, Scalar
    from gptrs.ir.op import Op, Signature
    from gptrs.ir.program import Function, Instruction, Program, Region, Value
    from gptrs.ir.specialize import bind, specialize, symbols
    from gptrs.ir.tensor_type import TensorType
    from gptrs.nn.cache_layer import CacheLayer
    from gptrs.nn.cache_position import CachePosition
    from gptrs.nn.kv_cache import KVCache, LayerCache
    from gptrs.nn.module import Module
    from gptrs.optimizer.fusion import FusionPass, View, find_views
    from gptrs.optimizer.pass_base import Pass, RewritePass
    from gptrs.optimizer.rewrite.rewrite import Rewrite
    from gptrs.plugins.capabilities import CausalLM, HiddenStates, ImageClassifier, TextEmbedder
    from gptrs.runtime.conformance import op_support, run_conformance
    from gptrs.runtime.programs.run import run_program

__all__ = [
    "API_VERSION",
    "BackendPlugin",
    "CommandPlugin",
    "DemoModelPlugin",
    "FunctionalPlugin",
    "ModelPlugin",
    "TraceSinkPlugin",
    "hookimpl",
    "Backend",
    "Buffer",
    "Executable",
    "InputRole",
    "OpTable",
    "dying_values",
    "require_supported",
    "affinity_cpus",
    "cpu_quota",
    "granted_cpus",
    "memory_limit",
    "requested_threads",
    "KernelCache",
    "CacheReport",
    "CacheVersion",
    "Entries",
    "KernelRun",
    "BindingExecutable",
    "BoundInputs",
    "ProfiledExecutable",
    "MachineProbe",
    "BackendWithPasses",
    "KernelEvent",
    "FusionPass",
    "View",
    "find_views",
    "Pass",
    "RewritePass",
    "Rewrite",
    "pattern",
    "DType",
    "Function",
    "Instruction",
    "Literal",
    "Scalar",
    "Dictionary",
    "FunctionName",
    "Op",
    "Signature",
    "Program",
    "Region",
    "TensorType",
    "Value",
    "dtypes",
    "ops",
    "CausalLM",
    "ImageClassifier",
    "TextEmbedder",
    "HiddenStates",
    "ConfigFields",
    "CacheLayer",
    "KVCache",
    "LayerCache",
    "Module",
    "Params",
    "CachePosition",
    "Tensor",
    "functionals",
    "jit",
    "nn",
    "register_pytree",
    "tensor",
    "ExecutionTraceSink",
    "CompileStart",
    "PassEvent",
    "CompileEnd",
    "RunStart",
    "RunEnd",
    "functional",
    "implement",
    "primitives",
    "Builder",
    "parse_json",
    "parse_program",
    "print_json",
    "print_program",
    "run_program",
    "symbols",
    "bind",
    "specialize",
    "verify",
    "run_conformance",
    "op_support",
    "BackendError",
    "CheckpointError",
    "ConsumedTensorError",
    "ContextLengthError",
    "ExecutionError",
    "GptrsError",
    "ModelError",
    "ParseError",
    "PluginError",
    "ProgramError",
    "UnsupportedError",
    "UsageError",
]

_NAMES = {
    "gptrs.backend.bound_inputs": "BindingExecutable BoundInputs",
    "gptrs.backend.kernel_cache": "KernelCache CacheReport CacheVersion Entries",
    "gptrs.backend.machine_probe": "MachineProbe",
    "gptrs.backend.memory_plan": "dying_values",
    "gptrs.backend.op_table": "OpTable require_supported",
    "gptrs.backend.process_limits": "affinity_cpus cpu_quota granted_cpus memory_limit "
    "requested_threads",
    "gptrs.backend.profiled": "KernelRun ProfiledExecutable",
    "gptrs.backend.protocol": "Backend Buffer Executable InputRole",
    "gptrs.capture.compilation": "BackendWithPasses",
    "gptrs.capture.jitting.jit": "jit",
    "gptrs.capture.jitting.pytree": "register_pytree",
    "gptrs.capture.tensor": "Tensor tensor",
    "gptrs.capture.events.trace": "KernelEvent ExecutionTraceSink CompileStart PassEvent "
    "CompileEnd RunStart RunEnd",
    "gptrs.checkpoint.config_fields": "ConfigFields",
    "gptrs.checkpoint.params": "Params",
    "gptrs.functionals.matching.patterns": "pattern",
    "gptrs.functionals.dispatch.registry": "functional implement",
    "gptrs.ir": "parse_json parse_program print_json print_program verify",
    "gptrs.ir.attributes": "FunctionName",
    "gptrs.ir.builder": "Builder",
    "gptrs.ir.dictionary": "Dictionary",
    "gptrs.ir.dtypes": "DType",
    "gptrs.ir.literal": "Literal Scalar",
    "gptrs.ir.op": "Op Signature",
    "gptrs.ir.program": "Function Instruction Program Region Value",
    "gptrs.ir.specialize": "symbols bind specialize",
    "gptrs.ir.tensor_type": "TensorType",
    "gptrs.nn.cache_layer": "CacheLayer",
    "gptrs.nn.kv_cache": "KVCache LayerCache",
    "gptrs.nn.module": "Module",
    "gptrs.nn.cache_position": "CachePosition",
    "gptrs.optimizer.fusion": "FusionPass View find_views",
    "gptrs.optimizer.pass_base": "Pass RewritePass",
    "gptrs.optimizer.rewrite.rewrite": "Rewrite",
    "gptrs.plugins.capabilities": "CausalLM ImageClassifier TextEmbedder HiddenStates",
    "gptrs.runtime.conformance": "op_support run_conformance",
    "gptrs.runtime.programs.run": "run_program",
}
"""The names of each module, which is imported when the first of them is asked for."""
_MODULES = {
    "dtypes": "gptrs.ir.dtypes",
    "ops": "gptrs.ir.ops",
    "functionals": "gptrs.functionals",
    "nn": "gptrs.nn",
    "primitives": "gptrs.capture.primitives",
}
_LAZY = _MODULES | {
    name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()
}


def __getattr__(name: str) -> object:
    """Import one of the names above on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"`gptrs.api` has no public name `{name}`")
    value = load_reference(_LAZY[name])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
