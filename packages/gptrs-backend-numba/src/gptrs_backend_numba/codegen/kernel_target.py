"""The target of numba that kernels are compiled for: machine code is made of whole kernels only.

For its own CPU target numba optimizes each function that a kernel calls by itself, makes machine
code of it and links that into the process, three times over: for calls by compiled code, by Python
and by C. Of all this a kernel needs the LLVM code alone, which is optimized with the rest of it.
Imported when the first kernel is in no store.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from types import BuiltinFunctionType

from numba.core import config, cpu, dispatcher, ir, ssa, types, typing
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.decorators import jit
from numba.core.descriptors import TargetDescriptor
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.rewrites import rewrite_registry
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_registry,
)
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

from gptrs_backend_numba.codegen.processor import host_features, this_machine

# The passes of numba that compile kernels, without work that changes nothing in them.
#
# numba looks for the lifetimes of all variables after each pass that changes something; the last
# search, which places the ends of lifetimes, is the only one that matters. It rewrites all
# statements for each variable with several assignments, and types operations again when it
# translates them.


@register_pass(mutates_CFG=True, analysis_only=False)
class _Canonical(IRProcessing):
    """Gives loops one entry and one back edge; kernels are not generators."""

    def run_pass(self, state):
        state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)
        state.func_ir.generator_info = None
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrites(GenericRewrites):
    def run_pass(self, state):
        blocks = state.func_ir.blocks
        for rewrite_class in rewrite_registry.rewrites["before-inference"]:
            rewrite = rewrite_class(state)
            waiting = list(blocks.items())
            while waiting:
                label, block = waiting.pop()
                if rewrite.match(state.func_ir, block, state.typemap, state.calltypes):
                    blocks[label] = rewrite.apply()
                    waiting.append((label, blocks[label]))
        return True


_PARTS = (
    "_iterated_domfronts", "_CacheListVars", "_find_defs_violators", "_fresh_vars", "_make_states",
    "_compute_phi_locations", "_run_block_rewrite", "_FixSSAVars",
)  # fmt: skip
"""Names of `numba.core.ssa` that `_assign_once` uses; they are not public."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _SingleAssignments(ReconstructSSA):
    def run_pass(self, state):
        if not all(hasattr(ssa, name) for name in _PARTS):  # a numba that is newer than this
            return super().run_pass(state)
        _assign_once(state.func_ir.blocks)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


def _assign_once(blocks):
    """Give each assignment its own variable, as `numba.core.ssa` does for all blocks."""
    cfg = compute_cfg_from_blocks(blocks)
    frontiers, uses = ssa._iterated_domfronts(cfg), ssa._CacheListVars()
    blocks_of = defaultdict(set)
    for label, block in blocks.items():
        for variable in chain.from_iterable(each.list_vars() for each in block.body):
            blocks_of[variable.name].add(label)
    for name in ssa._find_defs_violators(blocks, cfg):
        those = {label: block for label, block in blocks.items() if label in blocks_of[name]}
        those, definitions = ssa._fresh_vars(those, name)
        states = {
            **ssa._make_states(blocks), "varname": name, "defmap": definitions, "cfg": cfg,
            "phimap": defaultdict(list),
            "phi_locations": ssa._compute_phi_locations(frontiers, definitions),
        }  # fmt: skip
        blocks.update(ssa._run_block_rewrite(those, states, ssa._FixSSAVars(uses)))
        for label, phis in states["phimap"].items():
            blocks[label].body = phis + blocks[label].body


@register_pass(mutates_CFG=False, analysis_only=False)
class _WithoutPhis(PreLowerStripPhis):
    def run_pass(self, state):
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _Translation(Lower):
    def lower_binop(self, resty, expr, op):
        """Translate an operation; only one with constants may have a special case for them."""
        if not (expr.static_lhs is expr.static_rhs is ir.UNDEFINED):
            return super().lower_binop(resty, expr, op)
        typing_context = self.context.typing_context
        function = typing_context.resolve_value_type(op)
        wanted = self.fndesc.calltypes[expr]
        given = [self.typeof(expr.lhs.name), self.typeof(expr.rhs.name)]
        values = [self.loadvar(expr.lhs.name), self.loadvar(expr.rhs.name)]
        values = [
            self.context.cast(self.builder, *each)
            for each in zip(values, given, wanted.args, strict=True)
        ]
        signature = typing_context.resolve_function_type(function, wanted.args, {})
        result = self.context.get_function(function, signature)(self.builder, values)
        return self.context.cast(self.builder, result, wanted.return_type, resty)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    @property
    def lowering_class(self):
        return _Translation


PASSES = (
    TranslateByteCode, FixupArgs, _Canonical,
    RewriteSemanticConstants, DeadBranchPrune, _Rewrites, _SingleAssignments,
    NopythonTypeInference, _WithoutPhis,
    IRLegalization, _Lowering, NoPythonBackend,
)  # fmt: skip
"""Those of numba's own list for closures, `with`, exceptions, literals, arrays are left out."""


