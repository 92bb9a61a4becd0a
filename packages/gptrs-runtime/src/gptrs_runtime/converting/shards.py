"""The tensors of a model in files of bounded size, named and indexed as transformers does it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_runtime.sources.hf_directory import WEIGHTS

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return bytes of `5GB`, `500MB` (powers of 1000) or `4GiB` (of 1024); else UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found:
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
        if size > 0:
            return size
    raise UsageError(f"{quoted(text)} is no size of files", hint="write it as `5GB` or `500MB`")


def split(
    tensors: Sequence[OutgoingTensor], most: int | None
) -> Mapping[str, Sequence[OutgoingTensor]]:
    """File name to the tensors in it, none with more than `most` bytes of them unless of one."""
    groups: list[list[OutgoingTensor]] = [[]]
    size = 0
    for tensor in tensors:
        nbytes = stored_bytes(tensor.type)
        if most is not None and groups[-1] and size + nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += nbytes
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    stem, suffix = WEIGHTS.split(".")
    return {
        f"{stem}-{number:05d}-of-{len(groups):05d}.{suffix}": group
        for number, group in enumerate(groups, start=1)
    }


def index_text(files: Mapping[str, Sequence[OutgoingTensor]]) -> str:
    """Return the index of several files."""
    total = sum(stored_bytes(tensor.type) for group in files.values() for tensor in group)
    weight_map = {tensor.name: name for name, group in files.items() for tensor in group}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)
