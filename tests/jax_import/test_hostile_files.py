"""Mutated modules: a one-line error of ours, or a result; crashes of MLIR stay outside."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="these tests read modules of JAX")

import gptrs_backend_jax  # noqa: E402
from gptrs.errors import GptrsError, ModelError  # noqa: E402
from gptrs_backend_jax.stablehlo.reading import child, document  # noqa: E402

X = np.ones((3, 4), np.float32)


def function(x: Any) -> Any:
    """Return results of operations with regions, indices and constants."""
    order = jax.numpy.argsort(x, 1)
    _, totals = jax.lax.scan(lambda c, row: (c + row, c), x[0], x)
    return jax.nn.softmax(x @ x.T), order, totals


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return `data` with bytes changed, cut out, or the end cut off."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 2, 5))):
        place = dice.randrange(len(made))
        match dice.randrange(4):
            case 0 | 1:
                made[place] = dice.randrange(256)
            case 2:
                del made[place : place + dice.randrange(1, 9)]
            case _:
                made = made[:place] or made
    return bytes(made)


@pytest.fixture(scope="module")
def forked() -> Callable[[Path, str], int | None]:
    """What reads a file in a process that has imported JAX: to import it takes most of the time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", child.__name__])

    def run(source: Path, folder: str) -> int | None:
        process = context.Process(target=child.main, args=(str(source), folder))
        process.start()
        process.join(document._SECONDS)
        return process.exitcode

    return run


@pytest.mark.parametrize("form", ["bytecode", "text"])
@pytest.mark.parametrize(
    "count", [4, pytest.param(20, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
def test_nothing_but_our_errors_comes_out(
    tmp_path: Path,
    form: str,
    count: int,
    forked: Callable[[Path, str], int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(document, "_run", forked)
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(X)
    text = str(exported.mlir_module()).encode()
    sound: bytes = exported.mlir_module_serialized if form == "bytecode" else text
    dice = random.Random(count)
    said: list[str] = []
    for number in range(count):
        path = tmp_path / f"{number}.stablehlo"
        path.write_bytes(mutated(sound, dice))
        try:
            gptrs_backend_jax.load(path, "ref")(X)
        except GptrsError as error:
            said.append(error.message)
    assert said
    assert not any("\n" in message or len(message) > 600 for message in said)


def test_a_parser_that_crashes_takes_only_its_own_process(tmp_path: Path) -> None:
    path = tmp_path / "deep.mlir"
    depth = 200_000
    path.write_text("module {" * depth + "}" * depth)
    with pytest.raises(ModelError, match=r"deep.mlir` is (damaged|not read)"):
        gptrs_backend_jax.load(path, "ref")


def test_a_constant_that_says_to_be_enormous_is_never_written_out(tmp_path: Path) -> None:
    path = tmp_path / "huge.mlir"
    path.write_text(
        "module { func.func @main() -> tensor<1099511627776xf32> {"
        " %0 = stablehlo.constant dense<1.0> : tensor<1099511627776xf32>"
        " return %0 : tensor<1099511627776xf32> } }"
    )
    module = gptrs_backend_jax.load(path, "ref")
    assert "f32[1099511627776]" in str(module.program())


@pytest.mark.exhaustive
def test_calls_that_double_each_time_are_bounded(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(25)]
    functions = [
        f"func.func private @{name}(%x: tensor<f32>) -> tensor<f32> {{"
        f" %a = func.call @{after}(%x) : (tensor<f32>) -> tensor<f32>"
        f" %b = func.call @{after}(%a) : (tensor<f32>) -> tensor<f32> return %b : tensor<f32> }}"
        for name, after in zip(["main", *names], [*names, "last"], strict=True)
    ]
    functions[0] = functions[0].replace("private ", "")
    last = (
        "func.func private @last(%x: tensor<f32>) -> tensor<f32> {"
        " %a = stablehlo.add %x, %x : tensor<f32> return %a : tensor<f32> }"
    )
    path = tmp_path / "bomb.mlir"
    path.write_text("module {" + "\n".join([*functions, last]) + "}")
    with pytest.raises(GptrsError, match="more than 200000 operations"):
        gptrs_backend_jax.load(path, "ref")(np.float32(1))
