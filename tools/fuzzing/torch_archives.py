"""Archives of torch.export: their descriptions mutated, as text and as JSON, or the whole file."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

import gptrs_torch
from fuzzing import byte_mutations
from fuzzing.file_formats import FileFormat
from fuzzing.import_formats import run_on_ones
from fuzzing.judge import Flaw
from gptrs.backend.contract import Backend
from gptrs.errors import GptrsError
from gptrs_conformance.program_generator.dice import Dice
from gptrs_torch.model import read_program

RUNS = 0.01
"""The share of archives that are run after they are read: torch takes long for it."""
_ZIP_WORDS = (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"../x", b"models/", b".json", b"{}")


class Counter(nn.Module):
    """Results in a dict, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        """Return the rows of x scaled, and how often this was called."""
        self.calls.add_(1)
        return {"y": x.reshape(-1, 8) * scale, "calls": self.calls + x.shape[0]}


def _prepare_archive(folder: Path, backend: Backend) -> Sequence[bytes]:
    image = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(image, nn.Flatten(), nn.Linear(16, 3), nn.Softmax(-1)).eval()
    batch = {0: torch.export.Dim("batch", min=1, max=16)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            _archived(net, (torch.randn(2, 2, 6, 6),), (batch,)),
            _archived(Counter(), (torch.randn(3, 16), 0.5), (batch, None)),
        ]
        for data in found:  # imports what torch needs to run them
            (folder / "sound.pt2").write_bytes(data)
            run_on_ones(gptrs_torch.load(folder / "sound.pt2", "ref"))
    return found


def _archived(model: object, given: tuple[object, ...], sizes: tuple[object, ...]) -> bytes:
    stream = io.BytesIO()
    program = torch.export.export(model, given, dynamic_shapes=sizes)
    torch.export.save(program, stream)
    return stream.getvalue()


def _mutate_archive(dice: Dice, data: bytes, other: bytes) -> bytes:
    """Change the whole file, or a description in it, as text or as JSON."""
    if dice.chance(0.01):
        return data
    if dice.chance(0.2):
        return byte_mutations.mutated(dice, data, other, _ZIP_WORDS)
    ours, theirs = _entries(data), _entries(other)
    described = [name for name in ours if name.endswith(".json")]
    programs = [name for name in described if "/models/" in name]
    chosen = dice.pick(programs if dice.chance(0.7) else described)
    changed = byte_mutations.mutated_json(dice, ours[chosen], theirs.get(chosen, b"{}"))
    return _packed({**ours, chosen: changed})


def _entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(entries: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _read_archive(path: Path, dice: Dice) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what a mutation made
        try:
            read_program(path)
            if dice.chance(RUNS):
                run_on_ones(gptrs_torch.load(path, "ref"))
        except GptrsError as error:
            if "SyntaxError" in str(error):  # a name that is more than one could have been code
                raise Flaw(f"torch made no Python of the file: {error}") from error
            raise


FORMAT = FileFormat("model.pt2", _prepare_archive, _mutate_archive, _read_archive)
