"""PTIR, the portable tensor IR: types, ops, programs, and their text and JSON forms.

>>> program = parse_program(text)
>>> verify(program)
>>> print_program(program)
>>> parse_json(print_json(program))

Importing this package registers every op of `gptrs.ir.ops`; a new op is a class decorated with
`gptrs.ir.op.op`.
"""

from gptrs.ir import dtypes, ops
from gptrs.ir.attributes import Dictionary, FunctionName
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import DType
from gptrs.ir.json_form import parse_json, print_json, program_to_json
from gptrs.ir.literal_text import Literal, Scalar
from gptrs.ir.op import OPS, Op, Signature
from gptrs.ir.parser import parse_program
from gptrs.ir.printer import print_program
from gptrs.ir.program import VERSION, Function, Instruction, Program, Region, Value, verify
from gptrs.ir.specialize import bind, specialize, symbols
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType

__all__ = [
    "dtypes",
    "DType",
    "TensorType",
    "Literal",
    "Scalar",
    "Dictionary",
    "FunctionName",
    "ops",
    "OPS",
    "Op",
    "Signature",
    "VERSION",
    "Value",
    "Instruction",
    "Region",
    "Function",
    "Program",
    "Builder",
    "parse_program",
    "print_program",
    "parse_json",
    "print_json",
    "program_to_json",
    "verify",
    "SymbolicDim",
    "bind",
    "specialize",
    "symbols",
]
