"""Bad texts; a `§` stands before the character that the error must point at."""

from __future__ import annotations

import pytest

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import parse_program
from gptrs.ir.parser import MAX_SPLAT_BYTES


def main(body: str, result: str = "f32[2]") -> str:
    return f"ptir.v0.5\nfunc @main(%x: f32[2], %n: si32[2]) -> {result} {{\n{body}\n}}\n"


def constant(value: str, type_: str = "f32[2]") -> str:
    return main(f"  %0 = constant {{value = {value}}} : {type_}\n  return %0", type_)


TEXTS = [
    # the version line
    ("§", "expected the version line `ptir.v0.5`, found the end of the text"),
    ("// nothing\n§", "expected the version line `ptir.v0.5`, found the end of the text"),
    ("§func @main() -> () {}", "expected the version line `ptir.v0.5`, found `func`"),
    ("§ptir.v0.3\n", "version `ptir.v0.3` is not supported, this release reads `ptir.v0.5`"),
    ("\n\n §ptir.v1\n", "version `ptir.v1` is not supported, this release reads `ptir.v0.5`"),
    # functions
    ("ptir.v0.5\n§", "a program needs a function called `@main`"),
    ("ptir.v0.5\nfunc @f() -> () {\n  return\n}\n§", "a program needs a function called `@main`"),
    (main("  return %x") + "§def", "expected `func`, found `def`"),
    ("ptir.v0.5 func §main", "expected a function name such as `@main`, found `main`"),
    (main("  return %x") + "func §@main() -> () {return}", "function `@main` is defined twice"),
    ("ptir.v0.5 func @main§{", "expected `(`, found `{`"),
    ("ptir.v0.5 func @main(§x", "expected a parameter such as `%x: f32[2]`, found `x`"),
    ("ptir.v0.5 func @main(%x§)", "expected `:` and a type, found `)`"),
    ("ptir.v0.5 func @main(%x: f32[] §%y", "expected `,` or `)`, found `%y`"),
    ("ptir.v0.5 func @main(%x: f32[], §%x: f32[])", "value `%x` is defined twice"),
    ("ptir.v0.5 func @main() §{", "expected `->` and the result type, found `{`"),
    ("ptir.v0.5 func @main() -> f32[]§\n", "expected `{`, found the end of the text"),
    ("ptir.v0.5 func @main() -> () {§", "expected an instruction `%name = op ...` or `return`"),
    ("ptir.v0.5 func @main() -> () { §add", "expected an instruction `%name = op ...` or `return`"),
    ("ptir.v0.5 func @main() -> () { return §", "expected `}`, found the end of the text"),
    # types
    ("ptir.v0.5 func @main(%x: §[2])", "expected a type such as `f32[2, 3]`, found `[`"),
    (
        "ptir.v0.5 func @main(%x: §float[2])",
        "unknown dtype `float`; known dtypes: i1 si4 ui4 si8 ui8 si16 ui16 si32 ui32 si64 ui64"
        " f8e4m3 f8e5m2 bf16 f16 f32 f64 cf32 cf64",
    ),
    ("ptir.v0.5 func @main(%x: f32§)", "expected `[` and the dims of the type, found `)`"),
    ("ptir.v0.5 func @main(%x: f32[§-1])", "expected a dim, a whole number of at most 20 digits"),
    ("ptir.v0.5 func @main(%x: f32[§1.5])", "expected a dim, a whole number of at most 20 digits"),
    (
        f"ptir.v0.5 func @main(%x: f32[§{'1' * 5000}])",
        "expected a dim, a whole number of at most 20 digits or symbols as in `2*?0+1`,"
        f" found `{'1' * 40}...`",
    ),
    ("ptir.v0.5 func @main(%x: f32[2§ 3])", "expected `,` or `]`, found `3`"),
    (
        "ptir.v0.5 func @main(%x: f32[§?N])",
        "expected a dim, a whole number of at most 20 digits or symbols as in `2*?0+1`, found `?`",
    ),
    (f"ptir.v0.5 func @main(%x: f32[{'1,' * 32}§1])", "a type has at most 32 dims"),
    (
        "ptir.v0.5 func @main(%x: §i1[281474976710657])",
        "`i1[281474976710657]` has more than 2^48 elements",
    ),
    (
        "ptir.v0.5 func @main(%x: §f64[281474976710656])",
        "`f64[281474976710656]` takes more than 2^47 bytes",
    ),
    # instructions
    (main("  %0 § tanh"), "expected `=` or `,`, found `tanh`"),
    (main("  %0, §= tanh"), "expected another result such as `%1`, found `=`"),
    (main("  %0 = §%x"), "expected the name of an op, found `%x`"),
    (main("  %0 = §tanhh %x : f32[2]"), "unknown op `tanhh`; did you mean `tanh`?"),
    (main("  %0 = §reduce_sum %x : f32[2]"), "unknown op `reduce_sum`; did you mean `reduce"),
    (main(f"  %0 = §{'q' * 9999} %x : f32[2]"), f"unknown op `{'q' * 40}...`"),
    (main("  %0 = tanh §%y : f32[2]"), "value `%y` is not defined"),
    (main("  %0 = tanh §%0 : f32[2]\n  return %0"), "value `%0` is not defined"),
    (
        main("  %0 = tanh %x : f32[2]\n  §%0 = tanh %x : f32[2]\n  return %0"),
        "value `%0` is defined twice",
    ),
    (main("  §%x = tanh %x : f32[2]\n  return %x"), "value `%x` is defined twice"),
    (
        main("  %0 = tanh §1.0 : f32[2]"),
        "expected an operand, `{` and attributes, or `:` and the result type, found `1.0`",
    ),
    (
        main("  %0 = add %x, §: f32[2]"),
        "expected a value such as `%0`, or a literal such as `f32[] 1.0`, found `:`",
    ),
    (
        main("  %0 = §add %x : f32[2]\n  return %0"),
        "`add` takes 2 operands (lhs, rhs), got 1",
    ),
    (
        main("  %0 = §add %x, %n : f32[2]\n  return %0"),
        "`add` of f32[2], si32[2] needs operands of one element type; `cast` one side",
    ),
    (main("  %0 = tanh %x : §f32[3]"), "`tanh` gives `f32[2]` here, not `f32[3]`"),
    (main("  %0 = tanh %x : (§f16[2])"), "`tanh` gives `f32[2]` here, not `f16[2]`"),
    (
        main("  %0, %1 = tanh %x : (§f32[2], f32[2])"),
        "`tanh` has 1 results, got types for 2",
    ),
    (main("  §%0, %1 = tanh %x : f32[2]"), "`tanh` has 1 results, got names for 2"),
    (main("  %0 = §tanh %x : ()"), "`tanh` has at least one result, `()` is none"),
    (main("  %0 = tanh %x : (f32[2] §f32[2])"), "expected `,` or `)`, found `f32`"),
    # attributes
    (main("  %0 = tanh %x {§= 1}"), "expected the name of an attribute, found `=`"),
    (main("  %0 = tanh %x {axis §1}"), "expected `=`, found `1`"),
    (main("  %0 = tanh %x {axis = 1 §b"), "expected `,` or `}`, found `b`"),
    (main("  %0 = tanh %x {§axis = 1} : f32[2]"), "`tanh` has no attribute `axis`; it has none"),
    (
        main("  %0 = argmax %x {axis = 0, §keep = true} : si64[]"),
        "`argmax` has no attribute `keep`; it has axis, keepdims, dtype",
    ),
    (
        main("  %0 = argmax %x {axis = 0, §axis = 0} : si64[]"),
        "attribute `axis` is given twice",
    ),
    (
        main("  %0 = §argmax %x : si64[]"),
        "`argmax` needs attribute `axis`, an integer of 64 bits",
    ),
    (
        main("  %0 = §reduce %x {axes = [0]} : f32[]"),
        "`reduce` needs attribute `kind`, one of sum, prod, max, min, and, or",
    ),
    (
        main("  %0 = reduce %x {kind = §mean, axes = [0]} : f32[]"),
        "expected one of sum, prod, max, min, and, or, found `mean`",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = §0} : f32[]"),
        "expected a list of at most 1024 integers such as `[0, 1]`, found `0`",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = §splat(0)} : f32[]"),
        "expected a list of at most 1024 integers such as `[0, 1]`, found `splat(...)`",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = §(0)} : f32[]"),
        "expected a list of at most 1024 integers such as `[0, 1]`,"
        " found a group of 1 in parentheses",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = [0], keepdims = §1} : f32[]"),
        "expected `true` or `false`, found `1`",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = [0], out_dtype = §float} : f32[]"),
        "expected one of the dtypes i1, si4, ui4, si8, ui8, si16, ui16, si32, ui32, si64, ui64,"
        " f8e4m3, f8e5m2, bf16, f16, f32, f64, cf32, cf64, found `float`",
    ),
    (
        main("  %0 = §reduce %x {kind = sum, axes = [1]} : f32[]"),
        "`reduce` of f32[2] needs ascending axes in [0, 1), got [1]",
    ),
    (
        main("  %0 = reduce %x {kind = sum, axes = §:"),
        "expected a value such as `1`, `true`, `f32` or `[0, 1]`, found `:`",
    ),
    (main("  %0 = reduce %x {kind = sum, axes = [0 §1"), "expected `,` or `]`, found `1`"),
    (main("  %0 = reduce %x {kind = sum(1 §2"), "expected `)`, found `2`"),
    (constant("[" * 65 + "§["), "brackets are nested deeper than 64"),
    # literals
    (constant("§1.0"), "`f32[2]` needs a list of 2 here, got `1.0`"),
    (constant("§[1.0]"), "`f32[2]` needs a list of 2 here, got a list of 1"),
    (constant("§[]"), "`f32[2]` needs a list of 2 here, got a list of 0"),
    (constant("[[], §[1]]", "f32[2, 0]"), "`f32[2, 0]` needs a list of 0 here, got a list of 1"),
    (
        constant("[[1.0], §(1.0)]", "f32[2, 1]"),
        "`f32[2, 1]` needs a list of 1 here, got a group of 1 in parentheses",
    ),
    (constant("[1.0, §true]"), "expected an element of f32, found `true`"),
    (constant("[1.0, §[1.0]]"), "expected an element of f32, found a list of 1"),
    (constant("[1.0, §1e39]"), "`1e39` is out of the range of f32"),
    (constant("[1.0, §1e999]"), "`1e999` is out of the range of f32"),
    (constant("[1.0, §-1e999]", "f64[2]"), "`-1e999` is out of the range of f64"),
    (constant("[1.0, §inf]", "f8e4m3[2]"), "`inf` is out of the range of f8e4m3"),
    (constant("[1.0, §449]", "f8e4m3[2]").replace("449", "500"), "`500` is out of the range of"),
    (constant(f"[1.0, §0.{'1' * 1000}]"), "a number of more than 1000 digits"),
    (constant("[1, §1.0]", "si32[2]"), "expected a whole number, an element of si32, found `1.0`"),
    (constant("[1, §nan]", "si32[2]"), "expected a whole number, an element of si32, found `nan`"),
    (constant("[1, §8]", "si4[2]"), "`8` is out of the range of si4"),
    (constant("[1, §-1]", "ui8[2]"), "`-1` is out of the range of ui8"),
    (
        constant("[1, §18446744073709551616]", "ui64[2]"),
        "`18446744073709551616` is out of the range of ui64",
    ),
    (constant("[true, §1]", "i1[2]"), "expected `true` or `false`, found `1`"),
    (
        constant("[(1.0, 2.0), §1.0]", "cf32[2]"),
        "expected an element of cf32 such as `(1.0, 0.0)`, found `1.0`",
    ),
    (
        constant("[(1.0, 2.0), §[1.0, 2.0]]", "cf32[2]"),
        "expected an element of cf32 such as `(1.0, 0.0)`, found a list of 2",
    ),
    (constant("[(1.0, §1e39), (1.0, 2.0)]", "cf32[2]"), "`1e39` is out of the range of f32"),
    (constant("splat(§x)"), "expected an element of f32, found `x`"),
    (
        constant("§ones(1)"),
        'expected `hex("...")`, or `splat(x)` for a whole literal, found `ones`',
    ),
    (
        constant("[1.0, §splat(1.0)]"),
        'expected `hex("...")`, or `splat(x)` for a whole literal, found `splat`',
    ),
    (constant("hex(§00)"), "expected hex digits in quotes"),
    (constant('hex(§"0g")'), "expected hex digits in quotes"),
    (constant("hex(§[])"), "expected hex digits in quotes"),
    (constant('hex(§"00")'), "`f32[2]` needs 8 bytes, 16 hex digits, got 2"),
    (constant('splat(hex(§"00"))'), "`f32[]` needs 4 bytes, 8 hex digits, got 2"),
    (constant('hex(§"0002")', "i1[2]"), "an element of i1 has 1 bits a byte"),
    (constant('hex(§"00ff")', "si4[2]"), "an element of si4 has 4 bits a byte"),
    (
        main(f"  %0 = §constant {{value = splat(1)}} : i1[{MAX_SPLAT_BYTES + 1}]"),
        f"the splats of the text exceed {MAX_SPLAT_BYTES} bytes",
    ),
    # results
    (main("  return §%y"), "value `%y` is not defined"),
    (main("  §return"), "`@main` returns 1 values, got 0"),
    (main("  §return %x, %x"), "`@main` returns 1 values, got 2"),
    (main("  return §%n"), "result 0 of `@main` is declared as `f32[2]`, got `si32[2]`"),
    (
        main("  return %x, §%x", "(f32[2], f32[3])"),
        "result 1 of `@main` is declared as `f32[3]`, got `f32[2]`",
    ),
    (main("  return %x §%x"), "expected `}`, found `%x`"),
    # characters
    (main("  return %x\n§;"), "unexpected character `;`"),
    (main("  return %x\n§\x1b"), "unexpected character U+001B"),
    (main("  %0 = tanh %x {a = §-nan}"), "unexpected character `-`"),
    (main('  %0 = tanh %x {a = §"abc}'), 'expected a closing `"` on the same line'),
    (main("  return §% x"), "unexpected character `%`"),
    ("ptir.v0.5\r\nfunc @main() -> () {\r\n  §oops\r\n}\r\n", "expected an instruction"),
]


