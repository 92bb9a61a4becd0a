"""Changes since ptir.v0.4: one row per op, and axes, which could count from the end. Current names
of ops and attributes are accepted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.attributes import Enumerated, Optional
from gptrs.ir.dtypes import DType
from gptrs.ir.plain_attributes import INTEGER, ElementType, Flag, Integers
from gptrs.ir.program import Region
from gptrs.ir.tensor_type import TensorType

# Changes of an op since an older version of PTIR: names, attributes, regions.


Attributes = dict[str, object]
Types = Sequence[TensorType]


def _nothing(attributes: Attributes, operands: Types, results: Types) -> None:
    """Return the attributes unchanged."""


def _same(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    return regions


class OpChange(Struct, frozen=True):
    """Upgrades an instruction of an older version to the current one if possible."""

    op: str | None = None
    """The current name of the op; None if unchanged."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Current names of attributes by their old names."""
    kinds: Mapping[str, AttributeKind] = field(default_factory=dict[str, AttributeKind])
    """Old kinds of attributes that were removed or are written differently now."""
    upgrade: Callable[[Attributes, Types, Types], None] = _nothing
    """Upgrades attributes, by current names, given the types of operands and results; ProgramError,
    phrased to follow the op's name, if there is no counterpart."""
    upgrade_regions: Callable[[tuple[Region, ...]], tuple[Region, ...]] = _same
    """Upgrades the regions; ProgramError if there is no counterpart."""


UNCHANGED = OpChange()


DTYPE_NAMES_04: Mapping[str, str] = {"fp8_e4m3": "f8e4m3", "fp8_e5m2": "f8e5m2"}
"""Current names of renamed dtypes."""

_COUNTED_FROM = {
    "axis": 0, "axes": 0, "permutation": 0,
    "batch_lhs": 0, "contract_lhs": 0, "batch_rhs": 1, "contract_rhs": 1,
}  # fmt: skip
"""The attributes that hold axes, and the operand to which they belong."""
_DIRECTIONS = {
    "less": "lt",
    "less_equal": "le",
    "equal": "eq",
    "greater_equal": "ge",
    "greater": "gt",
    "not_equal": "ne",
}
_XLA_SCATTER = {
    "update_window_dims": Integers(),
    "inserted_window_dims": Integers(),
    "scatter_dims_to_operand_dims": Integers(),
    "index_vector_dim": Optional(INTEGER),
}


def change_since_v04(name: str) -> OpChange:
    """Return the change of the op called `name` in v0.4."""
    return _CHANGES.get(name, _AXES_ONLY)


def _count_axes(attributes: Attributes, operands: Types, results: Types) -> None:
    """Count negative axes from 0; sort the axes of reductions."""
    for name, operand in _COUNTED_FROM.items():
        value = attributes.get(name)
        side = operands[operand] if operand < len(operands) else results[0]
        if type(value) is int:
            attributes[name] = _counted(value, side.rank)
        elif isinstance(value, tuple):
            axes = [_counted(axis, side.rank) for axis in cast("tuple[int, ...]", value)]
            attributes[name] = tuple(sorted(axes) if name == "axes" else axes)


def _counted(axis: int, rank: int) -> int:
    return axis + rank if -rank <= axis < 0 else axis


def _reduction(attributes: Attributes, operands: Types, results: Types) -> None:
    """An extreme has no accumulator any more; one that holds every element changed nothing."""
    accumulator = attributes.get("accum_dtype")
    if attributes.get("kind") not in ("max", "min") or not isinstance(accumulator, DType):
        return
    if operands and not _holds(accumulator, operands[0].dtype):
        reason = f"rounds each element to {accumulator}; `cast` the operand instead"
        raise ProgramError(f"of kind {attributes['kind']} {reason}")
    del attributes["accum_dtype"]


def _holds(wide: DType, narrow: DType) -> bool:
    """Return whether `wide` represents every value of `narrow`."""
    return wide is narrow or (wide.kind == narrow.kind and wide.bits > narrow.bits)


def _reduce_window(attributes: Attributes, operands: Types, results: Types) -> None:
    dilation = cast("tuple[int, ...]", attributes.pop("base_dilation", ()))
    if any(factor != 1 for factor in dilation):
        reason = f"cannot dilate the operand by {list(dilation)} any more"
        raise ProgramError(f"{reason}; insert the elements by `pad` with `interior` before")
    _reduction(attributes, operands, results)


def _segment_reduce(attributes: Attributes, operands: Types, results: Types) -> None:
    attributes.pop("indices_are_sorted", None)
    attributes.pop("unique", None)
    accumulator = attributes.pop("accum_dtype", None)
    if attributes.get("kind") in ("max", "min") or accumulator is None or not operands:
        return
    if accumulator is not operands[0].dtype.accumulator:
        reason = f"accumulates in {operands[0].dtype.accumulator}, not {accumulator}"
        raise ProgramError(f"{reason}; `cast` the operand to {accumulator} instead")


def _dynamic_update_slice(attributes: Attributes, operands: Types, results: Types) -> None:
    sizes = attributes.pop("sizes", None)
    if sizes is not None and len(operands) > 1 and sizes != operands[1].shape:
        written = list(cast("tuple[int, ...]", sizes))
        raise ProgramError(f"needs an update of {written}, its `sizes`, got `{operands[1]}`")


