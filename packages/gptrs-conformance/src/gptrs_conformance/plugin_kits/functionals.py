"""The kit of functionals: another implementation against NumPy, differences, and the portable one.

The calls are the uses of the kit of backends, which have a case or more for every functional.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.differentiation.functions import grad
from gptrs.errors import GptrsError, UsageError
from gptrs.functionals.creation import zeros
from gptrs.functionals.dispatch.active_overrides import Arguments, Choice, Keywords, Origin, entered
from gptrs.functionals.dispatch.override_policy import Prefer
from gptrs.functionals.dispatch.registry import PORTABLE, Implementation, find_implementation
from gptrs.functionals.reduction import sum as total
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.functional_use import Use, several
from gptrs_conformance.numerics import Tolerance
from gptrs_conformance.plugin_kits.subject import (
    CLOSE,
    KitCheck,
    absent,
    require_close,
    undisturbed,
)
from gptrs_conformance.uses import ALL_USES

_STEP = 1e-4
"""Of differences, in f64 on values near 1: their error is below 1e-7."""
_MANY = 67
"""More elements than kernels handle at once, and no multiple of them."""
_SLOPE = 2e-3
"""Relative error of a derivative in f32."""


class Functional(Struct, frozen=True, kw_only=True):
    """An implementation under test; `uses` are further calls, with what NumPy gives for them."""

    functional: str
    name: str
    function: Callable[..., object]
    declines: Callable[..., object] | None = None
    uses: Sequence[Use] = ()

    @property
    def implementation(self) -> Implementation:
        """The implementation as the registry has it."""
        return Implementation(self.functional, self.name, self.function, self.declines)

    def calls(self) -> list[Use]:
        """Return the uses of the functional."""
        found = [use for use in ALL_USES if use.functional == self.functional]
        return [*found, *self.uses]


def installed_functional(name: str, uses: Sequence[Use] = ()) -> Functional:
    """Return the implementation of a plugin; UsageError or PluginError as in `overrides`."""
    plugin = manager().find(FunctionalPlugin, name)
    found = find_implementation(plugin.functional, plugin.implementation)
    return Functional(
        functional=plugin.functional,
        name=found.name,
        function=found.function,
        declines=found.declines,
        uses=uses,
    )


class _Taken(Struct):
    """How many calls the implementation took, and why it declined others."""

    count: int = 0
    declined: list[str] = field(default_factory=list[str])


@contextmanager
def _preferred(subject: Functional) -> Generator[_Taken]:
    """Scope in which the implementation is used unless it declines."""
    taken, ours = _Taken(), subject.implementation

    def call(args: Arguments, kwargs: Keywords) -> object:
        reason = ours.refusal(args, kwargs)
        if reason is None:
            taken.count += 1
            return ours.run(args, kwargs)
        taken.declined.append(reason)
        return find_implementation(subject.functional, PORTABLE).run(args, kwargs)

    # As `prefer` of users does, but counting: an implementation that declines all calls would pass
    # each check without being called.
    choice = Choice(Prefer(subject.name), Origin.SCOPE, call)
    with entered({subject.functional: choice}):
        yield taken


def _calls(subject: Functional) -> list[Use]:
    found = subject.calls()
    if not found:
        raise absent(f"the kit has no call of `{subject.functional}`; give some as `uses`")
    return found


def has_the_parameters_of_the_functional(subject: Functional, backend: Backend) -> None:
    """The same parameters, of the same kinds, order and defaults, for `declines`, too."""
    portable = find_implementation(subject.functional, PORTABLE).function
    wanted = inspect.signature(portable).parameters
    functions = {"the implementation": subject.function, "`declines`": subject.declines}
    for what, function in functions.items():
        if function is None:
            continue
        found = inspect.signature(function).parameters
        kinds = {each.kind for each in found.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue  # `*args, **kwargs` take everything
        if list(found) != list(wanted):
            raise CheckFailure(
                f"{what} takes {list(found)}, `{subject.functional}` takes {list(wanted)}"
            )
        for name, each in wanted.items():
            if found[name].kind is not each.kind:
                raise CheckFailure(
                    f"{what} takes `{name}` as {found[name].kind.description},"
                    f" `{subject.functional}` as {each.kind.description}"
                )
            if found[name].default != each.default:
                raise CheckFailure(
                    f"{what} has the default {_default(found[name])} for `{name}`,"
                    f" `{subject.functional}` has {_default(each)}"
                )


def _default(parameter: inspect.Parameter) -> str:
    empty = parameter.default is inspect.Parameter.empty
    return "none" if empty else repr(parameter.default)


def gives_the_values_of_numpy(subject: Functional, backend: Backend) -> None:
    """Every use, lazily and by jit, in f32, f16 and bf16; at least one call is taken."""
    with _preferred(subject) as taken:
        for use in _calls(subject):
            try:
                use.run(backend)
            except CheckFailure as failure:
                raise CheckFailure(f"{use.name} {failure}") from failure
    if not taken.count:
        reasons = "; ".join(dict.fromkeys(taken.declined))
        raise CheckFailure(f"it declines every call of the kit: {reasons:.300}")


def keeps_types_and_shapes(subject: Functional, backend: Backend) -> None:
    """The results have the types of the portable implementation, before anything runs."""
    with use_backend(backend):
        for use in _calls(subject):
            for _, arrays in use.cases():
                # Nothing runs here: types must be right before, since jit derives the program from
                # them.
                tensors = [Tensor.of_array(array) for array in arrays]
                wanted = [each.type for each in several(use.call(*tensors))]
                with _preferred(subject):
                    found = [_type_of(each) for each in several(use.call(*tensors))]
                if found != wanted:
                    raise CheckFailure(
                        f"{use.name} gives {', '.join(map(str, found))}, the portable"
                        f" implementation {', '.join(map(str, wanted))}"
                    )


def _type_of(result: object) -> TensorType | str:
    return result.type if isinstance(result, Tensor) else f"a `{type(result).__name__}`"


def is_right_far_from_zero(subject: Functional, backend: Backend) -> None:
    """Large, tiny and infinite values give what they give to the portable implementation."""
    # 30 and 90 lie on both sides of what `exp` in f32 can take, 3e4 near the end of f16.
    values = [0, -0.0, 1e-30, -1e-30, 30, -30, 90, -90, 3e4, -3e4, np.inf, -np.inf]
    extremes = np.array(values, np.float32)

    def filled(x: np.ndarray) -> dict[str, np.ndarray]:
        found = np.resize(extremes, max(x.size, 1))
        # At least one value, then cut: `np.resize` of the extremes to no element would fail.
        return {f"{values}": found[: x.size].reshape(x.shape)}

    _compare_to_portable(subject, backend, filled, CLOSE)


def takes_other_sizes(subject: Functional, backend: Backend) -> None:
    """A single number, no elements, and more than kernels handle at once: as portable."""

    def sized(x: np.ndarray) -> dict[str, np.ndarray]:
        longer = np.resize(x, (*x.shape[:-1], _MANY))
        return {"rank 0": np.resize(x, ()), "no elements": x[..., :0], "long rows": longer}

    _compare_to_portable(subject, backend, lambda x: sized(x) if x.size and x.ndim else {}, CLOSE)


def keeps_the_digits_of_f64(subject: Functional, backend: Backend) -> None:
    """Results in f64 have the digits of those of the portable implementation."""
    _compare_to_portable(
        subject, backend, lambda x: {"f64": x.astype(np.float64)}, Tolerance.close(1e-11, 1e-11)
    )


def _compare_to_portable(
    subject: Functional,
    backend: Backend,
    change: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    tolerance: Tolerance,
) -> None:
    """Compare calls of one input in f32 whose input is changed, each under the name of `change`.

    Those that the portable implementation refuses are left out.
    """
    compared = 0
    with use_backend(backend), np.errstate(all="ignore"):
        for use in _calls(subject):
            if len(use.inputs) != 1 or use.inputs[0].dtype != np.float32:
                continue
            for what, array in change(use.inputs[0]).items():
                try:
                    wanted = [each.numpy() for each in several(use.call(Tensor.of_array(array)))]
                except GptrsError:
                    continue
                with _preferred(subject):
                    found = [each.numpy() for each in several(use.call(Tensor.of_array(array)))]
                for ours, theirs in zip(found, wanted, strict=True):
                    require_close(ours, theirs, f"{use.name} of {what}", tolerance)
                compared += 1
    if not compared:
        raise absent("the kit has no call with one input of f32 for this")


def leaves_the_process_alone(subject: Functional, backend: Backend) -> None:
    """Calls print nothing, and leave no other state behind."""
    with use_backend(backend), _preferred(subject), undisturbed("a call"):
        for use in _calls(subject):
            for each in several(use.call(*map(Tensor.of_array, use.inputs))):
                each.numpy()


def takes_free_sizes(subject: Functional, backend: Backend) -> None:
    """Calls that the portable implementation captures with symbols are captured, and run right."""
    compared = 0
    with use_backend(backend):
        for use in _calls(subject):
            tensors = [Tensor.of_array(array) for array in use.inputs]
            axes = tuple(("n", *[None] * (len(each.shape) - 1)) for each in tensors[:1])
            if not axes or not tensors[0].shape:
                continue

            # Defaults bind this use: the function is traced after the loop has moved on.
            def first(x: Tensor, use: Use = use, rest: Sequence[Tensor] = tensors[1:]) -> object:
                return use.call(x, *rest)

            symbolic = jit(first, dynamic={"x": axes[0]})
            try:
                wanted = [each.numpy() for each in several(cast("Tensor", symbolic(tensors[0])))]
            # A call of the kit may be refused for such values, by the portable implementation, too.
            except GptrsError:
                continue  # the call depends on sizes that it states
            with _preferred(subject):
                ours = jit(first, dynamic={"x": axes[0]})
                try:
                    found = [each.numpy() for each in several(cast("Tensor", ours(tensors[0])))]
                except GptrsError as error:
                    raise CheckFailure(
                        f"{use.name} with a free size raised {type(error).__name__}:"
                        f" {error.message:.300}"
                    ) from error
            for mine, theirs in zip(found, wanted, strict=True):
                require_close(mine, theirs, f"{use.name} with a free size")
            compared += 1
    if not compared:
        raise absent("no call of the kit leaves a size free")


def has_the_right_derivative(subject: Functional, backend: Backend) -> None:
    """The gradient, against differences of the NumPy reference in f64."""
    compared = 0
    with use_backend(backend):
        for use in _calls(subject):
            random = np.random.default_rng(5)
            moving = [at for at, array in enumerate(use.inputs) if array.dtype == np.float32]
            # One random direction instead of each element: two runs of the reference a call, and an
            # error in any element shows with near certainty.
            along = [random.uniform(-1, 1, use.inputs[at].shape) for at in moving]
            loss, at = partial(_loss, use, moving), [Tensor.of_array(use.inputs[i]) for i in moving]
            derivative = grad(loss, range(len(moving)))
            try:
                wanted = _difference(use, moving, along)
                portable = _slope(cast("Sequence[Tensor]", derivative(*at)), along)
            except GptrsError:
                continue  # no derivative is defined
            # Sums of many elements in f32 err in proportion to their magnitude, not to their
            # result.
            slack = _SLOPE * (1 + abs(wanted) + sum(np.abs(v).sum() for v in along) * 0.01)
            # Not `>`: a NaN must count as a difference.
            if not abs(portable - wanted) <= slack:
                continue  # a kink nearby, which differences do not see
            with _preferred(subject) as taken:
                found = _slope(cast("Sequence[Tensor]", derivative(*at)), along)
            # Written so that NaN is an error as well.
            if not abs(found - wanted) <= slack:
                raise CheckFailure(
                    f"{use.name} has the directional derivative {found:.6g}, by differences it is"
                    f" {wanted:.6g}"
                )
            compared += taken.count > 0
    if not compared:
        raise absent("no call that it takes has a derivative to compare")


def _loss(use: Use, moving: Sequence[int], *points: Tensor) -> Tensor:
    """Return the sum of all float results, each element with a weight of its own."""
    tensors = [Tensor.of_array(array) for array in use.inputs]
    for at, point in zip(moving, points, strict=True):
        tensors[at] = point
    found = zeros((), "f32")
    for each in several(use.call(*tensors)):
        if each.dtype.is_float:
            found = found + total(each.astype("f32") * Tensor.of_array(_weights(each.shape)))
    return found


def _weights(shape: Sequence[int]) -> np.ndarray:
    count = int(np.prod(shape))
    # Equal weights would hide results that are exchanged, or whose errors cancel.
    return np.linspace(0.5, 1.5, count, dtype=np.float32).reshape(tuple(shape))


def _difference(use: Use, moving: Sequence[int], along: Sequence[np.ndarray]) -> float:
    sides: list[float] = []
    for step in (_STEP, -_STEP):
        inputs = [x.astype(np.float64) if x.dtype == np.float32 else x for x in use.inputs]
        for at, v in zip(moving, along, strict=True):
            inputs[at] = inputs[at] + step * v
        values = use.wanted(tuple(inputs))
        floats = [np.asarray(each) for each in values if np.asarray(each).dtype.kind == "f"]
        sides.append(sum(float(np.sum(each * _weights(each.shape))) for each in floats))
    return (sides[0] - sides[1]) / (2 * _STEP)


def _slope(gradient: Sequence[Tensor], along: Sequence[np.ndarray]) -> float:
    pairs = zip(gradient, along, strict=True)
    return sum(float(np.sum(each.numpy().astype(np.float64) * v)) for each, v in pairs)


def gives_the_same_again(subject: Functional, backend: Backend) -> None:
    """Two calls give equal bits, and inputs are not changed."""
    with use_backend(backend), _preferred(subject):
        for use in _calls(subject):
            arrays = [array.copy() for array in use.inputs]
            runs = [
                [e.numpy().copy() for e in several(use.call(*map(Tensor.of_array, arrays)))]
                for _ in range(2)
            ]
            for first, second in zip(*runs, strict=True):
                # By bytes, since NaN differs from itself and -0 equals 0.
                if first.tobytes() != second.tobytes():
                    raise CheckFailure(f"{use.name} gives another result the second time")
            for array, before in zip(arrays, use.inputs, strict=True):
                if array.tobytes() != before.tobytes():
                    raise CheckFailure(f"{use.name} changes its input")


def says_why_it_declines(subject: Functional, backend: Backend) -> None:
    """`declines` gives None or a reason in words, runs nothing, and says so again."""
    if subject.declines is None:
        raise absent("it declines nothing")
    asked: list[tuple[Arguments, Mapping[str, object]]] = []

    def call(args: Arguments, kwargs: Keywords) -> object:
        asked.append((args, dict(kwargs)))
        return find_implementation(subject.functional, PORTABLE).run(args, kwargs)

    choice = Choice(Prefer(subject.name), Origin.SCOPE, call)
    with use_backend(backend), entered({subject.functional: choice}):
        for use in _calls(subject):
            for _, arrays in use.cases():
                use.call(*map(Tensor.of_array, arrays))
    for args, kwargs in asked:
        try:
            first, second = (subject.implementation.refusal(args, kwargs) for _ in range(2))
        except UsageError as error:
            raise CheckFailure(error.message) from error
        if first != second:
            raise CheckFailure(f"`declines` says {first!r:.100}, then {second!r:.100}")
        if first is not None and (not first.strip() or "\n" in first):
            raise CheckFailure(f"the reason {first!r:.100} is not a line of words")


KIT: tuple[KitCheck[Functional], ...] = (
    has_the_parameters_of_the_functional,
    keeps_types_and_shapes,
    gives_the_values_of_numpy,
    is_right_far_from_zero,
    takes_other_sizes,
    keeps_the_digits_of_f64,
    leaves_the_process_alone,
    takes_free_sizes,
    has_the_right_derivative,
    gives_the_same_again,
    says_why_it_declines,
)
"""The checks of an implementation of a functional."""
