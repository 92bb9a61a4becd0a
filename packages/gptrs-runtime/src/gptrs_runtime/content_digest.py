"""The digest of every byte of a model's weights, cached on disk for later processes.

Reading and hashing takes a second per GiB on two cores. So the digest of a set of files is cached
under an identity that does not require reading them, `WeightFile.digest`: inode, size, mtime and
ctime. No program can set the ctime back.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np
from blake3 import blake3

from gptrs.backend.weight_identity import WeightFile
from gptrs.checkpoint.param_source import FileSource, ParamSource
from gptrs.disk_cache import DiskCache, EntryFormat
from gptrs.errors import CheckpointError, UsageError
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.private_files import private_folder
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.sources.recommended import hub_name

FOLDER: Final = "identities"
SIZE: Final = 32
"""Bytes of a digest."""
_VERSION: Final = b"gptrs weights 1\n"
"""Version of the digest format."""
FORMAT: Final = EntryFormat(
    "digest", "computed", 1, re.compile(r"[0-9a-f]{32}"), SIZE, logging.DEBUG
)
_BUDGET: Final = 1 << 20
"""Budget in bytes of all cached digests: some 16,000 models."""
_threads: Final = [blake3.AUTO]
"""One thread in a forked child, which lacks its parent's workers and would wait for them
forever."""
os.register_at_fork(after_in_child=lambda: _threads.__setitem__(0, 1))


def weights_digest(weights: ParamSource) -> bytes:
    """Return 32 bytes that differ for different names, types or bytes of weights.

    It does not depend on the location of the weights or their division into files. CheckpointError
    if a file changed after it was opened: then it is unknown which of its bytes were used.
    """
    files = _files(weights)
    if files is None:
        return _digest(weights)
    _require_unchanged(files)
    key = hashlib.blake2b(b"".join([_VERSION, *(file.digest for file in files)]), digest_size=16)
    kept, name = kept_digests(), key.hexdigest()
    found = kept.load(name)
    if found is not None:
        return found
    made = _digest(weights)
    _require_unchanged(files)
    kept.save(name, made)
    return made


def kept_digests() -> DiskCache:
    """Report the digests on disk; their names do not tell which are stale."""
    try:
        return DiskCache(private_folder(FOLDER), FORMAT, _BUDGET)
    except OSError:
        return DiskCache(None, FORMAT, _BUDGET)


def _files(weights: ParamSource) -> Sequence[WeightFile] | None:
    """Return the files of the weights; None if one was just changed, or there are none.

    Another change could leave a file that was just changed with the same times.
    """
    if not isinstance(weights, FileSource) or not weights.files:
        return None
    found = [file.stamp for file in weights.open_files()]
    known = [file for file in found if file is not None]
    return known if len(known) == len(found) else None


def _require_unchanged(files: Sequence[WeightFile]) -> None:
    for file in files:
        if not file.unchanged():
            raise CheckpointError(
                f"{quoted(file.path, 200)} was changed after the model was loaded",
                hint="load the model again",
            )


def _digest(weights: ParamSource) -> bytes:
    digest = blake3(_VERSION, max_threads=_threads[0])
    for name in sorted(weights.names()):
        text = name.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
        try:
            type = str(weights.type_of(name)).encode()
        except CheckpointError:  # of an unsupported dtype: no model has such a weight
            type = b"?"
        digest.update(len(type).to_bytes(8, "little") + type)
        if type != b"?":
            for part in _parts(weights, name):
                digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.digest(length=SIZE)


def _parts(weights: ParamSource, name: str) -> Iterator[np.ndarray]:
    """Yield the elements of a tensor; files are read, not mapped, so that memory is freed soon."""
    if isinstance(weights, FileSource):
        yield from weights.parts(name)
    else:
        yield weights.load(name)


# Models bundled with plugins, by name: `demo` in gptrs-models.


def model_path(name: str | os.PathLike[str] | None) -> Path | str:
    """Return the path of the model that a user names; a name on the hub is returned unchanged.

    What lies at that path comes first, then the bundled model of that name, then the short names of
    `gptrs models recommended`. None means the first bundled model by name.

    PluginError if that is broken, or missing for None; UsageError for an empty name, which as a
    path is the current folder, and for values that are not paths.
    """
    if name is None:
        return manager().demo_model_path()
    if not isinstance(cast("object", name), str | os.PathLike):
        raise UsageError(f"a model is named by a text or a path, got {shown_value(name)}")
    given = os.fspath(name)
    if not given:
        raise UsageError("the name of a model is empty", hint="`.` is the current folder")
    if os.path.lexists(given) or os.path.basename(given) != given:
        return given
    bundled = [record.name for record in manager().records(DemoModelPlugin)]
    return manager().demo_model_path(given) if given in bundled else hub_name(given) or given
