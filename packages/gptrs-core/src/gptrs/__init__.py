"""gptrs: portable tensor programs, and the models written in them, run by plugin backends.

Its names, listed in `__init__.pyi`, are imported on first use, so that `import gptrs` is light.
"""

from __future__ import annotations

import sys

from gptrs import wiring as wiring  # fills the ports
from gptrs.lazy_names import attach

if sys.platform == "win32":
    raise ImportError(
        "gptrs runs on Linux and macOS; on Windows install it in the Linux subsystem (WSL 2)"
    )

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__, __file__, "; math is in `gptrs.functionals`, layers in `gptrs.nn`"
)
