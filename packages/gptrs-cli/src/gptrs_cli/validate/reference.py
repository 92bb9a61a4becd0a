"""transformers as the reference of a comparison, imported where one is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from gptrs.errors import MissingLibraryError, ModelError
from gptrs.install_hints import install_extra
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.hf_directory import HfDirectory

if TYPE_CHECKING:
    from gptrs_cli.validate.torch_reference import TorchReference


def torch_reference(command: str) -> type[TorchReference]:
    """Return the class; MissingLibraryError, which names `command`, without torch."""
    try:
        module = importlib.import_module("gptrs_cli.validate.torch_reference")
    except ImportError as missing:
        raise MissingLibraryError(
            f"`{command}` needs torch and transformers: {missing}",
            hint=_install_hint(missing),
        ) from missing
    return cast("type[TorchReference]", module.TorchReference)


def require_folder(model: LoadedModel) -> None:
    """Raise ModelError for a model that is no folder."""
    if not isinstance(model.files, HfDirectory):
        raise ModelError(
            f"{quoted(str(model.files.path), 200)} is a file that transformers does not read",
            hint="compare the folder it was made of, or make one with `gptrs convert`",
        )


def _install_hint(missing: ImportError) -> str:
    """Return what to install: transformers imports Pillow even for models of text."""
    if (missing.name or "").partition(".")[0] == "PIL":
        return (
            "Pillow alone is missing: `pip install pillow`; transformers imports it for any model"
        )
    return install_extra("gptrs-cli", "torch")
