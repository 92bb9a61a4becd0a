"""Programs written as ONNX graphs: a writer for each op, one module a family as in `gptrs.ir.ops`.

Importing this package registers the writers.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
