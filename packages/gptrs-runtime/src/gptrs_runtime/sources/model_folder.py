"""Access to the files of a model folder and nothing else, regardless of links and names.

Links are followed only to a target in the folder itself or, where the folder is a snapshot of a
Hugging Face hub cache (`models--NAME/snapshots/REVISION`), in the `blobs` folder of the same cache
entry. The same rule holds for files of fixed names, for shards that an index names, and for files
of the folders directly inside.

Files are looked up when read, some long after the folder was opened; a file replaced meanwhile is
refused, since a tokenizer of one model would serve the weights of another.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gptrs.checkpoint.files.open_file import is_plain, kind_of, read_whole
from gptrs.checkpoint.formats.foreign_files import foreign_folder
from gptrs.errors import CheckpointError, ModelError
from gptrs.quoting import listed, quoted
from gptrs.strict_json import parse_list, record_of
from gptrs_runtime.sources.model_source import MAX_SETTINGS_BYTES, ModelSource

_ADAPTER = "adapter_config.json"
_CACHED = "models--"
"""The folder of a model in the cache of the hub begins so."""
_SETTINGS = "config.json"
"""The file that every model has, and that is new in a replaced folder."""


class ModelFolder:
    """An existing folder; for anything else, ModelError says what the path is."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        shown = quoted(str(self.path), 200)
        try:
            self._real = Path(os.path.realpath(self.path, strict=True))
            names = sorted(os.listdir(self._real))
        except FileNotFoundError:
            raise ModelError(
                f"{shown} does not exist",
                hint="name the folder that holds `config.json`, a model file, ORG/NAME of the"
                " Hugging Face hub, or a short name that `gptrs models recommended` lists",
            ) from None
        except NotADirectoryError:
            if not stat.S_ISREG(mode := os.stat(self.path).st_mode):
                raise ModelError(f"{shown} is {kind_of(mode)}, a model is a folder") from None
            parent = quoted(str(self.path.parent), 200)
            raise ModelError(
                f"{shown} is a file, a model is a folder", hint=f"did you mean {parent}?"
            ) from None
        except (OSError, ValueError) as problem:
            raise ModelError(f"cannot read the folder {shown}: {problem}") from problem
        if not names:
            raise ModelError(
                f"the folder {shown} is empty",
                hint="it must hold at least `config.json` and `model.safetensors`",
            )
        self.names: tuple[str, ...] = tuple(names)
        self._roots = (self._real, *_hub_blobs(self._real))
        self._opened = {name: _identity(self._real / name) for name in names}

    def find(self, name: str, subfolder: str = "") -> Path | None:
        """Return the resolved path of the file `name`, None if the folder has none.

        With a `subfolder`, that of the file in the folder of this name directly inside. ModelError
        if either is more than a plain name, or a link that leads out or nowhere; CheckpointError if
        the file or that of the settings is not the one that was there when the folder was opened.
        """
        for part in (name, subfolder) if subfolder else (name,):
            if not is_plain(part):
                raise ModelError(
                    f"{quoted(part)} is not a plain file name: files outside the model folder"
                    f" {quoted(str(self.path), 200)} are never opened"
                )
        self.require_unchanged(subfolder or name)
        inside = self._real / subfolder / name
        if not os.path.lexists(inside):
            return None
        resolved = Path(os.path.realpath(inside))
        if not any(root in resolved.parents for root in self._roots):
            raise ModelError(
                f"{quoted(name)} in {quoted(str(self.path), 200)} is a link to"
                f" {quoted(str(resolved), 200)}: files outside the model folder are never opened",
                hint="copy the file into the folder if you trust it",
            )
        if not os.path.exists(resolved):
            raise ModelError(
                f"{quoted(name)} in {quoted(str(self.path), 200)} is a link to"
                f" {quoted(str(resolved), 200)}, which does not exist",
                hint="download the model again",
            )
        return resolved

    def require_unchanged(self, name: str) -> None:
        """CheckpointError if `name` or the settings were changed since the folder was opened."""
        for each in (_SETTINGS, name):
            before = self._opened.get(each)
            if before is not None and _identity(self._real / each) != before:
                other = "" if each == name else f": {quoted(name)} may be of another model"
                raise CheckpointError(
                    f"{quoted(str(self.path / each), 200)} was changed since the model was"
                    f" loaded{other}",
                    hint="load the model again",
                )

    def walk(self) -> Sequence[str]:
        """`NAME` or `FOLDER/NAME` of each file, except names that begin with a dot."""
        found: list[str] = []
        for name in self.names:
            inside = self._real / name
            if name.startswith("."):
                continue
            if not os.path.isdir(inside):
                found.append(name)
            elif not os.path.islink(inside):
                below = sorted(n for n in os.listdir(inside) if not n.startswith("."))
                found += [f"{name}/{n}" for n in below if not os.path.isdir(inside / n)]
        return tuple(found)

    def require(self, name: str, hint: str | None = None) -> Path:
        """Like `find`, but a missing file raises ModelError, which lists the files."""
        found = self.find(name)
        if found is None:
            self._refuse_foreign()
            raise ModelError(
                f"the folder {quoted(str(self.path), 200)} has no {quoted(name)},"
                f" found {listed(self.names)}",
                hint=hint or self._hint(),
            )
        return found

    def _refuse_foreign(self) -> None:
        """ModelError for a folder that another program writes."""
        foreign = foreign_folder(self._real)
        if foreign is not None:
            shown = quoted(str(self.path), 200)
            raise ModelError(f"{shown} is {foreign.name}", hint=foreign.hint)

    def _hint(self) -> str | None:
        if _ADAPTER in self.names:
            return "it holds an adapter: load the model that it was made for, with `--adapter`"
        if "snapshots" in self.names and self._real.name.startswith(_CACHED):
            return "name the folder of one revision below `snapshots`"
        gguf = next((name for name in self.names if name.endswith(".gguf")), None)
        if gguf is not None:
            return f"name the file of llama.cpp itself: `--model` {quoted(str(self.path / gguf))}"
        if "model_index.json" in self.names:
            return "it holds a pipeline of diffusers: name the folder of one of its models"
        if "params.json" in self.names:
            return "it is in a form of its makers: download the one of transformers"
        return None


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return the identity of a file, changed by any write or replacement; None if missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return (found.st_dev, found.st_ino)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def hub_name(path: Path) -> str | None:
    """Return OWNER/NAME of a folder, or a file in it, in the cache of the hub; None for others."""
    path = path.parent if path.is_file() else path
    folder = path.parent.parent.name
    if path.parent.name != "snapshots" or not folder.startswith(_CACHED):
        return None
    return folder.removeprefix(_CACHED).replace("--", "/", 1)