NAME = "gptrs kernels"


class KernelTarget(CPU):
    """The key of the target in numba's registries; what is there for any CPU serves it, too."""


class KernelLibrary(JITCodeLibrary):
    """The LLVM code of a function, to be linked into a kernel."""

    is_kernel = False
    machine = None
    """The machine of LLVM that a kernel is compiled by, None: numba's, for this processor."""

    def _optimize_final_module(self):
        if not self.is_kernel:
            return
        if self.machine is not None:
            self._final_module.triple = self.machine.triple
            self._final_module.data_layout = str(self.machine.target_data)
        with self._codegen.machine_of(self.machine):
            super()._optimize_final_module()

    def _finalize_specific(self):
        """Make no machine code."""

    def get_pointer_to_function(self, name):
        """Return 0: the function is not in memory."""
        return 0

    def object_file(self):
        """Return the machine code."""
        return (self.machine or self._codegen._tm).emit_object(self._final_module)


class _Codegen(JITCPUCodegen):
    _library_class = KernelLibrary

    @contextmanager
    def machine_of(self, machine):
        """Scope in which passes ask `machine` for its costs, if it is not None."""
        former = self._tm
        self._tm = machine or former
        try:
            yield
        finally:
            self._tm = former

    def _customize_tm_features(self):
        """Name what kernels use of aarch64, too: LLVM finds nothing under emulation."""
        found = super()._customize_tm_features()
        if this_machine() != "aarch64" or config.CPU_FEATURES is not None:
            return found
        return ",".join(filter(None, (found, *(f"+{name}" for name in sorted(host_features())))))

    def _add_module(self, module):
        """Link nothing into this process."""

    def set_env(self, env_name, env):
        """Tell no function of its environment, which is for Python objects."""


class _TypingContext(typing.Context):
    is_fresh = False

    def refresh(self):
        """Look for functions that numba has been told of, once for each kernel: it takes long."""
        if not self.is_fresh:
            super().refresh()
            self.is_fresh = True

    def resolve_value_type(self, val):
        """Return the type of a constant; numba asks its kinds of objects in turn for operators."""
        is_operator = isinstance(val, BuiltinFunctionType) and val in _OPERATORS
        found = self._lookup_global(val) if is_operator else None
        return super().resolve_value_type(val) if found is None else found

    def resolve_function_type(self, func, args, kws):
        """Return the signature of a call; numba tries all of NumPy's for each sum of integers."""
        is_operator = getattr(func, "typing_key", None) in _OPERATORS
        if kws or not (is_operator and all(isinstance(each, types.Number) for each in args)):
            return super().resolve_function_type(func, args, kws)
        if (func, args) not in self._signatures:
            self._signatures[func, args] = super().resolve_function_type(func, args, kws)
        return self._signatures[func, args]

    @cached_property
    def _signatures(self):
        return {}


_OPERATORS = frozenset(
    function for function in vars(operator).values() if isinstance(function, BuiltinFunctionType)
)


class _Context(cpu.CPUContext):
    is_fresh = False

    def init(self):
        super().init()
        self._internal_codegen = _Codegen("kernels")

    def refresh(self):
        """Look for implementations; those of intrinsics are added as their calls are typed."""
        if self.is_fresh:
            for registry in self._registries:
                self.install_registry(registry)
        else:
            self.is_fresh = True
            super().refresh()


class _Options(cpu.CPUTargetOptions):
    def finalize(self, flags, options):
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().finalize(flags, options)


class _Descriptor(TargetDescriptor):
    options = _Options

    @cached_property
    def typing_context(self):
        return _TypingContext()

    @cached_property
    def target_context(self):
        return _Context(self.typing_context, NAME)

    def refresh(self):
        """Make functions known that numba has been told of since the last call."""
        self.typing_context.is_fresh = self.target_context.is_fresh = False
        self.target_context.refresh()


class KernelCompiler(CompilerBase):
    """The compiler without the passes that change nothing in functions of this package."""

    def define_pipelines(self):
        """Return the passes: all of them for functions of numba's own."""
        if self.state.func_id.modname.startswith("numba."):
            return [DefaultPassBuilder.define_nopython_pipeline(self.state)]
        manager = PassManager("kernel")
        for each in PASSES:
            manager.add_pass(each, each.name())
        manager.finalize()
        return [manager]


target_registry[NAME] = KernelTarget
TARGET = _Descriptor(NAME)
"""The typing and the target context of kernels."""


class _Dispatcher(dispatcher.Dispatcher):
    targetdescr = TARGET


dispatcher_registry[KernelTarget] = _Dispatcher
jit_registry[KernelTarget] = partial(jit, _target=NAME, pipeline_class=KernelCompiler)