@pytest.mark.parametrize(("marked", "message"), TEXTS)
def test_position_and_message(marked, message):
    assert marked.count("§") == 1
    before, after = marked.split("§")
    # The blank before a token is not part of it.
    at = len(before) + len(after) - len(after.lstrip(" \n"))
    text = before + after
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    error = caught.value
    assert isinstance(error, ProgramError)
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    assert (error.line, error.column) == (line, column)
    heading = f"line {line}, column {column}: "
    assert str(error).startswith(heading + message)
    assert error.source_line == text.split("\n")[line - 1].rstrip("\r")


def test_shows_the_line_and_a_caret():
    with pytest.raises(ParseError) as caught:
        parse_program("ptir.v0.5\nfunc @main(%x: f33[2]) -> () {")
    assert str(caught.value).split("\n")[1:] == [
        "  func @main(%x: f33[2]) -> () {",
        "                 ^",
    ]


@pytest.mark.parametrize(
    ("line", "at"),
    [("\t" * 5 + "§;", 5), ("\x1b[31m §;", 5), (" " * 300 + "§;", 300), ("§;" + " " * 300, 0)],
)
def test_excerpt_is_short_and_clean(line, at):
    with pytest.raises(ParseError) as caught:
        parse_program("ptir.v0.5\n" + line.replace("§", ""))
    _, shown, caret = str(caught.value).split("\n")
    if "\x1b" not in line:
        assert caught.value.column == at + 1
        assert shown[len(caret) - 1] == ";"
    assert shown.isprintable()
    assert len(shown) <= 110
