"""The choice of the next token from logits: penalties, temperature, truncation, and sampling. The
functionals take logits [..., V]; apply them in this order: penalties, `top_k_filter`,
`apply_temperature`, `top_p_filter` or `min_p_filter`, then `sample` or `greedy`.
"""

from __future__ import annotations

import math

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.activation import softmax
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import cast
from gptrs.functionals.operands import (
    expand,
    require_float,
    require_integer,
    require_shape,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType

# The seed of functionals with random numbers.


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


LEAST_FRACTION = 2.0**-25
"""Replaces a drawn 0, whose logarithm is infinite: half of the smallest nonzero draw in f32."""


@functional
def greedy(logits: Tensor) -> Tensor:
    """si64 [...]: the token with the largest logit, of equal ones the smallest.

    `logits` is float [..., V], V >= 1. A NaN counts as the largest.
    """
    _require_logits("greedy", logits)
    return primitives.argmax(logits, -1)


@functional
def sample(logits: Tensor, seed: Tensor) -> Tensor:
    """si64 [...]: a token for each row, drawn with the probabilities `softmax(logits)`.

    `argmax(logits - log(-log u))` for u uniform in (0, 1), one for each logit (Gumbel 1954).
    `logits` is float [..., V], V >= 1; 16-bit ones are widened to f32. `seed` is ui64[2], the key
    and the counter of `rng_uniform`: the same seed gives the same tokens. A logit of -inf is never
    drawn, unless all of its row are: then token 0 is.
    """
    _require_logits("sample", logits)
    require_seed("sample", seed)
    wide = cast(logits, logits.dtype.accumulator)
    drawn = primitives.rng_uniform(seed, wide.shape, wide.dtype)
    # `rng_uniform` includes 0, and log(-log 0) would give that token -inf, however likely it is.
    positive = primitives.maximum(drawn, splat(LEAST_FRACTION, wide.dtype, wide.shape))
    waiting = primitives.neg(primitives.log(positive))
    return primitives.argmax(primitives.sub(wide, primitives.log(waiting)), -1)


@functional
def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """`(logits - max) / temperature` in each row: flat above 1, sharp below.

    The softmax is taken of `logits / temperature`. Since the largest logit becomes 0, a tiny
    temperature sends the others to -inf, rather than several to +inf. `logits` is float [..., V], V
    >= 1, computed in at least f32 and rounded once. UsageError unless 0 < temperature < inf; for 0
    there is `greedy`.
    """
    _require_logits("apply_temperature", logits)
    if not 0 < temperature < math.inf:
        raise UsageError(
            f"`apply_temperature` needs a finite temperature above 0, got {temperature}",
            hint="use `greedy` for a temperature of 0",
        )
    below = _below_the_largest(logits)
    # At least the smallest normal f32: a temperature rounded to 0 would give 0 / 0 = NaN.
    divisor = max(temperature, 2.0**-126)
    scaled = primitives.div(below, splat(divisor, below.dtype, below.shape))
    return cast(scaled, logits.dtype)


@functional
def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """The k largest logits of each row, the others replaced by -inf (Fan et al. 2018).

    Among equal logits the smaller token is kept first, so that exactly k remain; all if there are
    at most k. `logits` is float [..., V], V >= 1. UsageError for k below 1.
    """
    _require_logits("top_k_filter", logits)
    if k < 1:
        raise UsageError(f"`top_k_filter` needs a k of at least 1, got {k}")
    size = logits.shape[-1]
    values, tokens = primitives.top_k(logits, min(k, size), -1, indices_dtype=dtypes.si64)
    return primitives.scatter_reduce(_hidden(logits), tokens, values, -1, "replace")


@functional
def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """The fewest largest logits whose probabilities reach p, -inf for the rest (Holtzman 2019).

    In order of descending logits, then ascending tokens, a token is kept if the probabilities
    before it sum to less than p; the largest is always kept, and with p = 1 all are. `logits` is
    float [..., V], V >= 1; probabilities are summed in at least f32. UsageError unless 0 < p <= 1.
    """
    _require_logits("top_p_filter", logits)
    if not 0 < p <= 1:
        raise UsageError(f"`top_p_filter` needs a p above 0 and at most 1, got {p}")
    if p == 1:
        return logits
    tokens = primitives.iota(logits.shape, -1, dtypes.si64)
    # Stable, hence ties go to the smaller token on every backend.
    values, order = primitives.sort([logits, tokens], -1, descending=True)
    probabilities = softmax(cast(values, logits.dtype.accumulator), -1)
    # Exclusive, so that the token that reaches p is itself kept (Holtzman et al. 2019).
    before = primitives.cumulative(probabilities, "sum", -1, exclusive=True)
    # p must stay above 0 after rounding: the largest logit, with 0 before it, is always kept.
    bound = splat(max(p, 2.0**-126), before.dtype, before.shape)
    kept = primitives.select(primitives.compare(before, bound, "lt"), values, _hidden(values))
    return primitives.scatter_reduce(_hidden(logits), order, kept, -1, "replace")


@functional
def min_p_filter(logits: Tensor, p: float) -> Tensor:
    """Logits at least p times as probable as the largest of the row, -inf for the rest.

    Nguyen et al. 2024. `exp(logit - max) >= p`, computed in at least f32; the largest is always
    kept. `logits` is float [..., V], V >= 1. UsageError unless 0 <= p <= 1.
    """
    _require_logits("min_p_filter", logits)
    if not 0 <= p <= 1:
        raise UsageError(f"`min_p_filter` needs a p in [0, 1], got {p}")
    ratio = primitives.exp(_below_the_largest(logits))
    kept = primitives.compare(ratio, splat(p, ratio.dtype, ratio.shape), "ge")
    return primitives.select(kept, logits, _hidden(logits))


@functional
def token_counts(tokens: Tensor, size: int, mask: Tensor | None = None) -> Tensor:
    """si64 [..., size]: how often each token occurs in each row of `tokens` [..., N].

    `tokens` is an integer tensor; where `mask`, i1 of the same shape, is false, a token does not
    count, such as padding. A token outside [0, size) raises ExecutionError when it runs, even if it
    does not count. UsageError for what does not fit.
    """
    require_integer("token_counts", tokens=tokens)
    if tokens.rank == 0 or size < 1:
        raise UsageError(
            "`token_counts` needs `tokens` of rank 1 or more and a size of at least 1,"
            f" got `{tokens.type}` and {size}"
        )
    if mask is None:
        ones = splat(1, dtypes.si64, tokens.shape)
    elif mask.dtype.is_bool and mask.shape == tokens.shape:
        ones = primitives.cast(mask, dtypes.si64)
    else:
        wanted = tokens.type.with_dtype(dtypes.i1)
        raise UsageError(f"`token_counts` needs a mask of `{wanted}`, got `{mask.type}`")
    zeros = splat(0, dtypes.si64, (*tokens.shape[:-1], size))
    return primitives.scatter_reduce(zeros, tokens, ones, -1, "add")


@functional
def repetition_penalty(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """Logits of tokens that occurred, those above 0 divided by `penalty`, the others multiplied.

    Keskar et al. 2019 (CTRL). `logits` is float [..., V], `counts` an integer tensor of that shape
    from `token_counts`. Above 1 it discourages, below 1 it encourages. UsageError unless
    0 < penalty < inf, and for other counts.
    """
    _require_counts("repetition_penalty", logits, counts)
    if not 0 < penalty < math.inf:
        raise UsageError(f"`repetition_penalty` needs a finite penalty above 0, got {penalty}")
    factor = splat(penalty, logits.dtype, logits.shape)
    negative = primitives.compare(logits, splat(0, logits.dtype, logits.shape), "lt")
    lowered = primitives.select(
        negative, primitives.mul(logits, factor), primitives.div(logits, factor)
    )
    return primitives.select(_occurred(counts), lowered, logits)


@functional
def presence_penalty(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """`logits - penalty` for the tokens that occurred, `logits` for the others.

    `logits` is float [..., V], `counts` an integer tensor of that shape from `token_counts`;
    a `penalty` below 0 encourages. UsageError for one that is not finite, and for other counts.
    """
    _require_counts("presence_penalty", logits, counts)
    occurred = primitives.cast(_occurred(counts), logits.dtype)
    return _lowered("presence_penalty", logits, occurred, penalty)


@functional
def frequency_penalty(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """`logits - penalty * counts`: tokens are discouraged by how often they occurred.

    `logits` is float [..., V], `counts` an integer tensor of that shape from `token_counts`;
    a `penalty` below 0 encourages. UsageError for one that is not finite, and for other counts.
    """
    _require_counts("frequency_penalty", logits, counts)
    return _lowered("frequency_penalty", logits, primitives.cast(counts, logits.dtype), penalty)


def _lowered(name: str, logits: Tensor, times: Tensor, penalty: float) -> Tensor:
    if not math.isfinite(penalty):
        raise UsageError(f"`{name}` needs a finite penalty, got {penalty}")
    amount = primitives.mul(times, splat(penalty, logits.dtype, logits.shape))
    return primitives.sub(logits, amount)


def _occurred(counts: Tensor) -> Tensor:
    return primitives.compare(counts, splat(0, counts.dtype, counts.shape), "gt")


def _below_the_largest(logits: Tensor) -> Tensor:
    """`logits - max` of each row, in at least f32."""
    wide = cast(logits, logits.dtype.accumulator)
    largest = primitives.reduce(wide, "max", [-1], keepdims=True)
    return primitives.sub(wide, expand(largest, wide.shape))


def _hidden(logits: Tensor) -> Tensor:
    return splat(-math.inf, logits.dtype, logits.shape)


def _require_logits(name: str, logits: Tensor) -> None:
    require_float(name, logits=logits)
    if logits.dtype.bits < 16:
        raise UsageError(f"`{name}` needs logits of f16, bf16, f32 or f64, got `{logits.type}`")
    if logits.rank == 0 or logits.shape[-1] == 0:
        raise UsageError(f"`{name}` needs logits [..., V] with V >= 1, got `{logits.type}`")


def _require_counts(name: str, logits: Tensor, counts: Tensor) -> None:
    _require_logits(name, logits)
    require_integer(name, counts=counts)
    require_shape(name, "counts", counts, logits.shape)


# Dropout: elements set to zero at random while a model is trained.


@functional
def dropout(
    x: Tensor, probability: float, seed: Tensor | None = None, training: bool = False
) -> Tensor:
    """x itself, or while `training` 0 with `probability`, else `x / (1 - probability)`.

    Srivastava et al. 2014, in the inverted form, which keeps the mean. x is of a float type and any
    shape. `seed` is ui64[2], the key and the counter of `rng_uniform`: element i is kept if number
    i, drawn in f32, is at least `probability`, so the same seed gives the same choice on every
    backend, and each call needs its own seed. Dropped elements are 0 even if x is NaN or infinite.
    UsageError for a probability outside [0, 1), and for training without a seed.
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
