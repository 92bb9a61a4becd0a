"""The math that models call: each functional validates, then captures, and can be overridden."""

from gptrs.functionals.activation import gelu, relu, silu, softmax, tanh
from gptrs.functionals.arithmetic import add, div, mul, neg, sub
from gptrs.functionals.attention import attention, causal_mask, update_cache
from gptrs.functionals.embedding import embedding
from gptrs.functionals.layout import arange, cast, concat, reshape, slice_axis, split, transpose
from gptrs.functionals.linear import linear, matmul
from gptrs.functionals.normalization import layer_norm
from gptrs.functionals.registry import functional, implement, implementations, overrides

__all__ = [
    "add",
    "arange",
    "attention",
    "cast",
    "causal_mask",
    "concat",
    "div",
    "embedding",
    "functional",
    "gelu",
    "implement",
    "implementations",
    "layer_norm",
    "linear",
    "matmul",
    "mul",
    "neg",
    "overrides",
    "relu",
    "reshape",
    "silu",
    "slice_axis",
    "softmax",
    "split",
    "sub",
    "tanh",
    "transpose",
    "update_cache",
]
