"""A model as one function of tensors, captured for other formats and runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gptrs.capture.tensor import Tensor
from gptrs.ir.dtypes import DType
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Computation:
    """A function of tensors: `inputs` in order, each with its element type and sizes.

    A size that is a name is free, and the same wherever it occurs. `fixed` are names whose sizes
    must be chosen before, with the size that is taken if nothing says another one.
    """

    function: Callable[..., dict[str, Tensor]]
    inputs: Mapping[str, tuple[DType, tuple[int | str, ...]]]
    fixed: Mapping[str, int]
