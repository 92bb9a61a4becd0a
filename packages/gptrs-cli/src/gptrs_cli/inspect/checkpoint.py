"""The headers of a checkpoint: its files, its tensors, and their totals."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from gptrs.checkpoint.formats.tensor_archive import is_other_archive, open_archive, require_archive
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.parameter_ids import base_param_id
from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import counted, listed
from gptrs_cli.models.head import architecture, classes, commands
from gptrs_cli.terminal.streams import printable_line
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.generation.model_settings import ignored_settings
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.model_source import TOKENIZER, ModelSource
from gptrs_runtime.unread import unread_in

# A short description of a model by its settings, and names in natural order.


_SETTINGS: Final = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "attention_heads", "n_heads"),
    "kv heads": ("num_key_value_heads",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "vocabulary": ("vocab_size",),
    "classes": ("num_labels",),
}
"""Keys of config.json by the names used here."""
_TEMPLATE: Final = "chat_template.jinja"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"


def model_facts(source: ModelSource) -> Mapping[str, object]:
    """Return sizes of the model, its head, and whether it has a tokenizer and a chat template."""
    facts: dict[str, object] = {}
    for name, keys in _SETTINGS.items():
        values = (source.config.get(key) for key in keys)
        # Kinds name the same setting differently, and some configs hold null under the usual name.
        number = next((value for value in values if isinstance(value, int)), None)
        if number is not None:
            facts[name] = number
    named = {"classes": classes(source), "architecture": architecture(source)}
    facts.update({name: value for name, value in named.items() if value is not None})
    if commands(source):
        facts["commands"] = " and ".join(commands(source))
    # A tokenizer beside an image classifier says nothing, so its absence is no news.
    if "vocabulary" in facts:
        facts["tokenizer"] = _shown(source.has_file(TOKENIZER))
        settings = source.read_json(_TOKENIZER_CONFIG) or {}
        has_template = source.has_file(_TEMPLATE) or bool(settings.get("chat_template"))
        facts["chat template"] = _shown(has_template)
    return facts


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts `layer.2` before `layer.10`."""
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _shown(value: bool) -> str:
    return "yes" if value else "no"


