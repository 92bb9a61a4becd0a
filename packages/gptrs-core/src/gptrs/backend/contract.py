"""The contract between gptrs and a backend: two base classes, and the data they exchange. Backend
authors need this module and `op_table`. Four methods of `Backend` and one of `Executable` are
abstract; all others have defaults that more capable backends override.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from msgspec import Struct

from gptrs.backend.settings import Precision
from gptrs.disk_cache import Entries
from gptrs.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gptrs.backend.settings import DeviceInfo, Mesh
    from gptrs.backend.sharding import Sharding, ShardSource
    from gptrs.backend.weight_identity import WeightIdentity, WeightOrigin
    from gptrs.disk_cache import CacheReport
    from gptrs.ir.op import Op
    from gptrs.ir.ops.custom_call import Claimed, Composite
    from gptrs.ir.program import Program
    from gptrs.ir.size_guards import SizeGuards
    from gptrs.ir.tensor_type import TensorType
    from gptrs.optimizer.pass_base import Pass
    from gptrs.progress import StepProgress

Compiling = Callable[[int, int | None], None]
"""Called before a kernel is compiled with its number, from 1, and the total, None if unknown."""


class Buffer(Protocol):
    """A tensor in the memory of a backend; a NumPy array is one. Only its backend looks inside."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims, in row-major order."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy storage type of the elements."""
        ...


class InputRole(enum.Enum):
    """The role of an input of a compiled program."""

    ARGUMENT = "argument"
    """Changes from run to run; must not be modified."""
    PARAMETER = "parameter"
    """A model weight: the same buffer object in every run, so work on it can be cached."""
    CONSTANT = "constant"
    """A tensor that a step has bound: the same buffer object in every run, like PARAMETER, and its
    contents never change. Backends may treat it as a parameter; nothing is folded into it.
    """
    DONATED = "donated"
    """Donated: its memory may be overwritten or returned as (part of) a result."""
    STREAMED = "streamed"
    """A model weight that may leave memory between runs. Results are the same bits as with
    PARAMETER, but it may be a different buffer object in each run, and nothing derived from it may
    outlive it.
    """


class TextCache(Struct, frozen=True):
    """The sizes of the cache of a language model's step, for callers that keep it.

    The inputs of the program are those of `gptrs.nn.ragged_step.RaggedStep` in order, with a page
    table and slots for each cache group, and then the pools: keys and values of each layer.
    """

    vocab_size: int
    context_length: int
    """Most positions of a text."""
    page_size: int
    groups: int
    pools: int
    rewinds: bool
    """Whether texts can be truncated; those with states cannot."""


class OutgoingProgram(Struct, frozen=True):
    """A program optimized for a backend, with its weights, the last parameters of `@main`.

    `weights` return their elements; each is called once, and the result may be dropped before the
    next call. With `guards` the program has symbolic dims and serves all sizes that they accept.
    """

    program: Program
    roles: tuple[InputRole, ...]
    weights: tuple[Callable[[], np.ndarray], ...]
    guards: SizeGuards | None = None


class OutgoingLibrary(Struct, frozen=True):
    """A computation on its way to a library; `name` is an identifier of C.

    `programs` compute the same for other sizes, the most general one first. The backend lowers each
    before it asks for the next: which sizes are still to be served follows from its guards.
    """

    name: str
    inputs: tuple[str, ...]
    """The names of the parameters before the weights."""
    outputs: tuple[str, ...]
    programs: Iterable[OutgoingProgram]
    texts: TextCache | None = None
    """Set for a step of a language model."""


class WrittenLibrary(Struct, frozen=True):
    """The files of a library."""

    library: str
    """The shared library."""
    header: str
    """The C header."""
    weights: str
    """The file of weights that the library maps."""
    threads: int
    """The most threads that it starts."""
    kernels: int
    """Number of kernels in it."""
    programs: int
    """Number of programs, each for other sizes."""
    needs: tuple[str, ...]
    """Features of the processor that it needs: of the least one, if it is for several."""
    link: str | None = None
    """The command that links it, where there was no compiler for its machine."""


class BoundInputs:
    """Trailing inputs (weights) of a program. As long as the same object is passed, the buffers
    are unchanged; it keeps them alive.
    """

    __slots__ = ("__weakref__", "buffers", "identities")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.identities = frozenset(map(id, self.buffers))


class SubmittedRun(Protocol):
    """A run that may still be in progress, and may still fail."""

    def check(self) -> None:
        """Wait for the run to succeed or fail; raise what `run` would have raised.

        It may be called repeatedly from any thread, always with the same outcome.
        """
        ...


class KernelRun(Struct, frozen=True):
    """One call of a kernel."""

    kernel: str
    """The names of the ops that it computes."""
    operands: str
    """The types of its operands and of its result, `f32[2, 3], f32[3] -> f32[2]`."""
    seconds: float
    nbytes: int | None
    """Bytes of the tensors that it reads and writes, None if unknown."""
    operations: int | None = None
    """Operations on elements, where a multiply-add counts as two; None if unknown."""
    inputs: tuple[int, ...] = ()
    """The indices of the program's inputs that it reads or writes, as far as known."""
    started: float | None = None
    """Start time by `time.perf_counter` in seconds; None if it has just ended."""
    backend: str | None = None
    """The backend that ran it, set where a program runs in parts on two, see
    `Backend.falls_back_to`; None for the backend of the program."""


