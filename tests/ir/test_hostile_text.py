"""Texts made to exhaust time, memory or the stack: one error, at once, or a sound program."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gptrs.errors import GptrsError, ParseError
from gptrs.ir import parse_json, parse_program, print_json, print_program, verify
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.parser import MAX_SPLAT_BYTES
from gptrs.optimizer import optimize

LARGE = 10_000_000
VERSION = "ptir.v0.5\n"
HEAD = VERSION + "func @main(%x: f32[2]) -> f32[2] {\n  %0 = constant {value = "
TYPE = VERSION + "func @main(%x: f32["
RETURNS_X = "(%x: i1[]) -> i1[] {\n  return %x\n}\n"


@contextmanager
def cheap(seconds: float, megabytes: float = 0) -> Iterator[None]:
    """What is inside takes no more time, and if `megabytes` are given, no more memory."""
    if megabytes:
        tracemalloc.start()
    started = time.process_time()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] if megabytes else 0
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < seconds
    assert peak <= megabytes * 2**20


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    "made",
    [
        lambda: "(" * LARGE,
        lambda: "[" * LARGE,
        lambda: "{" * LARGE,
        lambda: "%" * LARGE,
        lambda: "1" * LARGE,
        lambda: HEAD + "[" * LARGE,
        lambda: HEAD + "(" * LARGE,
        lambda: HEAD + "splat(" * (LARGE // 6),
        lambda: HEAD + "1" * LARGE,
        lambda: HEAD + "-1" * (LARGE // 2),
        lambda: HEAD + "{" * LARGE,
        lambda: HEAD + "{a=" * (LARGE // 3),
        lambda: HEAD + '"' + "a" * LARGE,
        lambda: HEAD + "[" + "1," * 300_000 + "]",
        lambda: HEAD + 'hex("' + "0" * LARGE + '")} : f32[2]',
        lambda: VERSION + "func @main" + "(" * LARGE,
        lambda: VERSION + "func @" + "m" * LARGE,
        lambda: VERSION + "func @main(%" + "x" * LARGE + ": f32[2]) {",
        lambda: TYPE + "2," * (LARGE // 2),
        lambda: TYPE + "1" * LARGE,
        lambda: TYPE + "?0+" * (LARGE // 3),
        lambda: TYPE + "?0*" * (LARGE // 3),
        lambda: TYPE + "-1" * (LARGE // 2),
        lambda: TYPE + "?" * LARGE,
        lambda: TYPE + "(" * LARGE,
        lambda: "ptir.v0.5" + "//" * (LARGE // 2),
        lambda: "ptir.v0.5" + "\n" * LARGE + ";",
        lambda: "a" * LARGE,
        lambda: "\0" * LARGE,
        lambda: VERSION + "\0",
        lambda: VERSION + "func @main\0" + RETURNS_X,
        lambda: "\ufeff" + VERSION,
        lambda: VERSION + "\udcff\udc80",
    ],
    ids=range(33),
)
def test_hostile_texts_cost_little(made):
    text = made()  # large: not kept while other tests run
    with cheap(5), pytest.raises(ParseError) as caught:
        parse_program(text)
    assert len(str(caught.value)) < 600
    lines = text.split("\n")
    assert 1 <= caught.value.column <= len(lines[caught.value.line - 1]) + 1


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [HEAD + "[" * LARGE, TYPE + "?0+" * (LARGE // 3), HEAD + "-1" * (LARGE // 2), "(" * LARGE],
)
def test_hostile_texts_take_little_memory(text):
    with cheap(15, megabytes=200), pytest.raises(ParseError):
        parse_program(text)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b'{"a": "\xc3\x28"}', b"\0" * LARGE, b"\x80" * LARGE]
)
def test_bytes_that_are_no_text_are_refused(data):
    with cheap(5), pytest.raises(GptrsError) as caught:
        parse_json(data)
    assert len(str(caught.value)) < 600


def test_splats_share_one_budget():
    half = MAX_SPLAT_BYTES // 4 + 1
    line = "  %{} = constant {{value = splat(0.0)}} : f32[" + str(half // 4) + "]\n"
    body = "".join(line.format(index) for index in range(9))
    with pytest.raises(ParseError, match="the splats of the text exceed") as caught:
        parse_program(f"ptir.v0.5\nfunc @main() -> () {{\n{body}  return\n}}")
    assert caught.value.line > 3


@pytest.mark.long
def test_many_functions_take_linear_time():
    functions = "".join(f"func @f{index}{RETURNS_X}" for index in range(20_000))
    with cheap(12):
        program = parse_program(f"{VERSION}{functions}func @main{RETURNS_X}")
        verify(program)
        optimize(program)
        assert len(print_program(program)) > 500_000


@pytest.mark.long
def test_many_functions_that_call_each_other_take_linear_time():
    """Each calls the one before it where that is allowed, 20 deep."""
    lines = []
    for index in range(4_000):
        body = "%0 = not %x : i1[]"
        if index % 20:
            body = f"%0 = call %x {{function = @f{index - 1}}} : i1[]"
        lines.append(f"func @f{index}(%x: i1[]) -> i1[] {{\n  {body}\n  return %0\n}}\n")
    calls = "".join(f"  %{i} = call %x {{function = @f{i}}} : i1[]\n" for i in range(4_000))
    main = f"func @main(%x: i1[]) -> i1[] {{\n{calls}  return %3999\n}}\n"
    with cheap(12):
        program = parse_program(VERSION + "".join(lines) + main)
        verify(program)
        verify(parse_json(print_json(program)))


@pytest.mark.long
def test_many_parameters_and_results_take_linear_time():
    names = [f"%x{index}" for index in range(30_000)]
    params = ", ".join(f"{name}: i1[]" for name in names)
    types = ", ".join(["i1[]"] * len(names))
    text = f"{VERSION}func @main({params}) -> ({types}) {{\n  return {', '.join(names)}\n}}\n"
    with cheap(12):
        program = parse_program(text)
        verify(program)
        assert optimize(program) is program
        assert print_program(program) == text


def nested(depth: int) -> str:
    """`cond`s in each other."""
    body = ["return %p"]
    for _ in range(depth):
        inner = [f"    {line}" for line in body]
        body = ["%0 = cond %p, %p", "  then(%p: i1[]) {", *inner, "  }"]
        body += ["  else(%p: i1[]) {", "    return %p", "  } : i1[]", "return %0"]
    lines = "\n".join(f"  {line}" for line in body)
    return f"{VERSION}func @main(%p: i1[]) -> i1[] {{\n{lines}\n}}\n"


def test_regions_nest_up_to_a_limit():
    verify(parse_program(nested(MAX_NESTING)))
    for depth in (MAX_NESTING + 1, 300):
        with cheap(5), pytest.raises(ParseError, match="nested deeper than"):
            parse_program(nested(depth))
    opening = "%0 = cond %p, %p then(%p: i1[]) {" * 100_000
    with cheap(5), pytest.raises(ParseError, match="nested deeper than"):
        parse_program(f"{VERSION}func @main(%p: i1[]) -> i1[] {{ {opening}")


def doubling(depth: int) -> str:
    """Functions of which each calls the one before it twice."""
    functions = ["func @f0(%x: f32[]) -> f32[] {\n  %0 = tanh %x : f32[]\n  return %0\n}\n"]
    for index in range(1, depth + 1):
        name = "main" if index == depth else f"f{index}"
        callee = f"{{function = @f{index - 1}}} : f32[]"
        functions.append(
            f"func @{name}(%x: f32[]) -> f32[] {{\n  %0 = call %x {callee}\n"
            f"  %1 = call %0 {callee}\n  return %1\n}}\n"
        )
    return VERSION + "".join(functions)


def test_trees_of_calls_are_bounded_before_they_unfold():
    verify(parse_program(doubling(10)))
    for depth in (20, 31, 60, 2_000):
        with cheap(5), pytest.raises(GptrsError, match=r"instructions|deeper"):
            verify(parse_program(doubling(depth)))


@pytest.mark.parametrize(
    "callee", ["main", "later"], ids=["calls itself", "calls one that comes later"]
)
def test_recursion_is_refused(callee):
    call = f"%0 = call %x {{function = @{callee}}} : i1[]"
    main = f"func @main(%x: i1[]) -> i1[] {{\n  {call}\n  return %0\n}}\n"
    with pytest.raises(ParseError, match=f"`@{callee}`"):
        parse_program(f"{VERSION}{main}func @later{RETURNS_X}")
