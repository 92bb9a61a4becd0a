"""Dropout: elements set to zero at random while a model is trained."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import require_float, splat
from gptrs.functionals.seed import require_seed
from gptrs.ir import dtypes


@functional
def dropout(
    x: Tensor, probability: float, seed: Tensor | None = None, training: bool = False
) -> Tensor:
    """x itself, or while `training` 0 with `probability`, else `x / (1 - probability)`.

    Srivastava et al. 2014, in the inverted form, which keeps the mean. x is of a float type and any
    shape. `seed` is ui64[2], the key and the counter of `rng_uniform`: element i is kept where
    number i, drawn in f32, is at least `probability`, so that one seed gives the same choice on
    every backend and each call needs a seed of its own. What is dropped is 0 even where x is NaN
    or infinite. UsageError for a probability outside [0, 1), and for training without a seed.
    """
    require_float("dropout", x=x)
    if not 0 <= probability < 1:
        raise UsageError(f"`dropout` needs a probability in [0, 1), got {probability}")
    if not training:
        return x
    drawn = primitives.rng_uniform(require_seed("dropout", seed), x.shape)
    kept = primitives.compare(drawn, splat(probability, dtypes.f32, x.shape), "ge")
    scaled = primitives.mul(x, splat(1 / (1 - probability), x.dtype, x.shape))
    return primitives.select(kept, scaled, splat(0, x.dtype, x.shape))
