"""The checks above single ops pass on every backend, and leave nothing out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest

from gptrs.backend.contract import Backend
from gptrs.functionals import implementations
from gptrs.ir import OPS, parse_program
from gptrs_conformance.check import Check
from gptrs_conformance.checks import graphs, models, programs
from gptrs_conformance.graph import Graph
from gptrs_conformance.kit import checks_of, run_check
from gptrs_conformance.uses import ALL_USES

COVERING = "generated programs of every op and element type"
"""Op cases and other programs have the same on backends that compile, where it takes a minute."""


PART = 3
"""Where each check is compiled, one of so many of the further checks of a subject is run, such as
the further uses of a functional: they compile much alike. `make fuzz` runs all of them."""


def _subjects() -> dict[str, list[Check]]:
    """The checks of each subject; a subject has a name without what tells its checks apart."""
    found: defaultdict[str, list[Check]] = defaultdict(list)
    for check in checks_of("full"):
        if check.name != COVERING:
            found[re.sub(r" \(.*| \d.*", "", check.name)].append(check)
    return found


SUBJECTS = _subjects()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_reference_passes_every_check(reference: Backend, subject: str) -> None:
    require_passed(reference, SUBJECTS[subject])


@pytest.mark.long
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_first_check_of_a_subject(compiling: Backend, subject: str) -> None:
    require_passed(compiling, SUBJECTS[subject][:1])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("fresh_memory_shows")
@pytest.mark.parametrize("subject", [name for name, of_it in SUBJECTS.items() if of_it[PART - 1 :]])
def test_some_further_checks_of_a_subject(compiling: Backend, subject: str) -> None:
    require_passed(compiling, SUBJECTS[subject][PART - 1 :: PART])


def require_passed(backend: Backend, checks: Sequence[Check]) -> None:
    """Fail with a line for each check that fails, or is refused on the reference."""
    outcomes = [(check.name, run_check(backend, check)) for check in checks]
    accepted = ("pass",) if backend.name == "ref" else ("pass", "refused")
    wrong = [
        f"{name}: {outcome.status}, {outcome.reason}"
        for name, outcome in outcomes
        if outcome.status not in accepted
    ]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    if all(outcome.status == "refused" for _, outcome in outcomes):
        pytest.skip(f"`{backend.name}` refuses an op of each")


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
