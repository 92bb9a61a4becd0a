"""The sizes that a file leaves free: as they are given, else as the kind of input suggests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.importers import ModelInput
from gptrs.quoting import quoted
from gptrs_runtime.imported.input_roles import IMAGE_EDGE, image_axes, is_token_input
from gptrs_runtime.programs.inputs import made_up_array

_SIZE = re.compile(r"([^=]{1,200})=([0-9]{1,9})")


def named_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return sizes by name out of texts such as `batch=2`; UsageError for anything else."""
    sizes: dict[str, int] = {}
    for text in texts:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise UsageError(f"{quoted(text)} is no size", hint="write it as in `--symbol batch=2`")
        sizes[match[1]] = int(match[2])
    return sizes


def free_sizes(inputs: Mapping[str, ModelInput]) -> list[str]:
    """Return the names of the sizes that a model leaves free."""
    shapes = [each.shape or () for each in inputs.values()]
    return list(dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str)))


def require_free_sizes(inputs: Mapping[str, ModelInput], given: Mapping[str, int]) -> None:
    """UsageError for a size that the model does not leave free."""
    names = free_sizes(inputs)
    for name in given:
        if name not in names:
            raise UsageError(
                f"the model has no free size {quoted(name)}",
                hint=f"it has {', '.join(names) or 'none'}",
            )


def sizes_of(
    inputs: Mapping[str, ModelInput], arrays: Mapping[str, np.ndarray], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes that are `given`, and those that arrays for the inputs have.

    UsageError for one that is given and no model's, or another one than that of an array.
    """
    require_free_sizes(inputs, given)
    known = dict(given)
    for name, array in arrays.items():
        for size, stated in zip(array.shape, inputs[name].shape or (), strict=False):
            if isinstance(stated, str) and given.get(stated, size) != size:
                raise UsageError(
                    f"`{stated}={given[stated]}` is asked for, the input {quoted(name)} has {size}",
                    hint="leave out `--symbol`: inputs that are given say their sizes",
                )
            if isinstance(stated, str):
                known.setdefault(stated, size)
    return known


def usual_sizes(
    inputs: Mapping[str, ModelInput], known: Mapping[str, int], batch: int, length: int
) -> dict[str, int]:
    """Return `known` and the sizes that the kind of input suggests for others.

    A first axis that is free is that of a batch, the second one of an input of tokens has `length`,
    edges of an image have IMAGE_EDGE.
    """
    sizes = dict(known)
    for each in inputs.values():
        shape = each.shape or ()
        if len(shape) > 1 and isinstance(shape[0], str):
            sizes.setdefault(shape[0], batch)
        second = shape[1] if len(shape) > 1 else 0
        if is_token_input(each) and isinstance(second, str):
            sizes.setdefault(second, length)
        axes = image_axes(each)
        for stated in () if axes is None else (shape[axes.height], shape[axes.width]):
            if isinstance(stated, str):
                sizes.setdefault(stated, IMAGE_EDGE)
    return sizes


def type_with(wanted: ModelInput, sizes: Mapping[str, int]) -> TensorType:
    """Return the type of an input; UsageError for an open rank or a size that nobody says."""
    shape = wanted.shape
    if shape is None:
        raise UsageError(f"the rank of `{wanted}` is not stated", hint="give it by --input")
    unknown = [each for each in shape if isinstance(each, str) and each not in sizes]
    if unknown:
        raise UsageError(
            f"the size `{unknown[0]}` of `{wanted}` is not known",
            hint=f"give it with `--symbol {unknown[0]}=SIZE`",
        )
    dims = tuple(sizes[each] if isinstance(each, str) else each for each in shape)
    return TensorType(wanted.dtype, dims)


def made_up(each: ModelInput, sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """Return a made-up array for an input; UsageError as `type_with`, or for a negative seed."""
    if seed < 0:
        raise UsageError(f"a seed is an integer >= 0, got {seed}")
    return made_up_array(each.name, type_with(each, sizes), seed)
