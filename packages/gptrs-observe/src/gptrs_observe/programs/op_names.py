"""Names of ops and kernels by what they compute: `linear`, not `custom_call`."""

from __future__ import annotations

import re

from gptrs.ir.op import Op
from gptrs.ir.ops.custom_call import CustomCall

_TARGET = re.compile(r"(?:[A-Za-z_]\w*\.){2}(?P<name>\w+)(?:\.\w+)*\.v\d+")
"""`VENDOR.BACKEND.NAME.DTYPE.vVERSION`: how targets of custom calls are called."""


def target_name(target: str) -> str:
    """Return the name in the target of a custom call, or the target itself."""
    found = _TARGET.fullmatch(target)
    return target if found is None else found["name"]


def kernel_name(kernel: str) -> str:
    """Return the name of a kernel, ops joined by ` + `, with the names of targets in it."""
    return " + ".join(target_name(part) for part in kernel.split(" + "))


def op_title(op: Op) -> str:
    """Return the name of an op: of a composite the functional, of a custom call its target.

    What a custom call fuses is told by its attributes `bias`, `activation` and `residual`:
    `linear + bias + gelu_tanh`.
    """
    if not isinstance(op, CustomCall):
        return op.title
    given = dict(op.attrs.items)
    flags = [key for key in ("bias", "residual") if given.get(key) is True]
    activation = given.get("activation")
    if isinstance(activation, str) and activation != "none":
        flags.insert("bias" in flags, activation)
    return " + ".join([target_name(op.target), *flags])
