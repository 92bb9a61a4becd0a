"""Seeded random programs: well typed, running without an error, the same on every machine.

One module per op family emits instructions, `draft` tracks facts about their values, and `programs`
combines them; callers may add steps of their own (`extra_steps`). An op without an emitter in the
module of its family gets the operands of its cases in the kit.
"""

from gptrs_conformance.program_generator import contraction, control_flow, elementwise, layout
from gptrs_conformance.program_generator.draft import EMITTERS
from gptrs_conformance.program_generator.elements import error_limit
from gptrs_conformance.program_generator.programs import (
    disagreement,
    programs_covering,
    random_inputs,
    random_program,
)

__all__ = [
    "EMITTERS",
    "disagreement",
    "error_limit",
    "programs_covering",
    "random_inputs",
    "random_program",
    "contraction",
    "control_flow",
    "elementwise",
    "layout",
]
