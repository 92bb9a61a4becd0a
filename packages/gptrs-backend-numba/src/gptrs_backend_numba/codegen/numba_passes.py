"""The passes of numba that compile kernels, without work that changes nothing in them.

numba looks for the lifetimes of all variables after each pass that changes something; the last
search, which places the ends of lifetimes, is the only one that matters. It rewrites all statements
for each variable with several assignments, and types operations again when it translates them.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from numba.core import ir, ssa
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import register_pass
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.rewrites import rewrite_registry
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


@register_pass(mutates_CFG=True, analysis_only=False)
class _Canonical(IRProcessing):
    """Gives loops one way in and one way back; kernels are no generators."""

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
    """Give each assignment a variable of its own, as `numba.core.ssa` does for all blocks."""
    cfg = compute_cfg_from_blocks(blocks)
    frontiers, uses = ssa._iterated_domfronts(cfg), ssa._CacheListVars()
    places = defaultdict(set)
    for label, block in blocks.items():
        for variable in chain.from_iterable(each.list_vars() for each in block.body):
            places[variable.name].add(label)
    for name in ssa._find_defs_violators(blocks, cfg):
        those = {label: block for label, block in blocks.items() if label in places[name]}
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
