"""Ops that map floats to integers of few bits and back, affinely and bit for bit.

Quantized weights of all formats are these ops over parameters: codes (`unpack_bits` of their
bytes), a scale for each group (itself the result of a `dequantize` where a format has two levels of
them), and a zero point (`dequantize`) or a bias (`dequantize_affine`).
"""

from __future__ import annotations

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op, op
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType

QUANTIZED = tuple(dtype for dtype in dtypes.INTEGERS if dtype.bits <= 32)
"""The element types of quantized tensors."""


class Quantization(Op):
    """Common base of the quantization ops: where each scale and each zero point applies."""

    dtype: DType
    axis: int | None
    group_size: int | None

    def require_float(self, dtype: DType, *operands: TensorType) -> None:
        """ProgramError unless `dtype` is a float type."""
        if not dtype.is_float:
            raise self.error(f"needs a float type in place of {dtype}", *operands)

    def require_quantized(self, dtype: DType, *operands: TensorType) -> None:
        """ProgramError unless `dtype` is an integer type of at most 32 bits."""
        if dtype not in QUANTIZED:
            reason = f"needs an integer type of at most 32 bits in place of {dtype}"
            raise self.error(reason, *operands)

    def require_parameters(self, x: TensorType, scale: TensorType, zero_point: TensorType) -> None:
        """ProgramError unless a scale and a zero point of these types fit `x`."""
        self.require_float(scale.dtype, x, scale, zero_point)
        if zero_point.dtype is not dtypes.si32:
            raise self.error("needs a zero point of si32", x, scale, zero_point)
        self.require_parameter_shapes(x, scale, zero_point, "a scale and a zero point")

    def require_parameter_shapes(
        self, x: TensorType, scale: TensorType, offset: TensorType, what: str
    ) -> None:
        """Raise ProgramError unless each is for the whole tensor or has the shape that `x`
        requires.
        """
        wanted = self.parameter_shape(x)
        if scale.shape not in ((), wanted) or offset.shape not in ((), wanted):
            shapes = f"{list(wanted)} or []" if wanted else "[]"
            raise self.error(f"needs {what} of {shapes}", x, scale, offset)

    def parameter_shape(self, x: TensorType) -> Shape:
        """Return the shape of the parameters of all groups of `x`; ProgramError if none."""
        if self.axis is None:
            if self.group_size is not None:
                raise self.error("needs an axis for its groups", x)
            return ()
        if not 0 <= self.axis < x.rank:
            raise self.error(f"has no axis {self.axis}", x)
        size = x.shape[self.axis]
        if self.group_size is None:
            return (size,)
        if self.group_size < 1 or size % self.group_size != 0:
            reason = f"cannot divide axis {self.axis} of {size} into groups of {self.group_size}"
            raise self.error(reason, x)
        return (*x.shape[: self.axis], size // self.group_size, *x.shape[self.axis + 1 :])


@op("quantize")
class Quantize(Quantization):
    """`clamp(round_nearest_even(x / scale) + zero_point, least, greatest)` as `dtype`.

    `x` and `scale` are floats, each of any float type, `zero_point` is `si32`, and `dtype` is an
    integer type of at most 32 bits, whose limits are `least` and `greatest`. The scale and zero
    point of an element: without `axis` the only one (rank 0); with `axis` the one at its index
    along it (vectors of `x.shape[axis]`); with `axis` and `group_size` the one of its group (the
    shape of `x` with `axis` divided by `group_size`, which must divide it, and index `i //
    group_size` along it). In any case, either may have rank 0, and then applies to the whole
    tensor.

    The division is done in f32, in f64 if `x` or `scale` is f64, and rounded to nearest even; so
    is the quotient to an integer. NaN counts as 0 there, as in `cast`. The sum is exact, as of
    unbounded integers, so that infinities and large quotients saturate. `scale` may be negative or
    0: `x / 0` is an infinity or, of 0, NaN.
    """

    dtype: DType
    axis: int | None = None
    group_size: int | None = None

    def infer(self, x: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
        """`dtype` of the shape of `x`."""
        self.require_kind(x, "float")
        self.require_quantized(self.dtype, x)
        self.require_parameters(x, scale, zero_point)
        return x.with_dtype(self.dtype)


@op("dequantize")
class Dequantize(Quantization):
    """`(q - zero_point) * scale` as the float type `dtype`.

    `q` is an integer tensor of at most 32 bits; scale and zero point are as in `quantize`. The
    difference is exact, as of unbounded integers, and then rounded to nearest even to f32, to f64
    if `scale` or `dtype` is f64 (up to 2^24 and 2^53 that changes nothing). The product is computed
    in the same type and then cast to `dtype`, each step rounded to nearest even.
    """

    dtype: DType
    axis: int | None = None
    group_size: int | None = None

    def infer(self, q: TensorType, scale: TensorType, zero_point: TensorType) -> TensorType:
        """`dtype` of the shape of `q`."""
        self.require_quantized(q.dtype, q)
        self.require_float(self.dtype, q)
        self.require_parameters(q, scale, zero_point)
        return q.with_dtype(self.dtype)


@op("dequantize_affine")
class DequantizeAffine(Quantization):
    """`q * scale + bias` as the float type `dtype`.

    `q` is an integer tensor of at most 32 bits, `scale` and `bias` are floats, each of any float
    type; they apply to elements as in `quantize`. All is computed in f32, in f64 if `scale`, `bias`
    or `dtype` is f64: `q` is rounded to nearest even to that type, then the product, then the sum,
    which is cast to `dtype` in the end.
    """

    dtype: DType
    axis: int | None = None
    group_size: int | None = None

    def infer(self, q: TensorType, scale: TensorType, bias: TensorType) -> TensorType:
        """`dtype` of the shape of `q`."""
        self.require_quantized(q.dtype, q)
        for dtype in (self.dtype, scale.dtype, bias.dtype):
            self.require_float(dtype, q, scale, bias)
        self.require_parameter_shapes(q, scale, bias, "a scale and a bias")
        return q.with_dtype(self.dtype)


@op("requantize")
class Requantize(Quantization):
    """`quantize(dequantize(q, scale_in, zero_point_in), scale_out, zero_point_out)`.

    The intermediate value is f32, or f64 if one of the scales is f64; the steps are those of the
    two ops. `q` and `dtype` are integers of at most 32 bits. `axis` and `group_size` apply to both
    pairs of scale and zero point.
    """

    dtype: DType
    axis: int | None = None
    group_size: int | None = None

    def infer(
        self,
        q: TensorType,
        scale_in: TensorType,
        zero_point_in: TensorType,
        scale_out: TensorType,
        zero_point_out: TensorType,
    ) -> TensorType:
        """`dtype` of the shape of `q`."""
        self.require_quantized(q.dtype, q)
        self.require_quantized(self.dtype, q)
        self.require_parameters(q, scale_in, zero_point_in)
        self.require_parameters(q, scale_out, zero_point_out)
        return q.with_dtype(self.dtype)


@op("unpack_bits")
class UnpackBits(Op):
    """The unsigned integers of `bits` bits that the bytes of `packed` hold along `axis`, as `ui8`.

    The bytes along the axis are one stream of bits, from the least significant bit of the first
    byte to the most significant one of the last. Integer `i` is bits `i * bits` to
    `(i + 1) * bits - 1` of it, its least significant bit first, even across two bytes: with 4 bits
    the low half of byte 0, its high half, the low half of byte 1, ... `bits` is from 1 to 8, and
    the integers must fill the stream: `8 * size` is a multiple of it.
    """

    bits: int
    axis: int

    def infer(self, packed: TensorType) -> TensorType:
        """`ui8`, with `axis` of `8 * size / bits`."""
        if packed.dtype is not dtypes.ui8:
            raise self.error("needs bytes, ui8", packed)
        if not 1 <= self.bits <= 8:
            raise self.error(f"cannot unpack integers of {self.bits} bits, only of 1 to 8", packed)
        if not 0 <= self.axis < packed.rank:
            raise self.error(f"has no axis {self.axis}", packed)
        stream = 8 * packed.shape[self.axis]
        if stream % self.bits != 0:
            reason = f"cannot divide {stream} bits on axis {self.axis} into integers of {self.bits}"
            raise self.error(reason, packed)
        before, after = packed.shape[: self.axis], packed.shape[self.axis + 1 :]
        return packed.with_shape((*before, stream // self.bits, *after))


def computing_dtype(*floats: DType) -> DType:
    """Return the type that the quantization ops compute in: f64 if one of `floats` is, else f32."""
    return dtypes.f64 if dtypes.f64 in floats else dtypes.f32
