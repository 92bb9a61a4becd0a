"""Values that may be absent: which they are is known when the graph is converted."""

from __future__ import annotations

import numpy as np

from gptrs_onnx.node import Node
from gptrs_onnx.registry import converts
from gptrs_onnx.values import Value


@converts("OptionalHasElement", as_is=True)
def has_element(node: Node, x: Value | None = None) -> Value:
    """Return whether there is a value."""
    del node
    return np.asarray(x is not None)


@converts("Optional", "OptionalGetElement", as_is=True)
def element(node: Node, x: Value | None = None) -> Value | None:
    """Return the value; ModelError where one is needed and absent."""
    if x is None and node.op_type == "OptionalGetElement":
        node.malformed("needs a value that is absent")
    return x
