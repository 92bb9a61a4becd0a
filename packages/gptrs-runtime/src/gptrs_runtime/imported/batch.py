"""Inputs of one run of an imported model: images, tensors by name, tokens, or random inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import UsageError
from gptrs.ir.program import Program
from gptrs.ir.specialize import lone_symbol, specialize, symbols
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.exporters import ImportedModel, ModelInput, shown_inputs
from gptrs.quoting import listed, quoted
from gptrs_runtime.imported.scores import (
    COMPANIONS,
    IMAGE_EDGE,
    ImageFiles,
    LoadedImport,
    image_axes,
    is_token_input,
    token_inputs,
)
from gptrs_runtime.model_inputs import ARCHIVES, InputChoice
from gptrs_runtime.programs import made_up_array

# The free sizes of a model: given, or usual for the kind of input.


_SIZE = re.compile(r"([^=]{1,200})=([0-9]{1,9})")


def named_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Parse sizes by name from texts such as `batch=2`; UsageError for anything else."""
    sizes: dict[str, int] = {}
    for text in texts:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise UsageError(f"{quoted(text)} is not a size", hint="write it as `--symbol batch=2`")
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
    """Return the `given` sizes, and those of the input arrays.

    UsageError for a given size that the model does not have, or that differs from an array's.
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

    A free first axis is the batch, the second one of a token input has `length`, edges of an image
    have IMAGE_EDGE.
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
    """Return the type of an input; UsageError for an open rank or an unknown size."""
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
    """Return a random array for an input; UsageError as in `type_with`, or for a negative seed."""
    if seed < 0:
        raise UsageError(f"a seed is an integer >= 0, got {seed}")
    return each.made_up(made_up_array(each.name, type_with(each, sizes), seed))


_GIVE: Final = "give it in a file of tensors with --input, by its name"


class ImportedBatch(Struct, frozen=True):
    """The inputs of a model by name, and their origin; `rows` are the files of images."""

    arrays: dict[str, np.ndarray]
    origins: tuple[str, ...]
    rows: tuple[str, ...] = ()

    def origin_of(self, row: int, count: int) -> str:
        """Return the origin of a row of `count`."""
        if len(self.rows) == count:
            return self.rows[row]
        where = ", ".join(self.origins)
        return where if count == 1 else f"{where}[{row}]"


def imported_batch(
    model: ImportedModel, choice: InputChoice, sizes: Mapping[str, int], images: ImageFiles
) -> ImportedBatch:
    """Return the inputs for `choice`; `sizes` maps names in shapes to sizes that it leaves open.

    UsageError for an input that is unknown, missing or of another kind, and for unknown sizes;
    ModelError for files that cannot be read.
    """
    if choice.prompt is not None:
        raise UsageError(
            "an imported model has no tokenizer: `--prompt` cannot be read",
            hint="give token ids, `--tokens 1,2,3`",
        )
    if choice.is_random:
        arrays = random_batch(model, choice.seed, sizes, choice.count, choice.length)
        return ImportedBatch(arrays, (f"random input {choice.seed}",))
    if choice.tokens is not None:
        found = _complete(model, _tokens(model, choice.tokens), sizes)
        return ImportedBatch(found, ("tokens",))
    tensors = [path for path in choice.files if path.suffix.lower() in ARCHIVES]
    pictures = [path for path in choice.files if path not in tensors]
    arrays = _stored(model, tensors, choice.key)
    if pictures:
        slot = images.slot(model.inputs)
        if slot.name in arrays:
            raise UsageError(f"`{slot}` is given twice, as an image and as a tensor")
        arrays[slot.name] = images.read(slot, pictures)
    names = tuple(map(str, choice.files))
    return ImportedBatch(_complete(model, arrays, sizes), names, tuple(map(str, pictures)))


def random_batch(
    model: ImportedModel, seed: int, sizes: Mapping[str, int], batch: int = 1, length: int = 8
) -> dict[str, np.ndarray]:
    """Return random inputs; texts have no padding. UsageError for unknown sizes."""
    require_free_sizes(model.inputs, sizes)
    known = usual_sizes(model.inputs, sizes, batch, length)
    needed = {name: each for name, each in model.inputs.items() if not each.optional}
    arrays: dict[str, np.ndarray] = {}
    for name, each in needed.items():
        array = made_up(each, known, seed)
        is_companion = name in COMPANIONS and is_token_input(each)
        arrays[name] = COMPANIONS[name](array.shape).astype(array.dtype) if is_companion else array
    return arrays


def _tokens(model: ImportedModel, tokens: Sequence[int]) -> dict[str, np.ndarray]:
    slots = token_inputs(model.inputs)
    if len(slots) != 1:
        raise UsageError(
            f"the model has {len(slots)} inputs of token ids, `--tokens` is for those with one",
            hint=f"its inputs are {listed_inputs(model)}",
        )
    (slot,) = slots
    return {slot.name: np.array([tokens], slot.dtype.numpy)}


def _complete(
    model: ImportedModel, arrays: dict[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Return the inputs completed by the companions of tokens, such as masks.

    UsageError for another one that is missing, and for `sizes` that are not theirs.
    """
    sizes_of(model.inputs, arrays, sizes)
    texts = next(
        (arrays[each.name] for each in token_inputs(model.inputs) if each.name in arrays), None
    )
    for name, each in model.inputs.items():
        if name in arrays or each.optional:
            continue
        if texts is None or name not in COMPANIONS or not is_token_input(each):
            raise UsageError(f"no input is given for `{each}`, which is needed", hint=_GIVE)
        arrays[name] = COMPANIONS[name](texts.shape).astype(each.dtype.numpy)
    return arrays


