"""The values that a trace is compared with: of a file, or of the model in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import open_archive
from gptrs.errors import ModelError
from gptrs_cli.trace.options import TORCH
from gptrs_cli.validate.reference import require_folder, torch_reference
from gptrs_observe.traced_values import hidden_states_of
from gptrs_runtime.loaded_model import LoadedModel

Values = Mapping[str, np.ndarray]
ReferenceValues = Callable[[LoadedModel, np.ndarray, Values], Values]
"""Takes the model, its inputs and our values; returns those that there are of the same names."""


def reference_values(against: str) -> ReferenceValues:
    """Return a reader of the values of the reference, which was checked to be there.

    Errors as those of an archive; MissingLibraryError for `torch` without it.
    """
    if against == TORCH:
        make = torch_reference("gptrs trace --against torch")

        def of_torch(model: LoadedModel, inputs: np.ndarray, ours: Values) -> Values:
            require_folder(model)
            reference = make(model)
            states = reference.hidden_states(inputs)
            names = list(hidden_states_of(ours))
            if len(names) != len(states):
                raise ModelError(
                    f"`{model.name}` has {len(names)} hidden states here, {len(states)} in torch"
                )
            modules = dict.fromkeys(name.rpartition(".")[0] for name in ours if name not in names)
            found = dict(zip(names, states, strict=True))
            return found | reference.modules(inputs, modules)

        return of_torch
    archive = open_archive(Path(against))

    def of_file(_: LoadedModel, __: np.ndarray, ours: Values) -> Values:
        known = set(archive.names())
        return {name: archive.read(name) for name in ours if name in known}

    return of_file