class TensorReport(Struct, frozen=True, kw_only=True, rename={"nbytes": "bytes"}):
    """One tensor: its type in IR syntax and its parts, its bytes, its file.

    `id` is the stable 128-bit id of the name in hexadecimal.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    id: str


class LoadReport(Struct, frozen=True):
    """Bytes that loading a model reads at once (settings, headers), and bytes that it maps.

    Mapped pages are read on first use.
    """

    read_bytes: int
    mapped_bytes: int


class InspectCheckpoint(Result, frozen=True, kw_only=True, tag="gptrs.inspect.checkpoint/1"):
    """`gptrs inspect` of a model or a file of tensors."""

    checkpoint: str
    kind: str | None
    support: str
    model: dict[str, Any]
    """Settings: layers, heads, context, vocabulary and so on."""
    files: list[dict[str, Any]]
    load: LoadReport | None
    unread: Mapping[str, Sequence[str]] | None
    """Weights and settings that no code reads; null if nothing loads the kind."""
    tensors: tuple[TensorReport, ...]
    totals: dict[str, Any]


class CheckpointReport(Struct, frozen=True):
    """A checkpoint as described by its headers.

    `kind` and `load` are None for a file of tensors. `support` names the plugin that loads the
    kind; `files` maps the name of each weights file to its bytes; `model` has the settings;
    `unread` has the weights and settings that no code reads, None if no plugin loads the kind.
    """

    path: Path
    kind: str | None
    support: str
    files: dict[str, int]
    tensors: tuple[TensorReport, ...]
    load: LoadReport | None = None
    model: Mapping[str, object] = field(default_factory=dict[str, object])
    unread: Mapping[str, Sequence[str]] | None = None

    @property
    def parameters(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def dtype_shares(self) -> dict[str, float]:
        """Return the share of each dtype in the parameters, in [0, 1], in descending order."""
        return {
            dtype: number / self.parameters
            for dtype, number in self._by_dtype().most_common()
            # Tensors of no elements: every share would be 0 / 0.
            if self.parameters
        }

    def told(self) -> InspectCheckpoint:
        """Return the `--json` form."""
        return InspectCheckpoint(
            checkpoint=str(self.path),
            kind=self.kind,
            support=self.support,
            model=dict(self.model),
            files=[{"name": name, "bytes": size} for name, size in self.files.items()],
            load=self.load,
            unread=self.unread,
            tensors=self.tensors,
            totals={
                "tensors": len(self.tensors),
                "parameters": self.parameters,
                "bytes": self.nbytes,
                "bits_per_weight": bits_per_weight(self),
                "parameters_by_dtype": dict(self._by_dtype().most_common()),
            },
        )

    def _by_dtype(self) -> Counter[str]:
        numbers: Counter[str] = Counter()
        for tensor in self.tensors:
            numbers[tensor.dtype] += math.prod(tensor.shape)
        return numbers


def read_report(path: Path) -> CheckpointReport:
    """Read the headers of a model (a folder, a file, a name) or of a file of tensors.

    Raises ModelError or CheckpointError if it is missing or malformed.
    """
    path = Path(model_path(path))
    # A missing path goes to `find_model`, too: it may be a name on the hub, or an error that
    # guesses.
    if is_checkpoint(path) or not path.is_file():
        return _model_report(find_model(path))
    if is_other_archive(path):
        return _archive_report(path)
    # After the formats of plugins: these may have any suffix, but here the suffix decides.
    require_archive(path)
    source = FileSource.of_file(path)
    return CheckpointReport(path, None, "", _files(source), _tensors(source))


def print_report(report: CheckpointReport) -> None:
    """Print totals, files and tensors."""
    mix = ", ".join(f"{dtype} {share:.1%}" for dtype, share in report.dtype_shares().items())
    facts = {
        "checkpoint": str(report.path),
        "kind": f"{report.kind} ({report.support})" if report.kind else "a file of tensors",
        "parameters": f"{count(report.parameters)} in {counted(len(report.tensors), 'tensor')}",
        "size": f"{byte_size(report.nbytes)} of tensors in {counted(len(report.files), 'file')}",
        "dtypes": f"{mix} of the parameters" if mix else "none",
        "precision": f"{bits_per_weight(report):.2f} bits per weight",
    }
    if report.model:
        facts["model"] = ", ".join(f"{name} {value}" for name, value in report.model.items())
    if report.load:
        read, mapped = byte_size(report.load.read_bytes), byte_size(report.load.mapped_bytes)
        facts["a load"] = f"reads {read}, maps {mapped}, which are read on first use"
    for name, found in (report.unread or {}).items():
        if found:
            facts["not read"] = f"{facts.get('not read', '')}; {name}: {listed(found, 20)}".lstrip(
                "; "
            )
    for name, text in facts.items():
        print(printable_line(f"{name:<12}{text}"))
    print()
    print_table(["file", "size"], [[name, byte_size(size)] for name, size in report.files.items()])
    print()
    rows = [[tensor.name, tensor.type, byte_size(tensor.nbytes)] for tensor in report.tensors]
    print_table(["tensor", "type", "size"], rows)
    print("\nRead from the headers alone; no values were read.")


def bits_per_weight(report: CheckpointReport) -> float:
    """Return the bits per parameter, scales included; 0 if there are no tensors."""
    return 8 * report.nbytes / report.parameters if report.parameters else 0.0


def count(number: int) -> str:
    """Format a number of parameters, such as 124.4 M."""
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def byte_size(number: int) -> str:
    """Format a number of bytes in powers of 1000, such as 1.2 MB."""
    # Powers of 1000, as the hub and disks state sizes; caches in memory are stated in MiB.
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def _model_report(source: ModelSource) -> CheckpointReport:
    kind, weights = source.model_type, source.weights
    files = weights.open_files()
    # A load maps the weights and reads the headers alone, which is why it takes less than a second.
    read = source.settings_bytes + sum(file.header_bytes for file in files)
    load = LoadReport(read, sum(file.size for file in files))
    tensors, sizes = _tensors(weights), _files(weights)
    model = model_facts(source)
    return CheckpointReport(
        source.path, kind, _support(kind), sizes, tensors, load, model, _unread(source)
    )


def _unread(source: ModelSource) -> Mapping[str, Sequence[str]] | None:
    found = unread_in(source)
    if found is None:
        return None
    return {
        "weights": [*found.weights, *found.ahead],
        "config": found.settings,
        "generation_config": ignored_settings(source.generation_config),
    }


def _files(source: FileSource) -> dict[str, int]:
    sizes = {file.path.name: file.size for file in source.open_files()}
    return dict(sorted(sizes.items(), key=lambda item: natural_order(item[0])))


def _tensors(source: FileSource) -> tuple[TensorReport, ...]:
    tensors: list[TensorReport] = []
    for name in sorted(source.names(), key=natural_order):
        file, entry = source.locate(name)
        tensors.append(
            TensorReport(
                name=name,
                type=str(entry),
                dtype=str(entry.dtype or entry.tag),
                shape=entry.shape,
                nbytes=entry.nbytes,
                file=file.path.name,
                id=f"{base_param_id(name):032x}",
            )
        )
    return tuple(tensors)


def _archive_report(path: Path) -> CheckpointReport:
    # Only types are asked for: an archive of many gigabytes is described at once.
    archive = open_archive(path)
    try:
        types = {name: archive.type_of(name) for name in archive.names()}
    finally:
        archive.close()
    tensors = tuple(
        TensorReport(
            name=name,
            type=str(type),
            dtype=str(type.dtype),
            shape=type.shape,
            nbytes=type.nbytes,
            file=path.name,
            id=f"{base_param_id(name):032x}",
        )
        for name, type in types.items()
    )
    return CheckpointReport(path, None, "", {path.name: path.stat().st_size}, tensors)


def _support(kind: str) -> str:
    try:
        plugin = manager().model_plugin(kind)
    except GptrsError:
        return "no installed plugin loads this kind"
    record = manager().record(ModelPlugin, plugin.name)
    return f"loaded by {record.distribution} {record.version}"