def _stored(model: ImportedModel, paths: Sequence[Path], key: str | None) -> dict[str, np.ndarray]:
    """Return the tensors of files by the names of inputs; a lone one goes to a lone input."""
    found: dict[str, np.ndarray] = {}
    for path in paths:
        with closing(open_archive(path)) as archive:
            names = list(archive.names())
            if key is not None and key not in names:
                raise UsageError(
                    f"{quoted(str(path), 200)} has no tensor {quoted(key)}",
                    hint=f"it has {listed(names)}",
                )
            for name in names if key is None else [key]:
                needed = [slot for slot, each in model.inputs.items() if not each.optional]
                alone = len(needed) == 1 and (len(names) == 1 or key is not None)
                target = needed[0] if alone and name not in model.inputs else name
                if target not in model.inputs:
                    raise UsageError(
                        f"the model has no input {quoted(name)}",
                        hint=f"it takes {listed_inputs(model)}",
                    )
                if target in found:
                    raise UsageError(f"`{model.inputs[target]}` is given twice")
                found[target] = archive.read(name)
    return found


def listed_inputs(model: ImportedModel) -> str:
    """Return the inputs of a model with their types, for a message."""
    return shown_inputs(model.inputs, "`") or "nothing"


# The program of an imported model, with symbols or for given sizes.


_EXAMPLE: Final = 8
"""The size chosen for free sizes without a hint."""


class Converted(Struct, frozen=True):
    """The program of a model; `sizes` are those that it was made for, if it has no symbols."""

    program: Program
    sizes: Mapping[str, int]


def converted(loaded: LoadedImport, given: Mapping[str, int]) -> Converted:
    """Return the program; where sizes are given, for these and the usual ones of others.

    UsageError for a size that the model does not leave free; UnsupportedError if it cannot be
    converted.
    """
    sizes = example_sizes(loaded.model.inputs, given)
    arrays = random_batch(loaded.model, 0, sizes)
    program = loaded.program(arrays)
    if symbols(program):
        if not given:
            return Converted(program, {})
        program = specialize(program, _bound(program, list(arrays.values())))
    return Converted(program, sizes)


def example_sizes(inputs: Mapping[str, ModelInput], given: Mapping[str, int]) -> dict[str, int]:
    """Return sizes for all that a model leaves free: `given`, usual, or made up.

    UsageError for a size that the model does not leave free.
    """
    require_free_sizes(inputs, given)
    names = free_sizes(inputs)
    sizes = {name: _EXAMPLE for name in names} | usual_sizes(inputs, given, 1, _EXAMPLE)
    return {name: sizes[name] for name in names}


def _bound(program: Program, arrays: Sequence[np.ndarray]) -> dict[int, int]:
    """Return the sizes of symbols, by the parameters that arrays in this order go to."""
    found: dict[int, int] = {}
    remaining = list(arrays)
    for param in program.main.body.params:
        shape = param.type.shape
        while remaining and not _fits(remaining[0].shape, shape):
            remaining.pop(0)  # its values decided sizes: it is no parameter
        if not remaining:
            break
        for size, dim in zip(remaining.pop(0).shape, shape, strict=True):
            number = lone_symbol(dim)
            if number is not None:
                found[number] = size
    return found


def _fits(sizes: Sequence[int], shape: Sequence[object]) -> bool:
    return len(sizes) == len(shape) and all(
        isinstance(dim, SymbolicDim) or dim == size for size, dim in zip(sizes, shape, strict=True)
    )
