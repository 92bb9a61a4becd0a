"""Uses of every functional, one module a family, discovered automatically."""

import importlib
import pkgutil

from gptrs_conformance.functional_use import Use

ALL_USES: list[Use] = []
"""Every use, family by family."""

for _module in pkgutil.iter_modules(__path__):
    ALL_USES.extend(importlib.import_module(f"{__name__}.{_module.name}").USES)
