"""`gptrs run` of a model in a file that an importer reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gptrs.api import ImportedModel, ModelInput, TensorType, UsageError
from gptrs.quoting import quoted
from gptrs.runtime.programs.inputs import InputFiles, made_up_array

_SIZE = re.compile(r"([^=]{1,200})=([0-9]{1,9})")


def inputs_of(
    model: ImportedModel, files: InputFiles, sizes: Mapping[str, int], seed: int | None
) -> dict[str, np.ndarray]:
    """Return the inputs of a model: from files, or, with a seed, made up.

    UsageError for one that is unknown, missing, or of free sizes that nobody says.
    """
    unknown = [name for name in files.types() if name not in model.inputs]
    if unknown:
        raise UsageError(
            f"the model has no input {quoted(unknown[0])}", hint=f"it takes {_listed(model)}"
        )
    arrays = files.arrays()
    known = dict(sizes)
    for name, array in arrays.items():
        for size, stated in zip(array.shape, model.inputs[name].shape or (), strict=False):
            if isinstance(stated, str):
                known.setdefault(stated, size)
    missing = [
        each for name, each in model.inputs.items() if name not in arrays and not each.optional
    ]
    if missing and seed is None:
        raise UsageError(
            f"no input is given for `{missing[0]}`, which is needed",
            hint="name files that have them with --input, or make them up with --random-seed",
        )
    for each in missing:
        arrays[each.name] = made_up_array(each.name, _type_of(each, known), seed or 0)
    return arrays


def named_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return sizes by name out of texts such as `batch=2`; UsageError for anything else."""
    sizes: dict[str, int] = {}
    for text in texts:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise UsageError(f"{quoted(text)} is no size", hint="write it as in `--symbol batch=2`")
        sizes[match[1]] = int(match[2])
    return sizes


def _type_of(wanted: ModelInput, sizes: Mapping[str, int]) -> TensorType:
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


def _listed(model: ImportedModel) -> str:
    return ", ".join(f"`{each}`" for each in model.inputs.values()) or "nothing"
