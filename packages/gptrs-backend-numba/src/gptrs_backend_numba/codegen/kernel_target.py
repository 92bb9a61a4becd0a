"""The target of numba that kernels are compiled for: machine code is made of whole kernels only.

For its own CPU target numba optimizes each function that a kernel calls by itself, makes machine
code of it and links that into the process, three times over: for calls by compiled code, by Python
and by C. Of all this a kernel needs the LLVM code alone, which is optimized with the rest of it.
Imported when the first kernel is in no store.
"""

from __future__ import annotations

import operator
from functools import cached_property, partial
from types import BuiltinFunctionType

from numba.core import cpu, dispatcher, types, typing
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.decorators import jit
from numba.core.descriptors import TargetDescriptor
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_registry,
)

from gptrs_backend_numba.codegen.numba_passes import PASSES

NAME = "gptrs kernels"


class KernelTarget(CPU):
    """The key of the target in numba's registries; what is there for any CPU serves it, too."""


class KernelLibrary(JITCodeLibrary):
    """The LLVM code of a function, which is linked into that of a kernel."""

    is_kernel = False

    def _optimize_final_module(self):
        if self.is_kernel:
            super()._optimize_final_module()

    def _finalize_specific(self):
        """Make no machine code."""

    def get_pointer_to_function(self, name):
        """Return 0, as for a function that there is not: this one is not in memory."""
        return 0

    def object_file(self):
        """Return the machine code."""
        return self._codegen._tm.emit_object(self._final_module)


class _Codegen(JITCPUCodegen):
    _library_class = KernelLibrary

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
