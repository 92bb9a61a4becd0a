"""Torch writes the names in a program into Python source that it runs: files give names only."""

from __future__ import annotations

import builtins
import io
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs import strict_json  # noqa: E402
from gptrs.errors import GptrsError, ModelError, UnsupportedError  # noqa: E402

pytestmark = pytest.mark.long
PROGRAM = "models/model.json"
CODE = "bias=ran.append(1)"
"""What makes a default of a parameter that tells whether it was evaluated."""


class Scaled(nn.Module):
    """Takes a constant and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Any, scale: float, *, bias: Any) -> Any:
        return {"y.1": self.layer(x) * scale + bias}


@cache
def entries() -> dict[str, bytes]:
    """Return the parts of the archive of a small model."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (torch.randn(3, 8), 0.5), {"bias": torch.zeros(4)}
        torch.export.save(torch.export.export(Scaled(), *given), stream)
    with zipfile.ZipFile(stream) as packed:
        return {name.partition("/")[2]: packed.read(name) for name in packed.namelist()}


def changed(folder: Path, change: Callable[[Any], Any]) -> Path:
    """Write the archive with another description."""
    path = folder / "model.pt2"
    program = json.dumps(change(json.loads(entries()[PROGRAM]))).encode()
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in {**entries(), PROGRAM: program}.items():
            packed.writestr(f"archive/{name}", data)
    return path


def renamed(old: str, new: str) -> Callable[[Any], Any]:
    """Return what puts one text in the place of another."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {change(key): change(each) for key, each in value.items()}
        if isinstance(value, list):
            return [change(each) for each in value]
        return new if value == old else value

    return change


def with_arguments(change: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return what changes how the arguments nest; torch then takes their names from there."""

    def whole(program: Any) -> Any:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        tree = json.loads(signature["in_spec"])
        change(tree[1]["children_spec"])
        signature.update(in_spec=json.dumps(tree), forward_arg_names=[])
        return program

    return whole


def with_a_call(target: str, key: str) -> Callable[[Any], Any]:
    """Return what begins a program with a call that has a keyword argument."""
    one = {"name": key, "arg": {"as_int": 1}, "kind": 2}
    node = {"target": target, "inputs": [one], "outputs": [{"as_none": True}],
            "metadata": {}, "is_hop_single_tensor_return": None, "name": "first"}  # fmt: skip

    def whole(program: Any) -> Any:
        program["graph_module"]["graph"]["nodes"].insert(0, node)
        return program

    return whole


def nameless(program: Any) -> Any:
    """Take the name of the constant from it, and call another input as torch then calls it."""
    (place,) = (
        place
        for place, spec in enumerate(program["graph_module"]["signature"]["input_specs"])
        if "constant_input" in spec
    )
    return renamed("bias", f"arg{place}")(renamed("scale", "")(program))


def keyword(tree: Any) -> None:
    tree[1]["context"] = json.dumps([CODE])


def enumeration(tree: Any) -> None:
    tree[0]["context"] = r'{"__en\u0075m__": 1, "fqn": "this:c", "name": "x"}'


NO_NAME = "is not a name of an input, a node or an argument"
NO_OPERATOR = "is not from ATen, and is not converted"
CASES = {
    "input": (renamed("bias", CODE), NO_NAME),
    "constant": (renamed("scale", CODE), NO_NAME),
    "node": (renamed("mul", f"mul;{CODE};mul"), NO_NAME),
    "weight": (renamed("layer.bias", 'layer.b", ran.append(1)) or ("'), "not a name of a tensor"),
    "keyword": (with_arguments(keyword), NO_NAME),
    "argument of a call": (with_a_call("_operator.getitem", f"a={CODE}, b"), NO_NAME),
    "twice": (renamed("bias", "x"), "two inputs have the same name: .*x, scale, x"),
    "twice by a constant": (renamed("scale", "x"), "two inputs have the same name: .*x, x"),
    "twice without a name": (nameless, r"two inputs have the same name: .*(arg\d), \1"),
    "enumeration": (with_arguments(enumeration), "keys that are not plain values"),
    "method": (with_a_call("torch.ops.aten.__dict__.clear", "a"), NO_OPERATOR),
    "file": (with_a_call("torch.ops.aten.from_file.default", "a"), NO_OPERATOR),
}


@pytest.mark.parametrize("case", CASES)
def test_what_torch_would_run_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    monkeypatch.setattr(builtins, "ran", ran, raising=False)
    change, message = CASES[case]
    with pytest.raises(GptrsError, match=message) as caught:
        gptrs_torch.load(changed(tmp_path, change), "ref")
    assert isinstance(caught.value, ModelError | UnsupportedError)
    assert not ran
    assert "this" not in sys.modules


def test_other_names_are_read(tmp_path: Path) -> None:
    """Letters of any language, numbers of layers, and any keys of results."""
    change = renamed("scale", "größe")
    model = gptrs_torch.load(changed(tmp_path, change), "ref")
    assert (*model.inputs, *model.outputs) == ("x", "bias", "y.1")


def test_a_description_of_too_many_values_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packed archive of some kilobytes can hold millions of empty objects."""
    monkeypatch.setattr(strict_json, "MAX_VALUES", 1000)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(f"archive/{PROGRAM}", f'{{"a": [{"{}," * 1001}{{}}]}}')
    with pytest.raises(ModelError, match="has more than 1000 values"):
        gptrs_torch.load(path, "ref")
