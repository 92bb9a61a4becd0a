"""The checks above single ops pass on every backend, and leave nothing out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from gptrs.backend.protocol import Backend
from gptrs.functionals import implementations
from gptrs.ir import OPS, parse_program
from gptrs_conformance.checks import graphs, models, programs
from gptrs_conformance.graph import Graph
from gptrs_conformance.kit import checks_of, run_check
from gptrs_conformance.uses import ALL_USES

COVERING = "generated programs of every op and element type"
"""Op cases and other programs have the same on backends that compile, where it takes a minute."""


SOME, PART = 1, 3
"""Of the checks of one subject, such as a functional, so many are not `exhaustive`; of the others
one of `PART` is run where each is compiled. `make fuzz` runs all of them there."""


def _checks() -> Iterator[pytest.ParameterSet]:
    seen: Counter[str] = Counter()
    for name in (check.name for check in checks_of("full") if check.name != COVERING):
        subject = re.sub(r" \(.*| \d.*", "", name)
        seen[subject] += 1
        slow = seen[subject] > SOME
        left_out = slow and seen[subject] % PART != 0
        yield pytest.param(name, left_out, marks=[pytest.mark.exhaustive] if slow else [], id=name)


@pytest.mark.whole
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize(("name", "left_out"), list(_checks()))
def test_every_check_passes_or_is_refused(backend: Backend, name: str, left_out: bool) -> None:
    if left_out and backend.name != "ref":
        pytest.skip("`make fuzz` runs it: it compiles much like others of its subject")
    (check,) = [check for check in checks_of("full") if check.name == name]
    outcome = run_check(backend, check)
    assert outcome.status != "fail", outcome.reason
    if outcome.status == "refused":
        assert backend.name != "ref"
        pytest.skip(f"`{backend.name}` refuses an op of it")


@pytest.mark.exhaustive
def test_generated_programs_of_every_op_and_type_pass(reference: Backend) -> None:
    (check,) = [check for check in checks_of("full") if check.name == COVERING]
    assert run_check(reference, check).status == "pass"


def test_every_functional_is_checked() -> None:
    assert {use.functional for use in ALL_USES} == set(implementations())


def test_the_graphs_have_what_models_and_the_ir_have() -> None:
    """Regions, calls, and ops of every family that a model uses."""
    found: set[str] = set()
    for module in (graphs, programs):
        for graph in vars(module).values():
            if isinstance(graph, Graph):
                program = parse_program(graph.text)
                for function in program.functions:
                    found.update(step.op.name for step in function.body.walk())
    wanted = "dot_general reduce take extract_patches reduce_window quantize dequantize scan while"
    wanted += " cond call dynamic_update_slice dynamic_slice top_k cumulative concat transpose"
    assert set(wanted.split()) <= found <= set(OPS)


def test_the_model_has_clear_choices() -> None:
    """No two logits of a greedy choice are so close that rounding could decide."""
    ids = models.PROMPT
    for _ in range(32):
        last = np.sort(models.reference(ids)[0, -1])
        assert last[-1] - last[-2] > 1e-2
        ids = np.concatenate([ids, models.reference(ids)[:, -1].argmax(-1)[:, None]], axis=1)
    assert len(set(ids[0, 6:].tolist())) > 3
