"""An importer's table of converters: what functions take by their signatures, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.api import ModelError, ProgramError, UnsupportedError
from gptrs.api.importers import Converters, Node, size_tensor
from gptrs.api.models import Tensor

converts = Converters("a stranger's importer", "strange.listed()")
converts.rows({"plus": F.add})


@dataclass
class Strange(Node):
    """A node of a format that is a name and a few attributes."""

    name: str
    attributes: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"`strange.{self.name}`"

    def operand(self, index: int, kind: str, value: object) -> object:
        return gptrs.tensor(value) if kind == "Tensor" else value

    def __call__(self, *operands: object, **keywords: object) -> Any:
        converter = converts.get(self.name)
        return converts.refuse(self) if converter is None else converter(self, operands, keywords)


@converts("elu", "old_elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@converts.each({"largest": F.max, "least": F.min})
def extreme(function, node: Node, x: Tensor, *, axes: list[int], keep: bool = False) -> Tensor:
    assert isinstance(node, Strange)
    return function(x, axes, keep)


@converts("kinds")
def kinds(first: int, *rest: Sequence[float], word: str | None = None) -> tuple[object, ...]:
    return first, *rest, word


@converts("fails")
def fails(x: Tensor) -> Tensor:
    return F.reshape(x, [7])


X = np.float32([-1.0, 2.0])


def test_operands_and_attributes_come_as_the_signature_says() -> None:
    assert Strange("plus")(X, X).tolist() == [-2.0, 4.0]
    assert Strange("elu")(X).tolist() == F.elu(gptrs.tensor(X)).tolist()
    assert Strange("old_elu", {"alpha": 0.5})(X).tolist() == F.elu(gptrs.tensor(X), 0.5).tolist()
    assert Strange("largest", {"axes": [0]})(X).item() == 2.0
    assert Strange("least", {"axes": (0,), "keep": 1})(X).tolist() == [-1.0]
    assert Strange("kinds", {"word": "a"})(1, 2, 3) == (1, 2, 3, "a")
    assert Strange("kinds")(1, word="b") == (1, "b")


@pytest.mark.parametrize(
    ("node", "operands", "kind", "message"),
    [
        (Strange("largest"), (X,), ModelError, "lacks the attribute `axes`"),
        (
            Strange("elu", {"alpha": 1}),
            (X,),
            ModelError,
            "has an attribute `alpha` that is not of type float",
        ),
        (
            Strange("least", {"axes": 0}),
            (X,),
            ModelError,
            r"an attribute `axes` that is not of type list\[int\]",
        ),
        (Strange("least", {"axes": [0.5]}), (X,), ModelError, "`axes` that is not of type list"),
        (Strange("elu"), (X, X), ModelError, "cannot be converted: elu.. takes 1 positional"),
        (
            Strange("swirl"),
            (X,),
            UnsupportedError,
            "`strange.swirl` is an operator that a stranger's importer does not convert",
        ),
    ],
)
def test_an_error_names_the_node(node, operands, kind, message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        node(*operands)
    assert "`strange." in str(raised.value)


def test_an_error_of_a_functional_notes_the_node() -> None:
    with pytest.raises(ProgramError) as raised:
        Strange("fails")(X)
    assert raised.value.__notes__ == ["while converting `strange.fails`"]


def test_an_operator_is_converted_once() -> None:
    with pytest.raises(AssertionError, match="elu is converted twice"):
        converts("elu")(elu)


def test_a_free_size_is_computed() -> None:
    program = gptrs.jit(lambda x: size_tensor(x.shape[0]), dynamic={"x": ("n",)}).lower(
        gptrs.tensor(X)
    )
    assert "reduce" in str(program)
    assert size_tensor(3).item() == 3
