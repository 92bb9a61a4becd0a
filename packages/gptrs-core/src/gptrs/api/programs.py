"""Names for programs: their parts, building, reading and transforming them, trace events.

- Parts: `Program`, `Function`, `Region`, `Instruction`, `Value`, `Op`, `Signature`, `TensorType`,
  `DType`, `SymbolicDim`, `Literal`, `Scalar`, `Dictionary`, `FunctionName`; the modules `ops` (one
  module a family), `dtypes` and `random_constants` (the numbers that define the random ops).
- `Builder`, `parse_program`, `print_program`, `parse_json`, `print_json`, `verify`, `symbols`,
  `bind`, `specialize`, `run_program`.
- Trace sinks: `ExecutionTraceSink` and its events `CompileStart`, `PassEvent`, `CompileEnd`,
  `WeightsBound`, `RunStart`, `RunEnd`, `KernelEvent`, `ImplementationChoice`.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
