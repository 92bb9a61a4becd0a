"""What the environment says about compilation counts when it changes, in a running process too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture import execute
from gptrs_backend_numba import backend
from gptrs_backend_numba.codegen import kernel_pack
from gptrs_backend_numba.compiling import workers


def test_every_variable_of_the_backend_is_a_setting():
    sources = Path(backend.__file__).parent.rglob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in sources]
    named = {name for text in texts for name in re.findall(r'"(GPTRS_NUMBA_\w+)"', text)}
    elsewhere = {workers.VARIABLE, kernel_pack.VARIABLE}  # who compiles, or did: no matter
    assert named - elsewhere == set(backend.SETTINGS)


@pytest.mark.parametrize(
    ("name", "other"), [("GPTRS_NUMBA_FUSE", "0"), ("GPTRS_NUMBA_CONV", "direct")]
)
def test_a_program_is_compiled_anew_when_a_setting_changes(
    name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = gptrs.jit(lambda x: F.softmax(x * 2))
    execute.program_cache.clear()
    with gptrs.use_backend(backend.create(1)):
        for value, compiled in (("auto", 1), (other, 2), ("auto", 2)):
            monkeypatch.setenv(name, value)
            x = gptrs.tensor([[1.0, 2.0]])
            assert F.softmax(x * 2).numpy().tobytes() == step(x).numpy().tobytes()
            assert (execute.program_cache.statistics.misses, step.compiled) == (compiled, compiled)
    assert execute.program_cache.statistics.misses_by_reason["backend"] == 1
