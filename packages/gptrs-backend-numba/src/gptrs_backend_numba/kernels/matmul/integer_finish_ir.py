"""The epilogue of integer products in LLVM vector code: sums become scaled floats, or codes again.

LLVM unrolls such loops into single numbers where it cannot tell the result from scales and biases,
and tests for it in each row where it can.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from gptrs_backend_numba.codegen.inlining import named_intrinsic, types
from gptrs_backend_numba.codegen.machine import call_llvm
from gptrs_backend_numba.codegen.vector_ir import (
    FEATURES,
    FUSED,
    I8,
    I16,
    I32,
    VECTOR,
    WIDTH,
    ZERO,
    VectorEmitter,
    number,
    splat,
    words,
)

_WORDS = ir.VectorType(I32, WIDTH)
_NARROW = ir.VectorType(I8, WIDTH)
MAGIC = 3 << 22
"""Added to f32 of less than 2^22 it rounds them: the lowest bits are those of the integer."""
_SIDE_BY_SIDE = 2
"""Vectors of a row that are finished together."""
_HAS_MASKS = WIDTH == 16
"""Whether parts of vectors are loaded and stored in one instruction, bytes among them."""
_PAIR = ir.VectorType(I16, 2 * WIDTH)
_HAS_PACKS = "avx512bw" in FEATURES if WIDTH == 16 else WIDTH == 8
"""Whether there are instructions that narrow two vectors of integers to one, and saturate."""
_PACKS = "avx512.{}.512" if WIDTH == 16 else "avx2.{}"
_FITS = 2.0**30
"""Least quotient that may not be rounded to 32 bits; those of networks are far below."""


@cache
def finish_rows(scales: int, biased: bool, activation: str, divides: bool, codes: str):
    """Intrinsic: write results of rows of sums; return how many columns are done.

    Those are all with AVX-512, else whole vectors of columns. `scales` is 0 without a scale, 1 for
    one of all columns, 2 for one of each; `activation` is "none", "relu" or "relu6"; `codes` is
    "si8", "ui8", or "" for results of f32.

    Arguments: the address of the sums, si32, whole vectors that may be read, and the elements from
    one row to the next; of the result, and the bytes from one row to the next; the rows; the
    columns; the addresses of the scale and the bias of the first column; as f32 the one scale of
    all, the step of codes and its reciprocal, the zero point, the least and the largest code.
    """
    name = f"finish_rows_{scales}_{biased:d}_{activation}_{divides:d}_{codes}"

    @named_intrinsic(name)
    def finished(
        typing_context, sums, step, out, out_step, rows, width, scale, bias, factor, unit, inverse,
        middle, least, most,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            emitter = _Finish(scales, biased, activation, divides, codes)
            return emitter.emit(builder, arguments)

        return types.int64(*[types.int64] * 8, *[types.float32] * 6), generate

    return finished


class _Finish:
    """Emits the code of one kind of results."""

    def __init__(self, scales, biased, activation, divides, codes):
        self._scales, self._biased = scales, biased
        self._activation, self._divides, self._codes = activation, divides, codes

    def emit(self, builder, arguments):
        """Emit groups of vectors of columns, then single ones, then the mask of the rest."""
        sums, step, out, out_step, rows, width, scale, bias, *numbers = arguments
        emit = VectorEmitter(builder)
        sums, out, scale, bias = (emit.pointer(each) for each in (sums, out, scale, bias))
        numbers = [emit.splat(each) for each in numbers]
        memory = (sums, step, out, out_step, rows, scale, bias, numbers)

        def columns(first, vectors, mask=None):
            self._columns(emit, memory, first, vectors, mask)
            return []

        group = _SIDE_BY_SIDE * WIDTH
        done = number(0)
        for vectors, size in ((_SIDE_BY_SIDE, group), (1, WIDTH)):
            left = builder.sub(width, done)
            whole = builder.mul(builder.sdiv(left, number(size)), number(size))
            before = done

            def body(k, _, vectors=vectors, before=before):
                return columns(builder.add(before, k), vectors)

            emit.loop(whole, size, [], body)
            done = builder.add(done, whole)
        if not _HAS_MASKS:
            return done
        rest = builder.trunc(builder.sub(width, done), I32)
        undefined = ir.Constant(_WORDS, ir.Undefined)
        single = builder.insert_element(undefined, rest, ir.Constant(I32, 0))
        wanted = builder.shuffle_vector(single, undefined, words(0))
        lanes = ir.Constant(_WORDS, list(range(WIDTH)))
        mask = builder.icmp_signed("<", lanes, wanted)
        with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(I32, 0))):
            columns(done, 1, mask)
        return width

    def _columns(self, emit, memory, first, vectors, mask):
        """Emit all rows of some vectors of columns."""
        scale, bias, numbers = memory[5:]
        b = emit.builder
        operands = []
        for v in range(vectors):
            factor, shift = (
                self._loaded(emit, emit.moved(each, (first, 4), 4 * WIDTH * v), mask)
                if wanted
                else None
                for each, wanted in ((scale, self._scales == 2), (bias, self._biased))
            )
            operands.append((numbers[0] if self._scales == 1 else factor, shift))
        if not self._codes or not (self._scales or self._biased or self._divides):
            self._rows(emit, memory, first, operands, mask, True)
            return
        # Where no result can be NaN or too large, codes need half of the instructions.
        usual = self._is_small(emit, operands, numbers)
        with b.if_else(usual) as (small, other):
            with small:
                self._rows(emit, memory, first, operands, mask, True)
            with other:
                self._rows(emit, memory, first, operands, mask, False)

    def _is_small(self, emit, operands, numbers):
        """Return whether no sum of 32 bits becomes a quotient of `_FITS` or more, or NaN."""
        b, small = emit.builder, None
        for factor, shift in operands:
            most = splat(2.0**31)
            most = most if factor is None else b.fmul(_absolute(b, factor), most)
            most = most if shift is None else b.fadd(most, _absolute(b, shift))
            most = b.fmul(most, _absolute(b, numbers[2])) if self._divides else most
            fits = b.fcmp_ordered("<", most, splat(_FITS))
            small = fits if small is None else b.and_(small, fits)
        return call_llvm(b, f"llvm.vector.reduce.and.v{WIDTH}i1", ir.IntType(1), [small])

    def _rows(self, emit, memory, first, operands, mask, small):
        """Emit the loop over rows; `operands` are the scale and the bias of each vector."""
        sums, step, out, out_step, rows, _, _, numbers = memory
        b, size = emit.builder, 1 if self._codes else 4
        packs = bool(self._codes) and small and len(operands) == 2 and _HAS_PACKS
        # Without a scale sums are not bounded, so that they may not be rounded to 32 bits.
        packs = packs and bool(self._scales or self._biased or self._divides)

        def row(_, state):
            source, target = state
            values = []
            for v, (factor, shift) in enumerate(operands):
                value = emit.load(emit.moved(source, 4 * WIDTH * v), _WORDS, 4)
                x = self._scaled(b, value, factor, shift, small)
                if packs:
                    values.append(_rounded(b, self._quotient(emit, x, numbers, small)))
                else:
                    values.append(self._code(emit, x, numbers, small) if self._codes else x)
            if packs:
                values = [_packed(b, values, numbers, self._codes)]
            elif self._codes and _HAS_MASKS:
                # An instruction that narrows words into memory takes three times as long as one
                # that narrows them in registers (Zen 4), but LLVM would use it.
                target, *values = emit.in_order([target, *values])
            if self._codes and len(values) == 2:
                values = [b.shuffle_vector(*values, _lanes(2 * WIDTH))]
            for v, value in enumerate(values):
                self._store(emit, value, emit.moved(target, size * WIDTH * v), mask)
            return [emit.moved(source, (step, 4)), emit.moved(target, (out_step, 1))]

        emit.loop(rows, 1, [emit.moved(sums, (first, 4)), emit.moved(out, (first, size))], row)

    def _loaded(self, emit, pointer, mask):
        if mask is None:
            return emit.load(pointer, VECTOR, 4)
        name = f"llvm.masked.load.v{WIDTH}f32.p0"
        return call_llvm(emit.builder, name, VECTOR, [pointer, ir.Constant(I32, 4), mask, ZERO])

    def _store(self, emit, value, pointer, mask):
        b = emit.builder
        if mask is None:
            b.store(value, b.bitcast(pointer, ir.PointerType(value.type)), 1)
            return
        name = f"llvm.masked.store.v{WIDTH}{'i8' if self._codes else 'f32'}.p0"
        call_llvm(b, name, ir.VoidType(), [value, pointer, ir.Constant(I32, 1), mask])

    def _scaled(self, b, sums, factor, shift, small):
        """Return a vector of results; each step is rounded as in `finish_row`."""
        x = b.sitofp(sums, VECTOR)
        if factor is not None:
            x = b.fmul(x, factor)
        if shift is not None:
            x = b.fadd(x, shift)
        if small and self._codes and self._activation == "relu6":
            return _clamped(b, x, ZERO, splat(6.0), ("nnan", "nsz"))
        for name, limit in {"none": (), "relu": _RELU, "relu6": _RELU6}[self._activation]:
            x = call_llvm(b, f"llvm.{name}.v{WIDTH}f32", VECTOR, [x, splat(limit)])
        return x

    def _quotient(self, emit, x, numbers, small):
        """Return results divided by the step of codes, if they are."""
        b = emit.builder
        _, step, inverse, *_ = numbers
        if not self._divides:
            return x
        if not FUSED:
            return b.fdiv(x, step)
        # A division takes as long as all the rest. The quotient is that of the reciprocal,
        # mended by what is left over (Markstein 1990).
        quotient = b.fmul(x, inverse)
        if not small:
            quotient = _clamped(b, quotient, splat(-1024.0), splat(1024.0))
        rest = emit.multiply_add(b.fneg(quotient), step, x)
        return emit.multiply_add(rest, inverse, quotient)

    def _code(self, emit, x, numbers, small):
        """Return a vector of codes."""
        b = emit.builder
        middle, least, most = numbers[3:]
        quotient = self._quotient(emit, x, numbers, small)
        # The limits are integers: clamping first changes nothing, and lets the code be read off the
        # bits of a sum.
        flags = ("nnan", "nsz") if small else ()
        near = _clamped(b, quotient, b.fsub(least, middle), b.fsub(most, middle), flags)
        bits = b.bitcast(b.fadd(near, splat(float(MAGIC))), _WORDS)
        code = b.trunc(b.add(bits, b.fptosi(middle, _WORDS)), _NARROW)
        if small:
            return code
        is_number = b.fcmp_ordered("ord", x, x)
        return b.select(is_number, code, ir.Constant(_NARROW, [0] * WIDTH))


_RELU = (("maximum", 0.0),)
_RELU6 = (*_RELU, ("minimum", 6.0))


def _lanes(count):
    return ir.VectorType(I32, count)(list(range(count)))


def _absolute(b, x):
    return call_llvm(b, f"llvm.fabs.v{WIDTH}f32", VECTOR, [x])


def _clamped(b, x, least, most, flags=()):
    """Return vectors within limits, `least` for NaN: an instruction for each limit."""
    x = b.select(b.fcmp_ordered(">", x, least, flags=flags), x, least, flags=flags)
    return b.select(b.fcmp_ordered("<", x, most, flags=flags), x, most, flags=flags)


def _rounded(b, x):
    """Return floats of less than 2^31 rounded to even, as words, in one instruction."""
    if WIDTH == 16:
        rest = [words(0), ir.Constant(I16, -1), ir.Constant(I32, 4)]  # all lanes, as they are told
        return call_llvm(b, "llvm.x86.avx512.mask.cvtps2dq.512", _WORDS, [x, *rest])
    return call_llvm(b, "llvm.x86.avx.cvt.ps2dq.256", _WORDS, [x])


def _packed(b, values, numbers, codes):
    """Return two vectors of words, plus a zero point, as codes within limits.

    Saturation at 16 bits, then at 8, replaces limits of each vector: 5 instructions instead of 12.
    """
    middle, least, most = (_twice(b, b.fptosi(each, _WORDS)) for each in numbers[3:])
    pair = call_llvm(b, f"llvm.x86.{_PACKS.format('packssdw')}", _PAIR, values)
    pair = call_llvm(b, f"llvm.sadd.sat.v{2 * WIDTH}i16", _PAIR, [pair, b.trunc(middle, _PAIR)])
    name = "packsswb" if codes == "si8" else "packuswb"
    wide = ir.VectorType(I8, 4 * WIDTH)
    fours = call_llvm(b, f"llvm.x86.{_PACKS.format(name)}", wide, [pair, pair])
    # In each 128 bits lie four codes of the first vector, then four of the second.
    count = WIDTH // 4
    order = [4 * lane + side for side in (0, 1) for lane in range(count)]
    fours = b.bitcast(fours, ir.VectorType(I32, WIDTH))
    fours = b.shuffle_vector(fours, fours, ir.VectorType(I32, len(order))(order))
    result = b.bitcast(fours, ir.VectorType(I8, 2 * WIDTH))
    compare = b.icmp_signed if codes == "si8" else b.icmp_unsigned
    for direction, limit in ((">", least), ("<", most)):
        bound = b.trunc(limit, result.type)
        result = b.select(compare(direction, result, bound), result, bound)
    return result


def _twice(b, x):
    """Return a vector of words followed by itself."""
    return b.shuffle_vector(x, x, _lanes(2 * WIDTH))