def _scatter_add(attributes: Attributes, operands: Types, results: Types) -> None:
    if not attributes.keys().isdisjoint(_XLA_SCATTER):
        raise ProgramError(XLA_SCATTER_REFUSED)
    attributes["kind"] = "add"


XLA_SCATTER_REFUSED = (
    "with dimension numbers has no counterpart in this version; write it with `axis` and indices "
    "of the shape of the updates, as `scatter_reduce` takes them"
)


def _compare(attributes: Attributes, operands: Types, results: Types) -> None:
    direction = attributes.get("direction")
    if isinstance(direction, str):
        attributes["direction"] = _DIRECTIONS.get(direction, direction)


def _dequantize(attributes: Attributes, operands: Types, results: Types) -> None:
    if attributes.get("dtype") is None:
        attributes["dtype"] = results[0].dtype


def _scan(attributes: Attributes, operands: Types, results: Types) -> None:
    stacked = attributes.pop("scan_output_count", None)
    carried = attributes.get("carry_count")
    found = len(results) - (carried if isinstance(carried, int) else 0)
    if stacked is not None and stacked != found:
        raise ProgramError(
            f"stacks {stacked} results by `scan_output_count`, got types for {found}"
        )


def _random(attributes: Attributes, operands: Types, results: Types) -> None:
    if not operands:
        reason = "has no seed, its numbers were up to the backend"
        raise ProgramError(f"{reason}; write it with an operand, a seed of ui64[2]")


def _reduce_of_kind(kind: str) -> Callable[[Attributes, Types, Types], None]:
    def upgrade(attributes: Attributes, operands: Types, results: Types) -> None:
        attributes["kind"] = kind
        _reduction(attributes, operands, results)

    return upgrade


def _condition_alone(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """Drop the state from the results of a v0.4 condition, (i1[], state..).

    The state had to be what the condition was given.
    """
    condition, *others = regions
    _, *state = condition.results or [None]
    if state and tuple(state) != condition.params:
        reason = "the condition of a `while` returns only the predicate in this version"
        raise ProgramError(f"{reason}; compute its other results in the body")
    alone = Region(condition.params, condition.instructions, condition.results[:1])
    return (alone, *others)


def _in_turn(
    *steps: Callable[[Attributes, Types, Types], None],
) -> Callable[[Attributes, Types, Types], None]:
    def upgrade(
        attributes: Attributes, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> None:
        for step in steps:
            step(attributes, operands, results)

    return upgrade


_QUANTIZED = {"output_dtype": "dtype"}
ROWS: dict[str, OpChange] = {
    "argmax": OpChange(renamed={"output_dtype": "dtype"}),
    "broadcast_to": OpChange(renamed={"result_shape": "shape"}),
    "compare": OpChange(
        renamed={"op": "direction"},
        kinds={"direction": Enumerated((*_DIRECTIONS.values(), *_DIRECTIONS))},
        upgrade=_compare,
    ),
    "dequantize": OpChange(
        renamed=_QUANTIZED, kinds={"dtype": Optional(ElementType())}, upgrade=_dequantize
    ),
    "dynamic_update_slice": OpChange(kinds={"sizes": Integers()}, upgrade=_dynamic_update_slice),
    "extract_patches": OpChange(renamed={"pad_value": "value"}),
    "layer_norm": OpChange(renamed={"feature_axis": "axis"}),
    "pad": OpChange(renamed={"pad_value": "value"}),
    "quantize": OpChange(renamed=_QUANTIZED),
    "reduce": OpChange(upgrade=_reduction),
    "reduce_max": OpChange(op="reduce", upgrade=_reduce_of_kind("max")),
    "reduce_min": OpChange(op="reduce", upgrade=_reduce_of_kind("min")),
    "reduce_sum": OpChange(op="reduce", upgrade=_reduce_of_kind("sum")),
    "reduce_window": OpChange(
        renamed={"window_dims": "window", "window_dilation": "dilation", "reduce": "kind"},
        kinds={"base_dilation": Integers()},
        upgrade=_reduce_window,
    ),
    "requantize": OpChange(renamed=_QUANTIZED),
    "reshape": OpChange(renamed={"new_shape": "shape"}),
    "rng_normal": OpChange(upgrade=_random),
    "rng_uniform": OpChange(upgrade=_random),
    "scan": OpChange(kinds={"scan_output_count": INTEGER}, upgrade=_scan),
    "scatter_add": OpChange(op="scatter_reduce", kinds=_XLA_SCATTER, upgrade=_scatter_add),
    "scatter_reduce": OpChange(renamed={"reduce": "kind"}),
    "segment_reduce": OpChange(
        kinds={
            "accum_dtype": Optional(ElementType()),
            "indices_are_sorted": Flag(),
            "unique": Flag(),
        },
        upgrade=_segment_reduce,
    ),
    "transpose": OpChange(renamed={"perm": "permutation"}),
    "while": OpChange(upgrade_regions=_condition_alone),
}
"""The changes since v0.4, by old op name; in all ops, axes may count from the end."""
_AXES_ONLY = OpChange(upgrade=_count_axes)
_CHANGES = {
    name: replace(row, upgrade=_in_turn(_count_axes, row.upgrade)) for name, row in ROWS.items()
}
