"""The identity of a model: its settings, its overrides, and every byte of its weights."""

from __future__ import annotations

import hashlib
import json

from gptrs.functionals.dispatch.active_overrides import ACTIVE, entered
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.loaded_model import LoadedModel


def model_identity(model: LoadedModel) -> str:
    """Return a digest, in hex, that is another one for any other model, wherever it lies.

    CheckpointError if a file of weights was changed after the model was loaded.
    """
    with entered(model.overrides):
        overrides = {name: str(choice.policy) for name, choice in ACTIVE.get().items()}
    settings = json.dumps(
        [dict(model.config), overrides, model.weight_type], sort_keys=True
    ).encode()
    if model.adapter is not None:
        settings += model.adapter.digest.encode()
    digest = hashlib.blake2b(weights_digest(model.weights), digest_size=16)
    digest.update(settings)
    return digest.hexdigest()
