"""The optimizer: passes and rewrites that simplify a program and preserve its results.

Names, listed in `__init__.pyi`, are imported on first use: a program that an earlier process
optimized needs no passes.
"""

from __future__ import annotations

from gptrs.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
