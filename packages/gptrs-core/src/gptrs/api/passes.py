"""Names for passes of the optimizer and of backends, and for rewrites.

`Pass`, `RewritePass` and `FusionPass` run in the pipeline; `find_calls` yields each `FoundCall` of
a `pattern`: the form of a functional's calls in programs, derived from each `pattern_example`. A
`FusionPass` has a `ProgramPattern` and a `Replacement`. A `rewrite` is a function with a pattern of
`calls`, `Operand`, `Operands` and `Attribute`; it takes a `Match` and an `Emitter`, and returns
values or `Declined`. `Rewrite` is its type.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
