"""`gptrs run` of a model in a file that an importer reads: its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.api import UsageError
from gptrs.api.importers import ImportedModel
from gptrs.quoting import quoted
from gptrs_runtime.imported.sizes import made_up, sizes_of
from gptrs_runtime.programs.inputs import InputFiles


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
    known = sizes_of(model.inputs, arrays, sizes)
    missing = [
        each for name, each in model.inputs.items() if name not in arrays and not each.optional
    ]
    if missing and seed is None:
        raise UsageError(
            f"no input is given for `{missing[0]}`, which is needed",
            hint="name files that have them with --input, or make them up with --random-seed",
        )
    for each in missing:
        arrays[each.name] = made_up(each, known, seed or 0)
    return arrays


def _listed(model: ImportedModel) -> str:
    return ", ".join(f"`{each}`" for each in model.inputs.values()) or "nothing"
