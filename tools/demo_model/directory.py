"""The saved demo model: a folder in float16 that replaces an old one as a whole."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gptrs_runtime.converting.convert import WRITERS, Destination, convert
from gptrs_runtime.converting.model_content import open_stored

CARD = "README.md"
KEPT = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files beside weights and config.json; reports of the training stay in its folder."""


def check_target(target: Path) -> None:
    """Raise `FileExistsError` if `target` holds anything that is not a saved model."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() and not (target / "config.json").is_file():
        raise FileExistsError(
            f"`{target}` exists and is not a model directory (it has no `config.json`); "
            "choose another `--out`"
        )


def round_weights(trained: Path, rounded: Path) -> None:
    """Write the model `trained` with weights f16; CheckpointError for one beyond their range."""
    convert(trained, rounded, dtype="f16", force=True)


def save_directory(rounded: Path, target: Path, card: str) -> int:
    """Write the model `rounded` and its card to `target`; return the bytes of all files.

    An error leaves what was there.
    """
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    stored = open_stored(rounded)
    files = {name: stored.files[name] for name in KEPT} | {CARD: card.encode()}
    WRITERS["hf"](replace(stored, files=files), Destination(target, None, True))
    return sum(path.stat().st_size for path in target.iterdir())
