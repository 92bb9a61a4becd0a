"""Convolutions on AMX, where the processor has it with bf16."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.size_guards import Shape
from gptrs_backend_numba.codegen.compiled import compiled_task
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.cost_model import AmxWork, Convolution, amx_is_better
from gptrs_backend_numba.kernels.amx import convolution as kernels
from gptrs_backend_numba.kernels.amx.convolution_ir import BLOCK, LINE, TILE_ROWS
from gptrs_backend_numba.kernels.amx.gemm_ir import MOST_PARTS, STEP
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.convolution_calls import (
    PARALLEL_FROM,
    TASKS,
    Operands,
    Windows,
    geometry,
    padded,
    run,
)
from gptrs_backend_numba.lowering.matmul import packed_view, parameter
from gptrs_backend_numba.memory import Arena
from gptrs_backend_numba.packing import Packing
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

# All columns for a block before the next block: the same within the noise.
_BLOCKS_A_TASK = 8
"""Most blocks of positions: their planes stay in the L2 cache while all columns pass by."""
_LEAST_TILES = 3
"""Fewest tiles of positions: the kernels compute blocks of 3 or 4."""
_LINES = 16
"""Most tasks that split an image."""
_STEPS = ("IMAGE_STEP", "ROW_STEP", "STEP")
"""Bytes from one image, row and position to the next one."""
_ARENA = Arena()


class UnitWeight(Struct, frozen=True):
    """A weight (taps, inputs, outputs) in columns for AMX, see `packing.Arrangement`.

    Inputs are padded with zeros to whole steps. Strides and the offset count elements. Numbers are
    f32, or bf16 if they are `rounded`.
    """

    taps: int
    inputs: int
    outputs: int
    row: int
    column: int
    offset: int
    rounded: bool = False

    @property
    def steps_a_tap(self) -> int:
        """Return the number of steps of `STEP` inputs for one tap."""
        return -(-self.inputs // STEP)

    @property
    def columns(self) -> int:
        """Return the number of columns of `WIDTH` outputs."""
        return -(-self.outputs // WIDTH)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Return (columns, steps of a tap, taps, pairs of inputs, 2, outputs), the packed shape."""
        return self.columns, self.steps_a_tap, self.taps, STEP // 2, 2, WIDTH

    @property
    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return (2 if self.rounded else 4) * math.prod(self._shape)

    def packed(self, array: np.ndarray, threads: int) -> np.ndarray:
        """Return the columns of the parameter `array`, one after another."""
        strides = (4 * self.row * self.inputs, 4 * self.row, 4 * self.column)
        start = array.reshape(-1)[self.offset :]
        shape = (self.taps, self.inputs, self.outputs)
        weight = np.lib.stride_tricks.as_strided(start, shape, strides)
        target = _ARENA.aligned(self.nbytes)
        if self.rounded:  # AMX reads the two numbers of a pair from one word
            words = (*self._shape[:-2], WIDTH, 2)
            made = target.view(dtypes.bf16.numpy).reshape(words).swapaxes(-1, -2)
        else:
            made = target.view(np.float32).reshape(self._shape)
        whole = np.zeros((self.taps, self.steps_a_tap * STEP, WIDTH), np.float32)
        # Inputs half a step apart are a pair.
        pairs = whole.reshape(self.taps, self.steps_a_tap, 2, STEP // 2, WIDTH)
        for column in range(self.columns):
            some = weight[..., column * WIDTH : (column + 1) * WIDTH]
            whole[:, : self.inputs, : some.shape[-1]] = some
            whole[..., some.shape[-1] :] = 0
            made[column] = pairs.transpose(1, 0, 3, 2, 4)
        return target


def suits(builder: ScheduleBuilder, given: Operands, at: Windows, side: int | None) -> bool:
    """Return whether AMX is there, not switched off (`GPTRS_NUMBA_AMX=0`), and faster here.

    The alternative is Winograd's algorithm with tiles of `side`, the direct kernel without one.
    """
    if at.dilation != (1, 1) or parameter(builder, given.weight) is None:
        return False
    (n, height, width, outputs), inputs = given.out.shape, given.x.shape[3]
    conv = Convolution(n, height, width, inputs, outputs, at.taps, given.rounded)
    given, at = _narrow(given, at, given.x)
    inputs = given.x.shape[3]
    planes, steps = _planes(given, at), at.taps * -(-inputs // STEP)
    work = AmxWork(
        planes.tiles,
        steps,
        -(-outputs // WIDTH),
        planes.positions * planes.sets * inputs,
        steps * STEP * outputs,
    )
    return amx_is_better(work, conv, side) and is_wanted()


def _narrow(given: Operands, at: Windows, padded: View) -> tuple[Operands, Windows]:
    """Return a rounded layer of few channels as one whose channels are those of a row of a window.

    A step then has several taps. Of other layers the image is not `padded`.
    """
    (n, height, _, channels), columns = padded.shape, at.window[1]
    if not given.rounded or columns == 1 or columns * channels > STEP:
        return given, at
    _, down, line, one = padded.strides
    strides = (padded.strides[0], down, at.stride[1] * line, one)
    shape = (n, height, given.out.shape[2], columns * channels)
    x = replace(padded, shape=shape, strides=strides)
    rows = Windows((at.window[0], 1), (at.stride[0], 1), (0, 0, 0, 0), (1, 1))
    return replace(given, x=x), rows


class _Planes(Struct, frozen=True):
    """The layout of an image in planes: `above` x `beside` sets of `count` planes."""

    above: int
    beside: int
    count: int
    parts: int
    down: int
    across: int
    tiles: int
    positions: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of one plane."""
        return LINE * self.positions

    @property
    def sets(self) -> int:
        """Return the number of sets of planes."""
        return self.above * self.beside

    def offsets(self, at: Windows) -> list[int]:
        """Return the bytes from a position to those in its window, tap by tap for each step."""
        return [
            self._offset((i, j), step, at.stride)
            for step in range(self.count // self.parts)
            for i in range(at.window[0])
            for j in range(at.window[1])
        ]

    def _offset(self, tap: tuple[int, int], step: int, stride: Shape) -> int:
        (i, above), (j, beside) = (divmod(*pair) for pair in zip(tap, stride, strict=True))
        plane = (above * self.beside + beside) * self.count + step * self.parts
        return plane * self.nbytes + LINE * (i * self.across + j)


def _planes(given: Operands, at: Windows) -> _Planes:
    (images, _, _, channels), (_, rows, columns, _) = given.x.shape, given.out.shape
    reach = [(window - 1) // stride for window, stride in zip(at.window, at.stride, strict=True)]
    down, across = rows + reach[0], columns + reach[1]
    last = ((images - 1) * down + rows - 1) * across + columns
    tiles = max(_LEAST_TILES, -(-last // TILE_ROWS))
    positions = max(images * down * across, (tiles + 1) * TILE_ROWS + reach[0] * across + reach[1])
    parts = 1 if given.rounded else MOST_PARTS
    return _Planes(
        min(at.window[0], at.stride[0]),
        min(at.window[1], at.stride[1]),
        parts * -(-channels // STEP),
        parts,
        down,
        across,
        tiles,
        positions | 1,  # so that neighbouring planes do not meet in the same lines of a cache
    )


class Following(Struct, frozen=True):
    """A layer that reads the result of another one, which nothing else reads."""

    given: Operands
    at: Windows

    def reads_planes(self, given: Operands) -> bool:
        """Return whether a rounded layer can write the planes of this one: whole steps of them."""
        whole = given.rounded and given.residual is None and given.out.shape[3] % STEP == 0
        if not (whole and self.given.rounded and self.at.stride == (1, 1)):
            return False
        planes, (_, rows, columns, _) = _planes(self.given, self.at), self.given.x.shape
        top, _, left, _ = self.at.padding
        return planes.down >= top + rows and planes.across >= left + columns

    def fields(self) -> dict[str, int]:
        """Return the fields of a layer that writes the planes of this one."""
        planes = _planes(self.given, self.at)
        return {
            "NEXT_DOWN": planes.down, "NEXT_ACROSS": planes.across, "NEXT_PLANE": planes.nbytes,
            "NEXT_TOP": self.at.padding[0], "NEXT_LEFT": self.at.padding[2],
        }  # fmt: skip


def convolution(
    builder: ScheduleBuilder,
    given: Operands,
    at: Windows,
    tasks: int = TASKS,
    left: View | None = None,
    following: Following | None = None,
) -> View:
    """Add calls that bring the image into planes, unless `left` has them, and compute the sums.

    The result is that of the layer, or planes of the one that is `following`.
    """
    if _narrow(given, at, given.x)[1] != at:
        given, at = _narrow(given, at, padded(builder, given.x, at.padding))
    planes, weight = _planes(given, at), _weight(given, at)
    fields = _image(given, at) | _division(planes, weight, given.x.shape[0], tasks)
    if left is None:
        left = builder.fresh(dtypes.ui8, (planes.sets * planes.count * planes.nbytes,))
        _split(builder, given, fields, left)
    fields["FINISH"] = compiled_task(
        kernels.finishing(rounded=given.rounded, into_planes=following is not None)
    )
    if _is_flat(at) and (following is None or _is_flat(following.at)):
        # All positions follow one another.
        line = math.prod(given.out.shape[:3])
        fields |= {"IMAGES": 1, "DOWN": 1, "OH": 1, "H": 1, "ACROSS": line, "OW": line, "W": line}
    out = given.out
    if following is not None:
        out = _planes_of(builder, following)
        fields |= following.fields()
    parts = -(-fields["BLOCKS"] // fields["BLOCKS_A_TASK"])
    job = (
        compiled_task(kernels.blocks(rounded=given.rounded)),
        parts * -(-weight.columns // fields["COLUMNS_A_TASK"]),
        given.out.size * at.taps * weight.inputs,
    )
    numbers = geometry(kernels.FIELDS, fields, planes.offsets(at))
    sides = left, _packed(builder, given, weight)
    extra = None if given.rounded else given.x
    run(builder, job, sides, replace(given, out=out), numbers, extra)
    return out


def _is_flat(at: Windows) -> bool:
    return (at.taps, at.stride) == (1, (1, 1)) and not any(at.padding)


def _split(
    builder: ScheduleBuilder, given: Operands, fields: Mapping[str, int], left: View
) -> None:
    builder.call_tasks(
        compiled_task(kernels.splitting(rounded=given.rounded)),
        -(-fields["LINES"] // fields["LINES_A_TASK"]),
        (given.x, given.x),
        left,
        geometry(kernels.SPLIT_FIELDS, fields),
        builder.threads_from(PARALLEL_FROM, given.x.size),
    )


def _planes_of(builder: ScheduleBuilder, layer: Following) -> View:
    """Return new planes of the image of a layer, with zeros around it."""
    given, at = layer.given, layer.at
    planes = _planes(given, at)
    target = builder.fresh(dtypes.ui8, (planes.sets * planes.count * planes.nbytes,))
    if (planes.down, planes.across) != given.x.shape[1:3]:
        fields = _image(given, at) | _division(planes, _weight(given, at), given.x.shape[0], 1)
        task, numbers = compiled_task(kernels.border_task), geometry(kernels.SPLIT_FIELDS, fields)
        builder.call_tasks(task, 1, (given.shift, given.shift), target, numbers, 1)
    return target


def _weight(given: Operands, at: Windows) -> UnitWeight:
    row, column = given.weight.strides
    inputs, outputs = given.x.shape[3], given.out.shape[3]
    offset = given.weight.offset
    return UnitWeight(at.taps, inputs, outputs, row, column, offset, given.rounded)


def _packed(builder: ScheduleBuilder, given: Operands, layout: UnitWeight) -> View:
    source = parameter(builder, given.weight)
    assert source is not None, "checked before"
    return packed_view(builder, given.weight, Packing(source, layout))


def _division(planes: _Planes, weight: UnitWeight, images: int, tasks: int) -> dict[str, int]:
    """Return the fields that divide lines of the image, blocks and columns into tasks."""
    blocks = -(-planes.tiles * TILE_ROWS // BLOCK)
    parts = -(-blocks // _BLOCKS_A_TASK)
    lines, steps = images * planes.down, weight.taps * weight.steps_a_tap
    pair = 2 if weight.rounded else 1
    return {
        "ABOVE": planes.above, "BESIDE": planes.beside, "PLANES": planes.count,
        "PLANE": planes.nbytes, "DOWN": planes.down, "ACROSS": planes.across, "IMAGES": images,
        "LINES": lines, "LINES_A_TASK": -(-lines // min(tasks, _LINES)),
        "TILES": planes.tiles, "BLOCKS": blocks, "BLOCKS_A_TASK": -(-blocks // parts),
        "COLUMNS_A_TASK": -(-max(1, weight.columns * parts // tasks) // pair) * pair,
        "STEPS": steps, "TABLE": len(kernels.FIELDS),
    }  # fmt: skip


def _image(given: Operands, at: Windows) -> dict[str, int]:
    """Return the fields that describe an image and its windows."""
    (_, height, width, channels), (_, rows, columns, outputs) = given.x.shape, given.out.shape
    return {
        "H": height, "W": width, "C": channels, "N": outputs, "OH": rows, "OW": columns,
        "PT": at.padding[0], "PL": at.padding[2], "SH": at.stride[0], "SW": at.stride[1],
        "KH": at.window[0], "KW": at.window[1],
        **{name: 4 * step for name, step in zip(_STEPS, given.x.strides, strict=False)},
    }  # fmt: skip
