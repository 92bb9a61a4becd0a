"""The contract between gptrs and a backend: two base classes, and the data that they exchange.

A backend author reads this page and `op_table`. Four methods of `Backend` and one of `Executable`
are abstract; all others have defaults, and are for backends that can do more.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from gptrs.disk_cache import Entries
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass

if TYPE_CHECKING:
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

Precision = Literal["f32", "bf16", "int8"]
"""The precision of a model's products: `f32` widens weights and keeps activations; `bf16` rounds
both sides of products with a matrix to bf16, as `gptrs.optimizer.passes.arithmetic_folding` says in
PTIR; `int8` rounds the activations that meet quantized weights to 8 bits, by groups of at most 32.
Sums are exact or f32 in all of them, and so is everything except such products."""
Compiling = Callable[[int, int | None], None]
"""Called before a kernel is compiled, with its number from 1 and the total, None if unknown."""


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
    """A model weight: the same buffer object in every run, so that work on it can be remembered."""
    DONATED = "donated"
    """Given away: its memory may be overwritten or returned as (part of) a result."""
    STREAMED = "streamed"
    """A model weight that may leave memory between runs. Like PARAMETER, to the last bit of the
    results, but it may be a different buffer object in each run, and nothing derived from it may
    outlive it.
    """


class BoundInputs:
    """Trailing inputs (weights) of a program. As long as the same object is passed, the buffers
    are unchanged; it keeps them alive.
    """

    __slots__ = ("__weakref__", "buffers", "identities")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = tuple(buffers)
        self.identities = frozenset(map(id, self.buffers))


class SubmittedRun(Protocol):
    """A run that may still be going on, and may still fail."""

    def check(self) -> None:
        """Wait until it is known whether the run failed; raise what `run` would have raised.

        It may be called more than once, from any thread, and says the same each time.
        """
        ...


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One call of a kernel."""

    kernel: str
    """The names of the ops that it computes."""
    operands: str
    """The types of its operands and of its result, `f32[2, 3], f32[3] -> f32[2]`."""
    seconds: float
    nbytes: int | None
    """Bytes of the tensors that it reads and writes, None if unknown."""
    operations: int | None = None
    """Operations on elements, a multiply-add counts as two; None if unknown."""
    inputs: tuple[int, ...] = ()
    """The inputs of the program that it reads or writes, by number, as far as that is known."""
    started: float | None = None
    """Start time by `time.perf_counter`, in seconds; None: it has just ended."""


