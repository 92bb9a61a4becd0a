"""The target of numba that kernels are compiled for: machine code is made of whole kernels only.

For its own CPU target numba optimizes each function that a kernel calls by itself, makes machine
code of it and links that into the process, three times over: for calls by compiled code, by Python
and by C. Of all this a kernel needs the LLVM code alone, which is optimized with the rest of it.
Imported when the first kernel is in no store.
"""

from __future__ import annotations

from functools import cached_property, partial

from numba.core import cpu, dispatcher, typing
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.decorators import jit
from numba.core.descriptors import TargetDescriptor
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_registry,
)

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


class _Context(cpu.CPUContext):
    def init(self):
        super().init()
        self._internal_codegen = _Codegen("kernels")


class _Options(cpu.CPUTargetOptions):
    def finalize(self, flags, options):
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().finalize(flags, options)


class _Descriptor(TargetDescriptor):
    options = _Options

    @cached_property
    def typing_context(self):
        return typing.Context()

    @cached_property
    def target_context(self):
        return _Context(self.typing_context, NAME)


target_registry[NAME] = KernelTarget
TARGET = _Descriptor(NAME)
"""The typing and the target context of kernels."""


class _Dispatcher(dispatcher.Dispatcher):
    targetdescr = TARGET


dispatcher_registry[KernelTarget] = _Dispatcher
jit_registry[KernelTarget] = partial(jit, _target=NAME)
