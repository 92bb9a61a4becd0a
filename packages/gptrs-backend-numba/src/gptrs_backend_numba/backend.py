"""The numba backend: programs become schedules of kernel calls, tensors are NumPy arrays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec.structs import replace

from gptrs.backend.contract import Backend, Buffer, Compiling, Executable, InputRole
from gptrs.backend.op_table import require_supported
from gptrs.backend.process_limits import MOST_THREADS, granted_cpus, requested_threads
from gptrs.backend.settings import Precision
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.backend.weight_identity import WeightIdentity, WeightOrigin
from gptrs.disk_cache import CacheReport, Entries
from gptrs.errors import UsageError
from gptrs.ir.op import Op
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs.variables import Variables
from gptrs_backend_numba import cost_model, memory
from gptrs_backend_numba.codegen import machine
from gptrs_backend_numba.codegen.compiled import LISTENERS, compiled_task, kernel_store
from gptrs_backend_numba.codegen.kernel_pack import pack_parts
from gptrs_backend_numba.codegen.targets import TARGETS, Target
from gptrs_backend_numba.codegen.targets import VARIABLE as TARGET_VARIABLE
from gptrs_backend_numba.compiler import EachSize, lower, lower_symbolic, needs_each_size
from gptrs_backend_numba.fusion import VARIABLE as FUSE
from gptrs_backend_numba.fusion import is_on
from gptrs_backend_numba.kept_weights.weight_store import (
    DeferredWeight,
    StoredWeights,
    weight_array,
)
from gptrs_backend_numba.kernels import probe
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_matmul
from gptrs_backend_numba.lowering.quantized_linear import block_of
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.memory import POOL, address_of, aligned, run_tasks
from gptrs_backend_numba.parts import VARIABLE as PARTS
from gptrs_backend_numba.parts import parts_report
from gptrs_backend_numba.run.executable import RUN_LOCK, NumbaExecutable

if TYPE_CHECKING:
    from pathlib import Path

    from gptrs.backend.contract import OutgoingLibrary, WrittenLibrary
    from gptrs.ir.ops.custom_call import Claimed, Composite
    from gptrs.optimizer.pass_base import Pass
    from gptrs.progress import StepProgress


# The precision of models with quantized weights, where no option says it.


VARIABLE = "GPTRS_NUMBA_PRECISION"
PRECISIONS: tuple[Precision, ...] = ("f32", "bf16", "int8")
"""The precisions that there are kernels for."""


def chosen_precision() -> Precision:
    """Return what `GPTRS_NUMBA_PRECISION` says, else `int8`; UsageError if it is not a precision.

    Weights that are not quantized are computed with in f32 in any case.
    """
    given = os.environ.get(VARIABLE, "int8")
    for precision in PRECISIONS:
        if precision == given:
            return precision
    raise UsageError(
        f"`{VARIABLE}` must be a precision, got {quoted(given)}",
        hint=f"it has {', '.join(PRECISIONS)}",
    )


# The kernel cache as `gptrs cache` sees it.


class StoredKernels:
    """The part of the backend that knows its kernels on disk."""

    def cache_report(self) -> CacheReport:
        """Return the installed packs, and what is kept, by the version that made it."""
        return replace(kernel_store().report(), installed=[*pack_parts(), *parts_report()])

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or those of other versions; ExecutionError if one cannot be."""
        return kernel_store().clear(stale_only=stale_only)

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Scope in which `tell` hears of each kernel that no cache has."""
        return LISTENERS.told(tell)


# How fast this machine reads and multiplies: loops that do nothing else.


_BLOCK = 4 << 20
"""Bytes that a thread reads at a time."""
_BLOCKS = 64
"""Together larger than any cache of a processor."""
_STEPS = 4_000_000
_ROUNDS = 7


class MeasuringThreads:
    """The part of the backend that measures the machine, with the threads of the backend."""

    threads: int

    def read_bytes_per_s(self) -> float:
        """Return the best of several passes over 256 MiB."""
        array = aligned(_BLOCK * _BLOCKS)
        array.fill(1)  # memory that was never written to is one page of zeros
        sums = np.zeros(_BLOCKS, np.int64)
        geometry = np.array([_BLOCK // 8], np.int64)
        task = compiled_task(probe.read_task)
        with RUN_LOCK:
            POOL.grow(self.threads)
            seconds = _best(lambda: self._run(task, _BLOCKS, array, sums, geometry))
        return array.nbytes / seconds

    def flop_per_s(self) -> float:
        """Return the best of several rounds of multiply-adds, one task for each thread."""
        sums, geometry = np.zeros(self.threads, np.float32), np.array([_STEPS], np.int64)
        task = compiled_task(probe.multiply_task)
        with RUN_LOCK:
            POOL.grow(self.threads)
            seconds = _best(lambda: self._run(task, self.threads, sums, sums, geometry))
        return self.threads * _STEPS * probe.OPERATIONS / seconds

    def _run(
        self, task: int, count: int, source: np.ndarray, target: np.ndarray, geometry: np.ndarray
    ) -> None:
        addresses = (address_of(source), address_of(source), address_of(target))
        run_tasks()(POOL.address, task, count, self.threads, *addresses, address_of(geometry))


def _best(run: Callable[[], None]) -> float:
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


SETTINGS = (
    *(FUSE, cost_model.VARIABLE, amx_matmul.VARIABLE, memory.VARIABLE, PARTS, VARIABLE),
    TARGET_VARIABLE,
)
"""The environment variables that decide what is made of a program."""
_SETTINGS = Variables(*SETTINGS)
_MATRIX, _STACK = 2, 3
"""The ranks of weights: of one matrix, and of those of experts."""
_MOST_SIZES = 32
"""Sizes of free images for which a program keeps a schedule; each has memory of its own."""
_SMALLEST = 1024
"""Elements of a weight below which it is read as f32."""


class NumbaBackend(StoredKernels, StoredWeights, MeasuringThreads, Backend):
    """Compiles programs to schedules of kernels; results have the same bits for any `threads`."""

    name = "numba"
    shares_functions = True
    symbolic = True
    ieee_floats = True
    reads_mapped_files = True
    keeps_weights = True
    keeps_code = True
    tells_kernels = True
    writes_libraries = True
    steps_at_once = 16
    # A step costs 0.15 ms of Python, and the loop 0.06 s where another process has captured it.
    single_steps_first = 512
    precisions: Sequence[Precision] = PRECISIONS

    def __init__(self, threads: int, precision: Precision = "f32") -> None:
        self.threads = threads
        self.precision: Precision = precision
        self._others: dict[Precision, NumbaBackend] = {precision: self}

    def __repr__(self) -> str:
        return f"<NumbaBackend threads={self.threads}>"

    def quantized_precision(self) -> Precision:
        """Return what `GPTRS_NUMBA_PRECISION` says, else `int8`."""
        return chosen_precision()

    def in_precision(self, precision: Precision) -> NumbaBackend:
        """Return the backend of another precision: one object for each."""
        if precision not in self._others:
            other = NumbaBackend(self.threads, precision)
            other._others = self._others
            self._others[precision] = other
        return self._others[precision]

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return whether kernels read such a matrix as it is; none of them does for f32."""
        if self.precision != "int8" or not is_on() or codes.rank not in (_MATRIX, _STACK):
            return False
        rows, k = codes.shape[-2], codes.shape[-1] * 8 // bits
        if codes.rank == _STACK and rows % PANEL:
            return False
        return block_of(group_size, k) is not None and rows * k >= _SMALLEST

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Why there is no kernel for `op` on these types, None if there is one."""
        return TABLE.refusal(op, operands, results)

    def claim(
        self, op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Claimed:
        """Return what computes a composite, a reason against it, or None without a kernel."""
        # Late, as in `fuse`.
        claims = import_module("gptrs_backend_numba.fusion.claims")
        return cast("Claimed", claims.claim(op, operands, results, self.precision))

    def legalize(self) -> Sequence[Pass]:
        """The passes that let claimed calls take in what is in front of them."""
        return import_module("gptrs_backend_numba.fusion.passes").LEGALIZE if is_on() else ()

    def fuse(self) -> Sequence[Pass]:
        """The passes that put calls of functionals together, for the precision of this backend."""
        # Late: a program that an earlier process optimized has been fused.
        return import_module("gptrs_backend_numba.fusion.passes").fusions(self.precision)

    def compile_settings(self) -> tuple[tuple[str | None, ...], str, str]:
        """Variables, processor and precision: compiled programs depend on them, too."""
        return _SETTINGS.values(), machine.description(), self.precision

    def compile(self, program: Program, roles: Sequence[InputRole]) -> NumbaExecutable:
        """Lower a verified program; kernels that are in no cache are compiled, which takes time."""
        require_supported(self, program)
        RUN_LOCK.claim()
        return NumbaExecutable(
            lower(program, roles, self.threads), program.main.body.params, roles, self.threads
        )

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        """Lower a verified program once for all sizes that `guards` accept.

        One with convolutions of free images is lowered for each size that comes.
        """
        with deciding(guards.deriving()) as sizes:
            require_supported(self, program, symbolic=True)
            if needs_each_size(program):
                return self._for_each_size(program, roles, guards)
            RUN_LOCK.claim()
            schedule, lowered = lower_symbolic(program, roles, self.threads, sizes)
            return NumbaExecutable(schedule, lowered.main.body.params, roles, self.threads)

    def _for_each_size(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> SpecializedPrograms:
        """Return what lowers a program for each size."""
        each = EachSize(program, roles, self.threads, guards)

        def lowered(special: Program) -> tuple[int, Executable]:
            RUN_LOCK.claim()
            params = special.main.body.params
            return 0, NumbaExecutable(each.lower(special), params, roles, self.threads)

        return SpecializedPrograms(program, lowered, _MOST_SIZES, check=False)

    def write_library(
        self, outgoing: OutgoingLibrary, folder: Path, progress: StepProgress | None = None
    ) -> WrittenLibrary:
        """Write a program as a shared library for this processor, by the C compiler."""
        RUN_LOCK.claim()
        # Late: only this needs a C compiler and its templates.
        library = import_module("gptrs_backend_numba.native.library")
        return cast("WrittenLibrary", library.write_library(outgoing, folder, self, progress))

    library_targets = tuple(each.name for each in TARGETS)

    def target_environments(self, targets: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the variable that names a target, for each: the best first."""
        linking = import_module("gptrs_backend_numba.native.linking")
        found = cast("tuple[Target, ...]", linking.targets_together(targets))
        # Weights that are kept are packed for this machine.
        kept = {"GPTRS_WEIGHT_CACHE_BYTES": "0"}
        return {each.name: {TARGET_VARIABLE: each.name, **kept} for each in found}

    def write_part(
        self, outgoing: OutgoingLibrary, folder: Path, progress: StepProgress | None = None
    ) -> WrittenLibrary:
        """Write sources, and objects for the target of this process."""
        RUN_LOCK.claim()
        library = import_module("gptrs_backend_numba.native.library")
        return cast("WrittenLibrary", library.write_part(outgoing, folder, self, progress))

    def join_library(
        self, name: str, folder: Path, parts: Path, written: Sequence[WrittenLibrary]
    ) -> WrittenLibrary:
        """Link the parts by a C compiler for their machine."""
        linking = import_module("gptrs_backend_numba.native.linking")
        return cast("WrittenLibrary", linking.join_library(name, folder, parts, written))

    def to_device(self, array: np.ndarray) -> np.ndarray:
        """A read-only view of `array` if kernels can work on its memory, else a copy of it."""
        if array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned:
            native = array.view()
        else:
            native = np.require(array, array.dtype.newbyteorder("="), ["C", "A"]).view()
        native.flags.writeable = False
        return native

    def weight_to_device(
        self,
        identity: WeightIdentity,
        type: TensorType,
        load: Callable[[], np.ndarray],
        origin: WeightOrigin,
    ) -> np.ndarray:
        """Return the array of a weight, or what stands for it until a run needs the elements."""
        return weight_array(identity, type, lambda: self.to_device(load()), origin)

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the buffer itself, which is a NumPy array; a deferred weight is loaded."""
        if isinstance(buffer, DeferredWeight):
            with RUN_LOCK:
                return buffer.elements()
        return cast("np.ndarray", buffer)


def create(threads: int | None = None) -> NumbaBackend:
    """Return the backend with `threads` threads.

    None means `GPTRS_NUM_THREADS`, else the CPUs that affinity and cgroup quota grant. UsageError
    for a number below 1 or above `MOST_THREADS`.
    """
    return NumbaBackend(requested_threads(threads) or min(granted_cpus(), MOST_THREADS))