class Executable(ABC):
    """A compiled program; may be called from several threads. Only `run` has to be written."""

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
        """Bytes that it owns, such as weights in another format.

        The program cache keeps to its budget by them.
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

        Takes the inputs of `run`, or of `run_bound` with `bound`. The results may immediately be
        inputs of other runs, even if this one fails: then they have the promised types and
        arbitrary elements. `check` is called before anybody reads them. Wrong inputs raise here,
        and so may any error that is known immediately. The default waits for the run.
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
    """Return whether the class of `executable` wrote `method` itself, and has not the default."""
    return getattr(type(executable), method) is not getattr(Executable, method)


class Backend(ABC):
    """An execution engine for PTIR. A new one is three short files, see docs/recipes.

    Attributes say what never changes for a backend object; methods may look at the environment. A
    class that overrides a method of an offer sets the attribute that makes it: `symbolic` for
    `compile_symbolic`, and so on; TypeError when the class is made if it does not.
    """

    name: str
    """The name under which the plugin registers it."""

    # -- What every backend has ---------------------------------------------------------------

    @abstractmethod
    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        """Return why this backend cannot run `op` on these types, None if it can."""
        ...

    @abstractmethod
    def compile(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        """Prepare a verified program; one role for each parameter of `@main`.

        Raises UnsupportedError that names every op and dtype it lacks, before anything runs
        (`gptrs.backend.op_table.require_supported` does this from `refusal`).
        """
        ...

    @abstractmethod
    def to_device(self, array: np.ndarray) -> Buffer:
        """Return a buffer with the elements of `array`, which it may share and never writes."""
        ...

    @abstractmethod
    def to_host(self, buffer: Buffer) -> np.ndarray:
        """Return the elements of `buffer` as a NumPy array, which may be a view of it."""
        ...

    # -- Programs -----------------------------------------------------------------------------

    shares_functions: bool = False
    """Whether its passes and `compile` see functions that a program calls several times; all calls
    are inlined otherwise."""
    flushes_subnormals: bool = False
    """Whether its arithmetic takes subnormal f32 and f64 for 0: PTIR, section Exactness. The
    conformance kit does not judge these elements then."""
    ieee_floats: bool = False
    """Whether its f32 and f64 are those of IEEE 754: sums, products, quotients and square roots are
    rounded once, to nearest even, subnormal numbers included; `rsqrt` is `1 / sqrt(x)` in two such
    steps. The optimizer then computes constants with NumPy instead of compiling them.
    """
    steps_at_once: int = 1
    """Most steps of a generation in one run: 1 disables it, 4 to 16 hide the cost of a run. Greedy
    texts run as a `while` around the model, which also chooses each token; no token is visible
    before all of them have been chosen.
    """

    def legalize(self) -> Sequence[Pass]:
        """Return the passes that replace what the backend does not take, see `Pipeline`.

        They run before parameters are folded: what calls of claimed composites take in goes here.
        """
        return ()

    def fuse(self) -> Sequence[Pass]:
        """Return the passes that fuse instructions into `custom_call`s of the backend."""
        return ()

    def claim(
        self, op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Claimed:
        """Return the op or region, on the same operands, that computes a composite.

        None inlines it; so does `Declined`, with a reason that `gptrs inspect --why` shows.

        `OpTable.claim` answers from the table.
        """
        return None

    def compile_settings(self) -> Hashable:
        """Return the settings that affect the result of `compile`, besides a program and its roles.

        Such as variables of the environment: programs that were compiled under other settings are
        not used. It is called for every call, so it must be fast.
        """
        return ()

    def serialize(self, executable: Executable) -> bytes | None:
        """Return a compiled program as bytes; None if that is impossible."""
        return None

    def deserialize(
        self, data: bytes, program: Program, roles: Sequence[InputRole]
    ) -> Executable | None:
        """Return what `compile(program, roles)` would, read from what `serialize` gave.

        None for data that is damaged, or for another program, other roles, another machine, device,
        version or setting. It may contain machine code: only the user may have written it.
        """
        return None

    # -- Sizes --------------------------------------------------------------------------------

    symbolic: bool = False
    """Whether it compiles programs with symbolic dims; others get one program per sizes.

    Then `refusal` and the passes see types with symbolic dims, inside a `deciding` block: their
    comparisons of sizes become guards of the program.
    """

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        """Prepare a verified program with symbolic dims; one role for each parameter of `@main`.

        The executable runs on inputs of all sizes that `guards` accept, and its results have the
        shapes of the program for these sizes; each symbol is alone a dim of some parameter. It
        never runs on others: callers check `guards.accept` first. Called outside of any `deciding`
        block. What lowering decides by the example becomes a guard as well:

            with deciding(guards.deriving()) as sizes: ...

        Raises UnsupportedError as `compile` does (`require_supported(..., symbolic=True)`).
        """
        raise NotImplementedError

    def padded_size(self, size: int) -> int | None:
        """Return the size, `size` or more, to which a caller pads an axis whose size varies.

        None: no preferred sizes. Never less for a greater `size`. For backends without symbols that
        take long to compile: a power of two gives a few programs and wastes at most half of the
        work, `1 << (size - 1).bit_length()`.
        """
        return None

    # -- Precision ----------------------------------------------------------------------------

    precisions: Sequence[Precision] = ("f32",)
    """The precisions that it has here."""
    precision: Precision = "f32"
    """The precision of this object: `f32`, exact, by default."""

    def quantized_precision(self) -> Precision:
        """Return the default precision for models with quantized weights."""
        return "f32"

    def with_precision(self, precision: Precision | None) -> Backend:
        """Return the backend with a precision, itself for None; UsageError if it lacks the
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
        """Return the object, one for each, that computes in one of `precisions`."""
        return self

    # -- Weights ------------------------------------------------------------------------------

    reads_mapped_files: bool = False
    """Whether it is given weights as views of mapped files, and sees to what becomes of a run when
    such a file is cut, see `gptrs.backend.mapped_files`; others are given weights in memory."""
    keeps_weights: bool = False
    """Whether it keeps forms of weights on disk, where other processes and `gptrs cache` find them:
    the five methods below."""

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return whether it computes with these packed codes as stored, [.., O, I * bits / 8].

        Programs read them by `dequantize` or `dequantize_affine` of `unpack_bits`, as written by
        `gptrs.checkpoint.quantized_tensor.dequantized`. Where it is False, weights are decoded to
        f32 once when they are loaded, and so take several times the memory.
        """
        return False

    def weight_to_device(
        self,
        identity: WeightIdentity,
        type: TensorType,
        load: Callable[[], np.ndarray],
        origin: WeightOrigin,
    ) -> Buffer:
        """Return what `to_device(load())` would; `load` need not be called, or not yet.

        Forms derived from the buffer may be cached under `identity`, and so may the elements unless
        `load` only returns a view of a "mapped" file. One that was "read" may be loaded at any
        time, also within a run; that one is "computed" takes runs, so that it is loaded now or
        never.
        """
        return self.to_device(load())

    def prefetch_weight(self, identity: WeightIdentity) -> bool:
        """Start reading ahead the cached form of a weight, without waiting; False if none."""
        return False

    def weight_report(self) -> CacheReport:
        """Return the cached forms, by weight file; changes nothing."""
        raise NotImplementedError

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        """Remove all forms, or only those that this process would not use; return what was removed.

        Processes that use them are not disturbed. ExecutionError if one cannot be removed.
        """
        return Entries()

    def finish_weights(self) -> Entries:
        """Wait until all forms that this process has made are on disk; how many it has written."""
        return Entries()

    # -- Compiled code on disk ----------------------------------------------------------------

    keeps_code: bool = False
    """Whether it keeps compiled kernels or programs on disk, for `gptrs cache`."""
    tells_kernels: bool = False
    """Whether `compiling` reports each kernel; for other backends, commands name the programs that
    are compiled.
    """

    def cache_report(self) -> CacheReport:
        """Return the content, by what made it; compiles and changes nothing."""
        raise NotImplementedError

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all entries, or only those that this process would not use; return what was
        removed.

        Loaded entries remain usable, and running processes compile again. ExecutionError if an
        entry cannot be removed.
        """
        return Entries()

    def compiling(self, tell: Compiling) -> AbstractContextManager[None]:
        """Call `tell` for each kernel that is compiled, not loaded, within the scope.

        It is called by the thread that compiles, and must neither fail nor take long.
        """
        raise NotImplementedError

    # -- Devices ------------------------------------------------------------------------------

    ignored: Sequence[str] = ()
    """Says which settings it was given and ignores, one sentence each."""
    own_memory: bool = False
    """Whether its buffers are outside of host memory: derived weights remain on the device, and
    only pages of host memory are released.
    """
    mesh: Mesh | None = None
    """The mesh that it runs on, None for a single device."""
    threads: int = 0
    """Threads that it computes with, 0 if that is not known."""
    follows: bool = False
    """Whether its process is a follower in a led `ProcessGroup`."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Return all devices that this process can use, in a fixed order; empty if there is no
        choice.
        """
        return ()

    def host_view(self, buffer: Buffer) -> np.ndarray | None:
        """Return the host memory of `buffer`, None for a buffer on a device.

        Called just to look, so with `own_memory` it must not copy.
        """
        return self.to_host(buffer)

    def copy(self, buffer: Buffer) -> Buffer:
        """Return another buffer with the same elements, on a device without a way over the host."""
        return self.to_device(self.to_host(buffer).copy())

    def place(self, source: ShardSource, sharding: Sharding) -> Buffer:
        """Return `source` on the devices of `mesh`; each part is read for its device.

        The buffer has shape and dtype of the whole, and `to_host` gives the whole.
        """
        raise NotImplementedError

    def follow(self) -> None:
        """Do what the first process does, and return when that ends, see `follows`.

        BackendError if it is lost. Nothing else of the backend may be used meanwhile.
        """
        raise NotImplementedError

    def lost(self) -> str | None:
        """Return which other process is gone, in words, so that no run can succeed any more.

        None while all are alive. It is called often, from any thread, and must not wait.
        """
        return None

    def read_bytes_per_s(self) -> float | None:
        """Bytes a second that arrive from memory while large arrays are read in order.

        Measured with `threads` threads; None: it does not measure.
        """
        return None

    def flop_per_s(self) -> float | None:
        """Operations of f32 a second on values in registers, a fused multiply-add is two."""
        return None

    _OFFERS: ClassVar[Mapping[str, str]] = {
        "compile_symbolic": "symbolic",
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
        f"a backend derives from `gptrs.api.backends.Backend`, got a `{type(made).__name__}`",
        hint="name one, see `gptrs list backends`, or pass what `gptrs.get_backend` returned",
    )
