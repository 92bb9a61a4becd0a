"""Kernels as JSON: the name of the template and its bindings, for another process to compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any, cast

import numpy as np

from gptrs_backend_numba.codegen.kernel import KernelFunction, SpecializedKernel, qualified_name


def spec_of(value: object) -> object:
    """Return JSON for a specialized kernel, or for one of its bindings.

    TypeError for what another process cannot find by its name.
    """
    if isinstance(value, SpecializedKernel):
        bindings = {name: spec_of(bound) for name, bound in value.bindings.items()}
        return {"kernel": _named(value.template, value.template.function), "bindings": bindings}
    if isinstance(value, np.generic):
        scalar = np.asarray(cast("np.generic[Any]", value))
        return {"scalar": [scalar.dtype.str, scalar.tobytes().hex()]}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, tuple):
        return [spec_of(each) for each in cast("tuple[object, ...]", value)]
    return {"object": _named(value, value)}


def kernel_of(spec: object) -> SpecializedKernel:
    """Return the kernel that `spec_of` wrote down; the errors of what it names are passed on."""
    kernel = _value_of(spec)
    if not isinstance(kernel, SpecializedKernel):
        raise TypeError(f"a `{type(kernel).__name__}` is no kernel")
    return kernel


def _value_of(spec: object) -> object:
    if isinstance(spec, list):
        return tuple(map(_value_of, cast("list[object]", spec)))
    if not isinstance(spec, dict):
        return spec
    fields = cast("Mapping[str, Any]", spec)
    if "kernel" in fields:
        template = _found(fields["kernel"])
        if not isinstance(template, KernelFunction):
            raise TypeError(f"`{fields['kernel']}` is no kernel")
        bindings = fields["bindings"].items()
        return template.specialize(**{name: _value_of(bound) for name, bound in bindings})
    if "scalar" in fields:
        dtype, content = fields["scalar"]
        return np.frombuffer(bytes.fromhex(content), np.dtype(dtype))[0]
    if "float" in fields:
        return float.fromhex(fields["float"])
    return _found(fields["object"])


def _named(value: object, function: object) -> list[str]:
    """Return where `value` is found; its name is that of `function`."""
    module = str(getattr(function, "__module__", ""))
    names = qualified_name(function).removeprefix(f"{module}.")
    place = [module, names]
    try:
        found = _found(place)
    except (ImportError, AttributeError):
        found = None
    if found is not value:
        raise TypeError(f"`{module}.{names}` is not found by its name")
    return place


def _found(place: list[str]) -> object:
    module, names = place
    get: Callable[[object, str], object] = getattr
    return reduce(get, names.split("."), cast("object", import_module(module)))
