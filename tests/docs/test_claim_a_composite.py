"""The recipe for a backend whose library has a functional whole: one entry of its table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import doc_examples
import gptrs
from gptrs import functionals as F
from gptrs.backend.op_table import OpTable
from gptrs.functionals.dispatch.registry import composite_names
from gptrs.ir.ops.custom_call import CustomCall
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs_backend_ref.table import Kernel

RECIPE = Path(doc_examples.__file__).parents[1] / "docs" / "recipes" / "add_a_backend.md"
PIECE = re.compile(r"```python no-run\n(?P<code>@TABLE\.composite.*?)```", re.DOTALL)


class Claiming(RefBackend):
    """The reference with the kernel of the recipe."""

    def __init__(self) -> None:
        self.calls: list[CustomCall] = []
        table: OpTable[Kernel] = TABLE.changed({})
        found = PIECE.search(RECIPE.read_text(encoding="utf-8"))
        assert found is not None
        assert len(found["code"].splitlines()) <= 10
        scope = {"TABLE": table, "np": np}
        exec(found["code"], scope)
        self.table = table
        super().__init__(table)

    def claim(self, op, operands, results):
        call = self.table.claim(op, operands, results)
        self.calls += [call] if isinstance(call, CustomCall) else []
        return call


@pytest.mark.parametrize("axis", [-1, 0])
def test_the_recipe_computes_softmax(axis: int) -> None:
    backend = Claiming()
    x = np.random.default_rng(1).standard_normal((3, 4), np.float32)
    with gptrs.use_backend(backend):
        found = gptrs.jit(lambda x: F.softmax(x, axis))(gptrs.tensor(x)).numpy()
    with gptrs.use_backend("ref"):
        np.testing.assert_allclose(found, F.softmax(gptrs.tensor(x), axis).numpy(), rtol=1e-6)
    assert [call.target for call in backend.calls] == ["ref.softmax.v1"]
    assert backend.calls[0].attrs["axis"] == axis


def test_the_page_about_claims_names_every_composite() -> None:
    text = RECIPE.with_name("fuse_a_functional.md").read_text(encoding="utf-8")
    listed = text[text.index("These functionals are composites:") : text.index("A functional of")]
    assert set(re.findall(r"`(\w+)`", listed)) == set(composite_names())
