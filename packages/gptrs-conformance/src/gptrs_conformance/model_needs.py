"""The ops that the programs of a model need, on the types and shapes that they have there.

The model runs on a backend that takes every op and computes nothing: its programs are recorded,
and their results are zeros. So the needs of a model of any size are known in a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend, Buffer, Executable, InputRole
from gptrs.capture.execute import use_backend
from gptrs.checkpoint.params import Params
from gptrs.errors import ExecutionError, PluginError, UsageError
from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Instruction, Program
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.manager import manager
from gptrs_conformance.numerics import EXACT, ULPS, Tolerance, decode, elementwise_tolerance
from gptrs_conformance.op_case import OpCase
from gptrs_conformance.op_runner import program_of
from gptrs_conformance.samples import sample
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.find_model import find_model

_PROMPT = [1, 2, 3]
_IMAGE_SIDE = 224
_SUMS = frozenset(
    {"dot_general", "reduce", "reduce_window", "cumulative", "scatter_reduce", "scan", "while"}
)
"""Ops whose float results depend on the order of a sum."""
_RELATIVE = {"f64": 1e-12, "f32": 1e-5, "f16": 2.0**-8}
_COARSE = 2.0**-5


class Need(Struct, frozen=True):
    """An op with the types of its operands and results, as some program of a model has it."""

    instruction: Instruction

    @property
    def op(self) -> Op:
        """The op with its attributes."""
        return self.instruction.op

    @property
    def operands(self) -> list[TensorType]:
        """The types of its operands."""
        return [value.type for value in self.instruction.operands]

    @property
    def results(self) -> list[TensorType]:
        """The types of its results."""
        return [value.type for value in self.instruction.results]

    @property
    def label(self) -> str:
        """The types of its operands, as in a program; those of the results if it has none."""
        return ", ".join(map(str, self.operands)) or str(self.results[0])

    @property
    def key_type(self) -> str:
        """The name of the element type that its kernel is chosen by."""
        return self.op.key_dtype(self.operands, self.results).name

    @property
    def elements(self) -> int:
        """The number of elements of its operands and results."""
        return sum(type_.size for type_ in (*self.operands, *self.results))

    def case(self) -> OpCase:
        """Return it on sample operands, with what the reference backend gives for them.

        UsageError if that backend is not installed.
        """
        # Integers may be divisors, and may be indices; an op that always fails must fail.
        tried = (self._tried(*within) for within in ((1, 4), (0, 2), (0, 1)))
        return next((case for case in tried if case), self._failing(0, 1))

    def _tried(self, low: int, high: int) -> OpCase | None:
        case = self._failing(low, high)
        try:
            found = _run(_reference(), program_of(case), case.inputs)
        except ExecutionError:
            return None
        wide = tuple(map(_widened, found))
        return replace(case, expected=wide, tolerance=self._tolerance(wide), error=None)

    def _failing(self, low: int, high: int) -> OpCase:
        inputs = tuple(_operand(type_, at, low, high) for at, type_ in enumerate(self.operands))
        regions = self.instruction.regions
        return OpCase(self.op, inputs, (), label=self.label, error="", regions=regions)

    def _tolerance(self, expected: Sequence[np.ndarray]) -> Tolerance:
        dtype = self.results[0].dtype
        if not dtype.is_float:
            return EXACT
        if self.op.name not in _SUMS:
            return elementwise_tolerance(self.op.name, dtype) if self.op.name in ULPS else EXACT
        unit = _RELATIVE.get(dtype.name, _COARSE)
        largest = max((float(np.max(np.abs(a), initial=0.0)) for a in expected), default=0.0)
        return Tolerance.close(unit, unit * largest)


def needs_of(model: str) -> list[Need]:
    """Return what the programs of `model` need, each op with its attributes and types once.

    `model` is a path, a bundled model (`demo`) or one of the hub. Raises as `load_model` does;
    UsageError for a model that can do nothing that the kit knows.
    """
    found: dict[object, Need] = {}
    for program in _programs_of(model):
        for function in program.reachable():
            for step in function.body.walk():
                need = Need(step)
                key = (repr(step.op), need.label, str(need.results), _text_of(step))
                found.setdefault(key, need)
    return sorted(found.values(), key=lambda need: (need.op.name, need.elements))


def _reference() -> Backend:
    try:
        return manager().get_backend("ref")
    except PluginError as error:
        raise UsageError(
            "what a model needs is compared with the reference backend, which cannot be used here",
            hint=f"run `pip install gptrs-backend-ref`; {error.message}",
        ) from error


def _programs_of(name: str) -> list[Program]:
    recorder = _Recorder()
    source = find_model(model_path(name))
    factory = model_factory(source.model_type)
    with use_backend(recorder):
        params = Params(source.weights, backend=recorder, origin=str(source.path))
        model = LoadedModel(source, factory(source.config, params), recorder, 0.0, {})
        _use(model)
    return recorder.programs


def _use(model: LoadedModel) -> None:
    """Run what users run: some tokens, an image, a text."""
    if not model.capabilities.isdisjoint(("causal_lm", "seq2seq")):
        for _ in range(2):
            # The second text copies the page of the first one that begins as it does.
            generate(model, _PROMPT, max_tokens=2, ignore_eos=True)
    elif "image_classifier" in model.capabilities:
        channels = model.image_classifier().channels
        model.forward(np.zeros((1, channels, _IMAGE_SIDE, _IMAGE_SIDE), np.float32))
    elif "text_embedder" in model.capabilities:
        tokens = np.array([_PROMPT])
        model.text_embedder().encode(tokens, np.ones(tokens.shape, np.bool_))
    else:
        raise UsageError(
            f"`{model.name}` neither generates text, nor classifies images, nor embeds texts",
            hint="name another model with --for",
        )


class _Recorder(Backend):
    """A backend that takes every op, keeps each program, and gives zeros."""

    def __init__(self) -> None:
        self.name = "recorder"
        self.programs: list[Program] = []

    def refusal(
        self, op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> str | None:
        # Custom calls are replaced by equivalent ops that every backend may have.
        return "`custom_call`" if isinstance(op, CustomCall) else None

    def compile(self, program: Program, roles: Sequence[InputRole]) -> _Zeros:
        self.programs.append(program)
        return _Zeros([value.type for value in program.main.body.results])

    def to_device(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_host(self, buffer: Buffer) -> np.ndarray:
        return np.asarray(buffer)


class _Zeros(Executable):
    def __init__(self, types: list[TensorType]) -> None:
        self.types = types

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        return [np.zeros(type_.shape, type_.dtype.numpy) for type_ in self.types]


def _operand(type_: TensorType, seed: int, low: int, high: int) -> np.ndarray:
    """Return sample values; integers are in [low, high)."""
    if type_.dtype.is_float or type_.dtype.is_complex or type_.dtype.is_bool:
        return sample(type_.dtype, type_.shape, seed)
    drawn = np.random.default_rng(seed).integers(low, high, type_.shape)
    return np.asarray(drawn).astype(type_.dtype.numpy)


def _run(backend: Backend, program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    executable = backend.compile(program, [InputRole.ARGUMENT] * len(inputs))
    results = executable.run([backend.to_device(array) for array in inputs])
    return [backend.to_host(result) for result in results]


def _widened(array: np.ndarray) -> np.ndarray:
    type_ = TensorType.of(array)
    return decode(array) if type_.dtype.is_float else array


def _text_of(step: Instruction) -> str:
    """Return a text that distinguishes the regions of instructions."""
    return ";".join(f"{inner.op!r}" for region in step.regions for inner in region.walk())
