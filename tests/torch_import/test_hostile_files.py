"""Mutated `.pt2` files: a one-line error of ours, or a result; nothing else ever comes out."""

from __future__ import annotations

import random
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.errors import GptrsError  # noqa: E402

pytestmark = pytest.mark.long


class Net(nn.Module):
    """Layers with windows, shapes and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.conv(x)))
        return self.out(torch.max_pool2d(y, 2).flatten(1)).softmax(-1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = {0: torch.export.Dim("batch", min=1, max=16)}
        x = torch.randn(2, 2, 6, 6)
        torch.export.save(torch.export.export(Net().eval(), (x,), dynamic_shapes=(batch,)), path)
    return path


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return `data` with bytes changed, cut out, doubled or exchanged."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        if not made:
            return b""
        place = dice.randrange(len(made))
        match dice.randrange(5):
            case 0:
                made[place] = dice.randrange(256)
            case 1:
                made[place] = dice.choice(b"0129{}[],\"'-")
            case 2:
                del made[place : place + dice.randrange(1, 9)]
            case 3:
                made[place:place] = made[place : place + dice.randrange(1, 20)]
            case _:
                other = dice.randrange(len(made))
                made[place], made[other] = made[other], made[place]
    return bytes(made)


def entry_mutated(path: Path, made: Path, dice: random.Random) -> None:
    """Write the archive with one of its descriptions, or the whole file, mutated."""
    if dice.random() < 0.3:
        made.write_bytes(mutated(path.read_bytes(), dice))
        return
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        names = [name for name in old.namelist() if name.endswith(".json")]
        chosen = dice.choice(names)
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, mutated(data, dice) if name == chosen else data)


@pytest.mark.parametrize(
    "count", [40, pytest.param(300, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_nothing_but_our_errors_comes_out(sound: Path, tmp_path: Path, count: int) -> None:
    dice, read = random.Random(count), 0
    x = torch.randn(2, 2, 6, 6)
    said: list[str] = []
    for _ in range(count):
        entry_mutated(sound, tmp_path / "mutated.pt2", dice)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about what a mutation made
                gptrs_torch.load(tmp_path / "mutated.pt2", "ref")(x)
            read += 1
        except GptrsError as error:
            said.append(error.message)
    assert not any("\n" in message for message in said)
    assert read, "some mutations change nothing that matters"