def _hub_blobs(folder: Path) -> tuple[Path, ...]:
    return () if hub_name(folder) is None else (folder.parent.parent / "blobs",)


# Names of the files that sentence-transformers saves beside those of a transformer.


MODULES: Final = "modules.json"
"""The modules of a model in their order, and the folder of each."""
TRANSFORMER_CONFIG: Final = "sentence_bert_config.json"
"""The limits and case of texts; transformers of other kinds use the same file name."""
MODEL_CONFIG: Final = "config_sentence_transformers.json"
"""The prompts, the size of vectors, and their similarity function."""


# The subfolders of the modules that sentence-transformers lists in `modules.json`.


PACKAGE: Final = "sentence_transformers."
"""Starts of the names of known classes; code of others is never run."""
MOST_MODULES: Final = 16
"""Most modules of a list."""


class ModuleEntry(Struct, frozen=True):
    """An entry of modules.json: its class and its folder, empty for the model's own."""

    type: str
    path: str

    @property
    def name(self) -> str:
        """The name of the class without its module."""
        return self.type.rpartition(".")[2]


def module_folders(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the folders directly inside `path` that its `modules.json` names, each once.

    Without the transformer, whose files are in the folder itself. Names that could lead elsewhere
    are skipped; a malformed or too long list yields nothing: the model may be useful without its
    modules, and `embedding_recipe` reports the error to those who need them.
    """
    try:
        found = ModelFolder(path).find(MODULES)
        entries = parse_list(read_whole(found, MAX_SETTINGS_BYTES), MODULES) if found else []
    except ModelError:
        return ()
    if len(entries) > MOST_MODULES:
        return ()
    folders = (_folder(entry) for entry in entries)
    return tuple(dict.fromkeys(folder for folder in folders if is_plain(folder)))


def ends_in_logits(source: ModelSource) -> bool:
    """Return whether the last module of a model scores texts by logits: `LogitScore`.

    Not for a malformed list: who needs the modules is told what is wrong.
    """
    try:
        last = record_of((source.read_json_list(MODULES) or [None])[-1], ModuleEntry, MODULES)
    except ModelError:
        return False
    return last.type.startswith(PACKAGE) and last.name == "LogitScore"


def _folder(entry: object) -> str:
    try:
        module = record_of(entry, ModuleEntry, MODULES)
    except ModelError:
        return ""
    return "" if module.name == "Transformer" else module.path
