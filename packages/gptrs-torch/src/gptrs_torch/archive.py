"""The `.pt2` archive of torch.export, read without torch: JSON within bounds, weights mapped.

torch's own reader unpickles sample inputs and weights that say so, resolves any name inside `torch`
and evaluates sizes as Python. Here nothing is unpickled, and what a file may name is listed.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch

from gptrs.api import ModelError, UnsupportedError
from gptrs_torch.arrays import tensor_of
from gptrs_torch.element_types import DTYPES

MAX_JSON: Final = 256 * 2**20
"""Most bytes of a description in a file."""
MAX_ENTRIES: Final = 200_000
MAX_TEXT: Final = 2_000
"""Most characters of the expression of a size."""
_TARGET: Final = re.compile(
    r"torch\.ops\.aten\.[A-Za-z]?\w*\.\w+"
    r"|_operator\.(add|sub|mul|floordiv|mod|neg|getitem|ge|gt|le|lt|eq|ne|and_|or_)"
    r"|math\.(floor|ceil|trunc)|torch\.sym_(max|min|not|float|int|ite|sqrt)"
)
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|'(?P<symbol>[A-Za-z]\w{0,30})'|-?\d{1,18}(?!\w)|[(),=]|[-+*/](?!\*))"
)
_FUNCTIONS: Final = frozenset(
    {"Symbol", "Integer", "Add", "Mul", "Max", "Min", "FloorDiv", "CleanDiv", "CeilDiv", "Mod"}
    | {"PythonMod", "positive", "integer", "nonnegative", "True", "False"}
)
_SYMBOL: Final = re.compile(r"[a-z]{1,4}\d{1,9}")
_PLAIN_TREES: Final = frozenset(
    ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
)


@dataclass(frozen=True)
class Archive:
    """The parts of a file: the description of the program, weights and constants by name."""

    program: dict[str, Any]
    weights: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Return what is in a `.pt2` file; its tensors are views of the mapped file.

    ModelError for a file that is no such archive or is damaged, UnsupportedError for pickled
    tensors and objects, several programs, and names that are not on the lists.
    """
    shown = ascii(os.path.basename(path))[1:-1]
    if not Path(path).is_file():
        raise ModelError(f"{os.fspath(path)!a} is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(Path(path), archive, shown)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise ModelError(f"`{shown}` is no archive of torch.export: {_line(error)}") from error
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise ModelError(f"`{shown}` is damaged: {_line(error)}") from error


def _shown(name: object) -> str:
    """Return a name out of a file as a message shows it: escaped and cut."""
    return ascii(str(name))[1:-1][:60]


def _line(error: BaseException) -> str:
    return ascii(" ".join(str(error).split())[:200])[1:-1]


def _read(path: Path, archive: zipfile.ZipFile, shown: str) -> Archive:
    if len(archive.infolist()) > MAX_ENTRIES:
        raise ModelError(f"`{shown}` has more than {MAX_ENTRIES} entries")
    entries = {name.partition("/")[2]: info for name, info in archive.NameToInfo.items()}
    programs = [name for name in entries if re.fullmatch(r"models/[^/]+\.json", name)]
    if len(programs) != 1:
        raise UnsupportedError(f"`{shown}` holds {len(programs)} programs of torch.export, not one")
    name = programs[0].removeprefix("models/").removesuffix(".json")
    program = _json(archive, entries, programs[0])
    _check_program(program)
    payloads = _Payloads(path, archive, entries)
    weights = payloads.read(
        _json(archive, entries, f"data/weights/{name}_weights_config.json"), "data/weights/"
    )
    constants = payloads.read(
        _json(archive, entries, f"data/constants/{name}_constants_config.json"), "data/constants/"
    )
    return Archive(program, weights, constants)


def _json(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str
) -> dict[str, Any]:
    info = entries.get(name)
    if info is None:
        raise ModelError(
            f"the archive lacks `{_shown(name)}`",
            hint="it may be of an older torch: save it again",
        )
    if info.file_size > MAX_JSON:
        raise ModelError(
            f"`{_shown(name)}` has {info.file_size} bytes, at most {MAX_JSON} are read"
        )
    with archive.open(info) as file:
        found = json.loads(file.read(MAX_JSON + 1))
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no JSON object")
    return cast("dict[str, Any]", found)


class _Payloads:
    """The tensors of an archive, each a view of the file."""

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self._path = path
        self._archive = archive
        self._entries = entries
        self._mapped: dict[str, torch.Tensor] = {}

    def read(self, config: Mapping[str, Any], folder: str) -> dict[str, torch.Tensor]:
        """Return the tensors that a table of an archive lists, by name."""
        return {
            str(name): self._tensor(str(name), payload, folder)
            for name, payload in config["config"].items()
        }

    def _tensor(self, name: str, payload: Mapping[str, Any], folder: str) -> torch.Tensor:
        shown = _shown(name)
        place = str(payload["path_name"])
        if payload["use_pickle"] or not place.startswith(("weight_", "tensor_")):
            raise UnsupportedError(
                f"`{shown}` is pickled, which can run any code; nothing is unpickled",
                hint="it is an object or a tensor of a class of its own: export without it",
            )
        meta = payload["tensor_meta"]
        dtype = _dtype(int(meta["dtype"]), shown)
        sizes = [int(each["as_int"]) for each in meta["sizes"]]
        strides = [int(each["as_int"]) for each in meta["strides"]]
        offset = int(meta["storage_offset"]["as_int"])
        if min((*sizes, *strides, offset), default=0) < 0 or len(sizes) != len(strides):
            raise ValueError(f"the layout of {shown} is negative or incomplete")
        flat = self._flat(folder + place, dtype, shown)
        last = offset + sum(
            (size - 1) * stride for size, stride in zip(sizes, strides, strict=True)
        )
        if 0 not in sizes and last >= flat.numel():
            raise ModelError(f"`{shown}` ends at element {last} of {flat.numel()}")
        found = torch.as_strided(flat, sizes, strides, offset if flat.numel() else 0)
        return torch.nn.Parameter(found, requires_grad=False) if payload["is_param"] else found

    def _flat(self, place: str, dtype: torch.dtype, shown: str) -> torch.Tensor:
        info = self._entries.get(place)
        if info is None or info.compress_type != zipfile.ZIP_STORED:
            raise ModelError(f"the file lacks the elements of `{shown}`, or has them compressed")
        size, rest = divmod(info.file_size, dtype.itemsize)
        if rest:
            raise ModelError(f"`{shown}` has {info.file_size} bytes, no whole elements")
        if not size:
            return torch.empty(0, dtype=dtype)
        if place not in self._mapped:
            with self._archive.open(info) as file:  # checks the header that stands before it
                file.read(1)
            self._mapped[place] = self._map(info)
        return self._mapped[place][: size * dtype.itemsize].view(dtype)

    def _map(self, info: zipfile.ZipInfo) -> torch.Tensor:
        with open(self._path, "rb") as file:
            file.seek(info.header_offset + 26)
            names = file.read(4)
            lengths = int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
            start = info.header_offset + 30 + lengths
            if start + info.file_size > os.fstat(file.fileno()).st_size:
                raise ModelError(f"the file is cut: `{_shown(info.filename)}` is not whole")
        # Copy-on-write, so that what torch does in place never reaches the file.
        mapped = np.memmap(self._path, np.uint8, "c", start, (info.file_size,))
        return tensor_of(mapped)


_SCALAR_TYPES: Final = (
    None,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    None,
    None,
    None,
    torch.bool,
    torch.bfloat16,
)
"""By the numbers of `torch._export.serde.schema.ScalarType`."""
_MORE_TYPES: Final = {28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2}


def _dtype(number: int, shown: str) -> torch.dtype:
    found = _SCALAR_TYPES[number] if 0 <= number < len(_SCALAR_TYPES) else _MORE_TYPES.get(number)
    if found is None or found not in DTYPES:
        raise UnsupportedError(f"`{shown}` has the element type number {number}")
    return found


def _check_program(program: dict[str, Any]) -> None:
    """Refuse names and expressions that are not on the lists, and drop Python code."""
    program["guards_code"] = []
    for call in program["graph_module"]["module_call_graph"]:
        signature = call.get("signature")
        if signature and isinstance(signature.get("out_spec"), str):
            signature["out_spec"] = json.dumps(_plain_tree(json.loads(signature["out_spec"])))
    # torch fails on ranges of expressions such as `2*s0`, which follow from those of symbols.
    ranges = program["range_constraints"]
    program["range_constraints"] = {
        size: ranges[size] for size in ranges if _SYMBOL.fullmatch(size)
    }
    for key, value in _pairs(program):
        if key == "expr_str":
            _require_expression(str(value))
        elif key == "target" and isinstance(value, str) and not _TARGET.fullmatch(value):
            raise UnsupportedError(
                f"the operator `{_shown(value)}` is none of ATen, and is not converted"
            )
        elif key in ("in_spec", "out_spec") and isinstance(value, str):
            _require_tree(json.loads(value))
        elif key in ("as_custom_obj", "as_graph", "token", "custom_obj", "opaque"):
            raise UnsupportedError(f"the program has a `{key}`, which is not converted")
    graph = program["graph_module"]["graph"]
    for node in graph["nodes"]:
        if not _TARGET.fullmatch(str(node["target"])):
            raise UnsupportedError(f"the operator `{_shown(node['target'])}` is none of ATen")


def _plain_tree(spec: object) -> object:
    """Return how results nest, with dicts in the place of classes that have named fields.

    Models of transformers return such classes. `pending` instead of recursion: files are hostile.
    """
    pending = [spec]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending.extend(cast("list[object]", each))
        elif isinstance(each, dict):
            node = cast("dict[str, object]", each)
            children = node.get("children_spec")
            if node.get("type") not in _PLAIN_TREES and _are_fields(node.get("context"), children):
                node["type"] = "builtins.dict"
            pending.append(children)
    return spec


def _are_fields(context: object, children: object) -> bool:
    """Whether `context` is the JSON list of the names of `children`."""
    if not isinstance(context, str) or not isinstance(children, list):
        return False
    names = json.loads(context)
    if not isinstance(names, list):
        return False
    known = {name for name in cast("list[object]", names) if isinstance(name, str)}
    return len(known) == len(cast("list[object]", names)) == len(cast("list[object]", children))


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """Yield all pairs of all objects of a JSON value, without recursion."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield from cast("dict[str, object]", each).items()
            pending.extend(cast("dict[str, object]", each).values())
        elif isinstance(each, list):
            pending.extend(cast("list[object]", each))


def _require_expression(text: str) -> None:
    """Refuse what is more than sums, products and quotients of symbols: torch evaluates it."""
    place = 0
    while place < len(text) <= MAX_TEXT:
        found = _TOKEN.match(text, place)
        if found is None or not _is_known(found):
            break
        place = found.end()
    if place != len(text):
        raise UnsupportedError(f"the size `{_shown(text)}` is no expression that is read")


def _is_known(token: re.Match[str]) -> bool:
    if token["symbol"]:
        return _SYMBOL.fullmatch(token["symbol"]) is not None
    name = token["name"]
    return name is None or name in _FUNCTIONS or _SYMBOL.fullmatch(name) is not None


def _require_tree(spec: object) -> None:
    """Refuse nestings by classes: torch imports the modules that these name."""
    for key, value in _pairs(spec):
        if key == "type" and value not in _PLAIN_TREES:
            raise UnsupportedError(
                f"the program takes or gives a `{_shown(value)}`, only tuples, lists and dicts"
                " are read",
                hint="export a module that returns a tuple or dict",
            )
        if key == "context" and isinstance(value, str) and "__enum__" in value:
            raise UnsupportedError("the program takes or gives enumerations")
