"""The checks of the kit above the level of single ops, one module a group."""

import importlib
import pkgutil

from gptrs_conformance.check import Check

ALL_CHECKS: list[Check] = []
"""Every check, group by group."""

for _module in pkgutil.iter_modules(__path__):
    ALL_CHECKS.extend(importlib.import_module(f"{__name__}.{_module.name}").CHECKS)
