"""The seed of functionals with random numbers."""

from __future__ import annotations

from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

SEED = TensorType(dtypes.ui64, (2,))
"""Return the key and the counter of `rng_uniform`."""


def require_seed(name: str, seed: Tensor | None) -> Tensor:
    """`seed` if it is one, else UsageError."""
    if seed is None or seed.type != SEED:
        found = "none" if seed is None else f"`{seed.type}`"
        raise UsageError(
            f"`{name}` needs a seed of `{SEED}`, got {found}",
            hint="`gptrs.tensor([key, counter], dtypes.ui64)` makes one",
        )
    return seed
