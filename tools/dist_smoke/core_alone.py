"""Core alone reads and prints programs, and says what is missing when one is to be run."""

from __future__ import annotations

import gptrs
from gptrs import functionals as F
from gptrs.ir import parse_program, print_program

TEXT = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  %0 = neg %x : f32[2]\n  return %0\n}\n"

assert print_program(parse_program(TEXT)) == TEXT
total = F.sum(gptrs.tensor([1.0, 2.0]))
try:
    total.item()
except gptrs.errors.BackendError as error:
    assert "no backend is available" in str(error), error
    assert "gptrs-backend-numba" in str(error), error
else:
    raise SystemExit("there is a backend")

for name, package in (("load_model", "gptrs-runtime"), ("dumping", "gptrs-observe")):
    try:
        getattr(gptrs, name)
    except gptrs.errors.MissingLibraryError as error:
        assert f"`gptrs.{name}` is part of {package}" in str(error), error
        assert package in (error.hint or ""), error.hint
    else:
        raise SystemExit(f"{package} is there")