class Executable(ABC):
    """A compiled program, callable from several threads. Subclasses must define only `run`."""

    __slots__ = ()

    @abstractmethod
    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Run on inputs in the order of the parameters of `@main`; results in the order of return.

        Results belong to the caller: no later run changes them. Inputs that are not donated are
        neither changed nor returned. Raises ExecutionError for errors that depend on values, such
        as an index out of range.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Return the bytes it owns, such as weights in another format.

        The program cache counts them towards its budget.
        """
        return 0

    def run_bound(self, inputs: Sequence[Buffer], bound: BoundInputs) -> list[Buffer]:
        """Return the results of `run` for `inputs` followed by those of `bound`, bit for bit.

        Override it to check and unpack weights once. Each run may pass another `bound`.
        """
        return self.run([*inputs, *bound.buffers])

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Start a run; return its results and the run, None if it can no longer fail.

        Takes the inputs of `run`, or with `bound` the inputs of `run_bound`. The results may be
        passed to other runs at once. If this run fails, they have the promised types but arbitrary
        elements; `check` is called before anybody reads them. Invalid inputs raise here, as may any
        error known at once. The default waits for the run.
        """
        return (self.run(inputs) if bound is None else self.run_bound(inputs, bound)), None

    def run_profiled(
        self, inputs: Sequence[Buffer], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run like `run`, bit for bit, and `tell` each kernel call after it; may be slower.

        The default reports nothing.
        """
        return self.run(inputs)


def overrides(executable: Executable, method: str) -> bool:
    """Return whether the class of `executable` overrides the default of `method`."""
    return getattr(type(executable), method) is not getattr(Executable, method)


class Backend(ABC):
    """An execution engine for PTIR. A new one is three short files, see docs/recipes.

    Attributes are constant for a backend object; methods may depend on the environment. A class
    that overrides an optional method must set the attribute that announces it, such as `symbolic`
    for `compile_symbolic`; otherwise defining the class raises TypeError.
    """

    name: str
    """The name that its plugin registers."""

    # -- What every backend has ---------------------------------------------------------------

    @abstractmethod
    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why this backend cannot run `op` on these types, None if it can."""
        ...

    @abstractmethod
    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        """Compile a verified program; `roles` has one role per parameter of `@main`.

        Raises UnsupportedError that names every unsupported op and dtype, before anything runs
        (`gptrs.backend.op_table.require_supported` does this from `refusal`).
        """
        ...

    @abstractmethod
    def to_device(self, array: np.ndarray) -> Buffer:
        """Return a buffer with the elements of `array`; it may share the memory but never writes to
        it."""
        ...

    @abstractmethod
    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer` as a NumPy array, which may be a view of it."""
        ...

    # -- Programs -----------------------------------------------------------------------------

    shares_functions: bool = False
    """Whether its passes and `compile` accept functions that a program calls several times;
    otherwise all calls are inlined."""
    flushes_subnormals: bool = False
    """Whether its arithmetic flushes subnormal f32 and f64 to 0 (PTIR, section Exactness). If so,
    the conformance kit skips such elements."""
    ieee_floats: bool = False
    """Whether its f32 and f64 follow IEEE 754: sums, products, quotients and square roots are
    rounded once, to nearest even, including subnormal numbers; `rsqrt` is `1 / sqrt(x)` in two such
    steps. The optimizer then computes constants with NumPy instead of compiling them.
    """
    steps_at_once: int = 1
    """Most generation steps per run: 1 disables grouping, 4 to 16 hide the cost of a run. Greedy
    generation then runs a `while` loop around the model and the choice of each token; no token is
    visible before the whole group is chosen.
    """
    single_steps_first: int = 0
    """Decode steps of a model before its first group: fewer would not repay compiling the loop."""

    falls_back_to: str | None = None
    """The backend that runs what this one refuses, such as "ref"; None: programs with an op that it
    refuses are refused. `refusal` and `compile` remain strict: gptrs cuts programs into parts after
    its passes, compiles each part with `compile` of one of the two, and copies values between them
    by `to_host` and `to_device`. Python runs loops in which this backend computes products or calls
    of its own; others run on the fallback if an op in them is refused. Functions are inlined first,
    whatever `shares_functions` says.
    """
    smallest_part: int = 1
    """The fewest instructions, without those that only move elements, for which a part of a program
    is worth the copies; smaller parts run on the backend that `falls_back_to` names, if it can."""

    def legalize(self) -> Sequence[Pass]:
        """Return the passes that replace unsupported ops, see `Pipeline`.

        They run before parameters are folded, so passes that merge ops into claimed composites
        belong here.
        """
        return ()

    def fuse(self) -> Sequence[Pass]:
        """Return the passes that fuse instructions into `custom_call`s of the backend."""
        return ()

    def claim(
        self, op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Claimed:
        """Return the op or region, on the same operands, that computes a composite.

        None inlines it; so does `Declined`, whose reason `gptrs inspect --why` shows.

        `OpTable.claim` implements this from a table.
        """
        return None

    def compile_settings(self) -> Hashable:
        """Return the settings that affect `compile` besides the program and its roles, hashable.

        Environment variables, for example: programs compiled under other settings are not used.
        Called for every call, so it must be fast.
        """
        return ()

    def serialize(self, executable: Executable) -> bytes | None:
        """Return a compiled program as bytes; None if that is impossible."""
        return None

    def deserialize(
        self, data: bytes, program: Program, roles: Sequence[InputRole]
    ) -> Executable | None:
        """Return the result of `compile(program, roles)` from the bytes of `serialize`.

        None if the data is damaged or belongs to another program, other roles, another machine,
        device, version or setting. It may contain machine code, so callers pass only data that the
        user wrote.
        """
        return None

    writes_libraries: bool = False
    """Whether it writes programs as shared libraries with a C interface, by `write_library`."""

    def write_library(
        self, outgoing: OutgoingLibrary, folder: Path, progress: StepProgress | None = None
    ) -> WrittenLibrary:
        """Write a program as a shared library, its header and its weights into an empty `folder`.

        Its results are those of `compile`, bit for bit. UnsupportedError for a program that a
        library cannot serve, ExecutionError if a tool such as the C compiler is missing or fails.
        """
        raise NotImplementedError

    library_targets: tuple[str, ...] = ()
    """The kinds of processors that it writes libraries for beside that of this machine."""

    def target_environments(self, targets: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return, in the order of `join_library`, variables for processes that write a part each.

        UsageError for targets that there are not, or that one library cannot be for.
        """
        raise NotImplementedError

    def write_part(
        self, outgoing: OutgoingLibrary, folder: Path, progress: StepProgress | None = None
    ) -> WrittenLibrary:
        """Write a part of a library into a new `folder`, beside those of other targets.

        The process has the variables of a target.
        """
        raise NotImplementedError

    def join_library(
        self, name: str, folder: Path, parts: Path, written: Sequence[WrittenLibrary]
    ) -> WrittenLibrary:
        """Make one library of parts, each in the folder of its name below `parts`."""
        raise NotImplementedError

    # -- Sizes --------------------------------------------------------------------------------

    symbolic: bool = False
    """Whether it compiles programs with symbolic dims; otherwise it gets one program per
    combination of sizes. If so, `refusal` and the passes see symbolic dims inside a `deciding`
    block, where their comparisons of sizes become guards of the program.
    """

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        """Prepare a verified program with symbolic dims; one role for each parameter of `@main`.

        The executable runs on inputs of all sizes that `guards` accept, and its results have the
        shapes of the program for these sizes; each symbol occurs as a plain dim of some parameter.
        Callers check `guards.accept` before every run. Called outside any `deciding` block.
        Lowering should record its own decisions about sizes as guards:

            with deciding(guards.deriving()) as sizes: ...

        Raises UnsupportedError as `compile` does (`require_supported(..., symbolic=True)`).
        """
        raise NotImplementedError

    def padded_size(self, size: int) -> int | None:
        """Return the size, `size` or more, to which a caller pads an axis whose size varies.

        None means no preference. The result must not decrease as `size` grows. For backends without
        symbols that compile slowly: rounding up to a power of two, `1 << (size - 1).bit_length()`,
        gives few programs and wastes at most half of the work.
        """
        return None

    # -- Precision ----------------------------------------------------------------------------

    precisions: Sequence[Precision] = ("f32",)
    """The precisions that it supports on this machine."""
    precision: Precision = "f32"
    """The precision of this object; the default `f32` is exact."""

    def quantized_precision(self) -> Precision:
        """Return the default precision for models with quantized weights."""
        return "f32"

    def with_precision(self, precision: Precision | None) -> Backend:
        """Return this backend in a precision, itself for None; UsageError if it lacks the
        precision.

        The same object for the same precision. Backends with several override `in_precision`.
        """
        if precision is None:
            return self
        if precision not in self.precisions:
            raise UsageError(
                f"backend `{self.name}` has no precision `{precision}` here",
                hint=f"it has {', '.join(self.precisions)}",
            )
        return self.in_precision(precision)

    def in_precision(self, precision: Precision) -> Backend:
        """Return the backend object for one of `precisions`, always the same object for each."""
        return self

    # -- Weights ------------------------------------------------------------------------------

    reads_mapped_files: bool = False
    """Whether it gets weights as views of mapped files and handles a file that is truncated during
    a run, see `gptrs.backend.mapped_files`; others get weights in memory."""
    keeps_weights: bool = False
    """Whether it caches transformed weights on disk for other processes and `gptrs cache`, through
    the five methods below."""

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return whether it computes with these packed codes as stored, [.., O, I * bits / 8].

        Programs read them by `dequantize` or `dequantize_affine` of `unpack_bits`, as written by
        `gptrs.checkpoint.quantized_tensor.dequantized`. If False, weights are decoded to f32 on
        loading and take several times the memory.
        """
        return False

    def weight_to_device(
        self,
        identity: WeightIdentity,
        type: TensorType,
        load: Callable[[], np.ndarray],
        origin: WeightOrigin,
    ) -> Buffer:
        """Return the equivalent of `to_device(load())`; `load` may be called later or never.

        Forms derived from the buffer may be cached under `identity`, as may the elements unless
        `load` only returns a view (origin "mapped"). A weight of origin "read" may be loaded at any
        time, even during a run; a "computed" one requires runs itself, so it is loaded now or
        never.
        """
        return self.to_device(load())

    def prefetch_weight(self, identity: WeightIdentity) -> bool:
        """Start reading the cached form of a weight ahead without waiting; False if there is
        none."""
        return False

    def weight_report(self) -> CacheReport:
        """Report the cached forms by weight file; changes nothing."""
        raise NotImplementedError

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all cached forms, or only stale ones; return what was removed.

        Processes that use them are not disturbed. ExecutionError if one cannot be removed.
        """
        return Entries()

    def finish_weights(self) -> Entries:
        """Wait until all forms made by this process are on disk; return how many it has written."""
        return Entries()

    # -- Compiled code on disk ----------------------------------------------------------------

    keeps_code: bool = False
    """Whether it keeps compiled kernels or programs on disk, for `gptrs cache`."""
    tells_kernels: bool = False
    """Whether `compiling` reports each kernel; for other backends, commands report programs
    instead.
    """

    def cache_report(self) -> CacheReport:
        """Report the cached code by its maker; compiles and changes nothing."""
        raise NotImplementedError

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or only stale ones; return what was removed.

        Loaded entries remain usable; running processes compile again. ExecutionError if an entry
        cannot be removed.
        """
        return Entries()

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Call `tell` for each kernel that is compiled, not loaded, within the scope.

        It is called by the thread that compiles, and must neither fail nor take long.
        """
        raise NotImplementedError

    # -- Devices ------------------------------------------------------------------------------

    ignored: Sequence[str] = ()
    """Settings that it was given but ignores, one sentence each."""
    own_memory: bool = False
    """Whether its buffers are outside host memory, so that derived weights stay on the device and
    only pages of host memory are released.
    """
    mesh: Mesh | None = None
    """The mesh that it runs on, None for a single device."""
    threads: int = 0
    """Number of threads it computes with, 0 if unknown."""
    follows: bool = False
    """Whether its process is a follower in a led `ProcessGroup`."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Return all devices that this process can use, in a fixed order; empty if there is no
        choice.
        """
        return ()

    def host_view(self, buffer: Buffer) -> np.ndarray | None:
        """Return the host memory of `buffer`, None for a buffer on a device.

        Used for inspection, so with `own_memory` it must not copy.
        """
        return self.to_host(buffer)

    def copy(self, buffer: Buffer) -> Buffer:
        """Return another buffer with the same elements; on a device, without a round trip through
        the host."""
        return self.to_device(self.to_host(buffer).copy())

    def place(self, source: ShardSource, sharding: Sharding) -> Buffer:
        """Return `source` on the devices of `mesh`; each device reads only its part.

        The buffer has the shape and dtype of the whole, which `to_host` returns.
        """
        raise NotImplementedError

    def follow(self) -> None:
        """Repeat what the first process does, and return when it ends, see `follows`.

        BackendError if it is lost. The backend must not be used otherwise meanwhile.
        """
        raise NotImplementedError

    def agree(self, facts: Callable[[], Mapping[str, str]]) -> None:
        """Raise UsageError unless all processes of the backend, each at its call, state one thing.

        Called before processes that take steps together load a model, and before it runs; `facts`
        by name are called for only if there are several. Different programs would wait for each
        other, or abort.
        """
        return  # a backend of one process agrees with itself

    def lost(self) -> str | None:
        """Return a description of a process that died, without which no run can succeed any more.

        None while all are alive. Called often from any thread, so it must not wait.
        """
        return None

    def read_bytes_per_s(self) -> float | None:
        """Return the memory bandwidth in bytes per second of reading large arrays sequentially.

        Measured with `threads` threads; None if it does not measure.
        """
        return None

    def flop_per_s(self) -> float | None:
        """Return f32 operations per second on values in registers; a fused multiply-add counts as
        two."""
        return None

    _OFFERS: ClassVar[Mapping[str, str]] = {
        "compile_symbolic": "symbolic",
        "write_library": "writes_libraries",
        "target_environments": "library_targets",
        "write_part": "library_targets",
        "join_library": "library_targets",
        "weight_to_device": "keeps_weights",
        "cache_report": "keeps_code",
        "compiling": "tells_kernels",
        "host_view": "own_memory",
        "follow": "follows",
    }

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for method, offer in Backend._OFFERS.items():
            stated = any(offer in vars(each) for each in cls.__mro__ if each is not Backend)
            if not stated and getattr(cls, method) is not getattr(Backend, method):
                raise TypeError(f"`{cls.__name__}` overrides `{method}`; it needs `{offer} = True`")


def required_backend(made: object) -> Backend:
    """Return `made`; UsageError if it does not derive from `Backend`."""
    if isinstance(made, Backend):
        return made
    raise UsageError(
        f"a backend must derive from `gptrs.api.backends.Backend`, got a `{type(made).__name__}`",
        hint="name one, see `gptrs list backends`, or pass what `gptrs.get_backend` returned",
    )
