"""Inputs of one run of an imported model: images, tensors by name, tokens, or made-up ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import UsageError
from gptrs.plugins.importers import ImportedModel
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted
from gptrs_runtime.imported.images import ImageFiles
from gptrs_runtime.imported.input_roles import COMPANIONS, is_token_input, token_inputs
from gptrs_runtime.imported.sizes import made_up, require_free_sizes, sizes_of, usual_sizes
from gptrs_runtime.model_inputs import ARCHIVES, InputChoice

_GIVE: Final = "give it in a file of tensors with --input, by its name"


@dataclass(frozen=True)
class ImportedBatch:
    """The inputs of a model by name, and where they are from; `rows` are the files of images."""

    arrays: dict[str, np.ndarray]
    origins: tuple[str, ...]
    rows: tuple[str, ...] = ()

    def origin_of(self, row: int, count: int) -> str:
        """Return where a row of `count` is from."""
        if len(self.rows) == count:
            return self.rows[row]
        where = ", ".join(self.origins)
        return where if count == 1 else f"{where}[{row}]"


def imported_batch(
    model: ImportedModel, choice: InputChoice, sizes: Mapping[str, int], images: ImageFiles
) -> ImportedBatch:
    """Return the inputs for `choice`; `sizes` are those of names in shapes that it leaves open.

    UsageError for an input that is unknown, missing or of another kind, and for sizes that nobody
    says; ModelError for files that cannot be read.
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
    """Return made-up inputs; texts are without padding. UsageError for sizes that nobody says."""
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
            hint=f"its inputs are {_listed(model)}",
        )
    (slot,) = slots
    return {slot.name: np.array([tokens], slot.dtype.numpy)}


def _complete(
    model: ImportedModel, arrays: dict[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Return the inputs with what goes with tokens.

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
                alone = len(model.inputs) == 1 and (len(names) == 1 or key is not None)
                place = next(iter(model.inputs)) if alone else name
                if place not in model.inputs:
                    raise UsageError(
                        f"the model has no input {quoted(name)}", hint=f"it takes {_listed(model)}"
                    )
                if place in found:
                    raise UsageError(f"`{model.inputs[place]}` is given twice")
                found[place] = archive.read(name)
    return found


def _listed(model: ImportedModel) -> str:
    return ", ".join(f"`{each}`" for each in model.inputs.values()) or "nothing"
