"""`gptrs inspect` of programs: report, text, JSON, pictures; told from checkpoints by content."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gptrs.ir import parse_json, parse_program, print_json, print_program

PROGRAM = """// A comment may come first.
ptir.v0.5
func @main(%x: f32[2, 3], %n: si32[]) -> (f32[2, 3], si32[]) {
  %0 = tanh %x : f32[2, 3]
  %1, %2 = while %0, %n
    condition(%x: f32[2, 3], %n: si32[]) {
      %3 = compare %n, si32[] 0 {direction = gt} : i1[]
      return %3
    }
    body(%x: f32[2, 3], %n: si32[]) {
      %4 = add %x, %x : f32[2, 3]
      %5 = sub %n, si32[] 1 : si32[]
      return %4, %5
    } : (f32[2, 3], si32[])
  return %1, %2
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_the_report_names_inputs_ops_and_memory(gptrs, program):
    result = gptrs("inspect", program)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:6] == [
        f"program     {program}",
        "functions   @main of 7 instructions",
        "inputs      x: f32[2, 3]",
        "            n: si32[]",
        "results     result0: f32[2, 3]",
        "            result1: si32[]",
    ]
    assert "work        at least 8 operations and 6 functions such as exp, on elements" in lines
    assert "These are lower bounds: the regions of `while` are counted once." in lines
    [tanh] = [line.split() for line in lines if line.startswith("tanh")]
    assert tanh == ["tanh", "1", "0", "6", "48", "B"]


def test_json_is_the_report(gptrs, program):
    fields = gptrs("inspect", program, "--json").json
    assert fields["program"] == str(program)
    assert fields["inputs"] == [{"name": "x", "type": "f32[2, 3]"}, {"name": "n", "type": "si32[]"}]
    assert fields["functions"] == {"main": 7}
    assert fields["work"]["transcendental"] == 6
    assert fields["work"]["parameter_bytes"] == 28


def test_the_program_itself_is_printed_in_either_form(gptrs, program, tmp_path):
    text = gptrs("inspect", program, "--print", "text").out
    assert text == print_program(parse_program(PROGRAM))
    as_json = gptrs("inspect", program, "--print", "json").out
    assert print_program(parse_json(as_json)) == text
    (tmp_path / "again").write_text(as_json, encoding="utf-8")
    assert gptrs("inspect", tmp_path / "again", "--print", "text").out == text


def test_the_picture_is_valid_and_shows_every_value_once(gptrs, program, tmp_path):
    svg, dot = tmp_path / "p.svg", tmp_path / "p.dot"
    result = gptrs("inspect", program, "--svg", svg, "--dot", dot)
    assert (result.code, result.err) == (0, f"wrote {svg}\nwrote {dot}\n")
    assert result.out.startswith("program ")
    texts = [element.text for element in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    for title in ("%0 = tanh", "%6, %7 = while", "condition", "body", "%2 = compare", "result 1"):
        assert texts.count(title) >= 1, (title, texts)
    assert dot.read_text().startswith("digraph program {")


@pytest.mark.parametrize("option", ["--svg", "--dot"])
def test_a_picture_that_cannot_be_written_is_exit_3(gptrs, program, tmp_path, option):
    result = gptrs("inspect", program, option, tmp_path / "missing" / "file")
    assert (result.code, result.out) == (3, "")
    assert "cannot write" in result.err


def test_a_picture_that_nobody_could_read_is_refused(gptrs, tmp_path):
    path, svg = tmp_path / "p.ptir", tmp_path / "p.svg"
    lines = [f"  %{i + 1} = neg %{i} : f32[1]" for i in range(999)]
    path.write_text("ptir.v0.5\nfunc @main(%0: f32[1]) -> f32[1] {\n" + "\n".join(lines)
                    + "\n  return %999\n}\n")  # fmt: skip
    result = gptrs("inspect", path, "--svg", svg)
    assert result.code == 2
    assert "draws at most 1000 boxes, the program has 1001; write `--dot FILE`" in result.err
    assert not svg.exists()
    assert gptrs("inspect", path, "--dot", tmp_path / "p.dot").code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ptir.v0.5\nfunc @main() -> f32[1] {\n  return %0\n}\n", "value `%0` is not defined"),
        ("// only a comment\n", "expected the version line"),
        ("{}", "`version`"),
        ("", "expected the version line"),
    ],
)
def test_a_malformed_program_is_exit_3(gptrs, tmp_path, content, message):
    path = tmp_path / "p.ptir"
    path.write_text(content, encoding="utf-8")
    result = gptrs("inspect", path)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"error: `{path}`: ")
    assert message in result.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text", b"hello", "is not a program; a program begins with"),
        ("empty", b"", "is not a program; a program begins with"),
        ("bytes", bytes(range(256)), "is not a program; a program begins with"),
        ("m.gguf", b"hello", "is called a GGUF file, but does not begin like one; download"),
    ],
)
def test_what_is_no_program_is_not_run(gptrs, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = gptrs("run", tmp_path / name)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"error: `{tmp_path / name}` {message}")
    assert len(result.err.splitlines()) == 1


def test_a_name_with_a_newline_stays_on_its_line(gptrs, tmp_path, model_directory):
    folder = tmp_path / "a\nb"
    shutil.copytree(model_directory, folder / "model")
    (folder / "p.ptir").write_text(PROGRAM, encoding="utf-8")
    assert "a\\nb/p.ptir\n" in gptrs("inspect", folder / "p.ptir").out
    assert "a\\nb/model\n" in gptrs("inspect", folder / "model").out
    assert "a\\nb/model " in gptrs("models", "list", folder).out


def test_programs_and_checkpoints_are_told_apart_by_content(gptrs, tmp_path):
    odd = tmp_path / "program.safetensors"
    odd.write_text(PROGRAM, encoding="utf-8")
    assert gptrs("inspect", odd, "--json").json["instructions"] == 7
    # The length of this header is a byte `{`, as a program in JSON begins.
    plain = tmp_path / "weights"
    for size in range(200):
        save_file({"a": np.zeros(2, np.float32)}, plain, {"k": "x" * size})
        if plain.read_bytes().startswith(b"x"):
            break
    assert gptrs("inspect", plain, "--json").json["totals"]["tensors"] == 1
    data = plain.read_bytes()
    header = data[8 : 8 + int.from_bytes(data[:8], "little")] + b"   "
    plain.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert plain.read_bytes().startswith(b"{\0\0\0\0\0\0\0{")
    assert gptrs("inspect", plain, "--json").json["totals"]["tensors"] == 1


def test_options_that_do_not_fit_are_exit_2(gptrs, program, tmp_path):
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "a.safetensors")
    for option in (
        ("--print", "text"),
        ("--svg", "x.svg"),
        ("--dot", "x.dot"),
        ("--symbol", "0=1"),
    ):
        result = gptrs("inspect", tmp_path / "a.safetensors", *option)
        assert result.code == 2
        assert "are for programs" in result.err
    result = gptrs("inspect", program, "--print", "json", "--json")
    assert result.code == 2
    assert "exclude each other" in result.json["message"]
    assert gptrs("inspect", program, "--print", "yaml").code == 2


def test_a_program_in_json_is_detected(gptrs, tmp_path):
    path = tmp_path / "p"
    path.write_text(print_json(parse_program(PROGRAM)), encoding="utf-8")
    assert gptrs("inspect", path, "--json").json["instructions"] == 7


SYMBOLIC = """
ptir.v0.5
func @main(%x: f32[?0, 3], %y: f32[?1]) -> f32[3*?0+?1] {
  %0 = reshape %x {shape = [3*?0]} : f32[3*?0]
  %1 = concat %0, %y {axis = 0} : f32[3*?0+?1]
  return %1
}
"""


def test_symbols_are_listed_and_can_be_given_sizes(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text(SYMBOLIC, encoding="utf-8")
    result = gptrs("inspect", path)
    assert "symbols     ?0, ?1\n" in result.out
    assert "give their sizes with --symbol" in result.out
    fields = gptrs("inspect", path, "--json").json
    assert (fields["symbols"], fields["work"]) == (["?0", "?1"], None)
    sized = gptrs("inspect", path, "--symbol", "?0=2", "--symbol", "1=4", "--json").json
    assert sized["inputs"][0]["type"] == "f32[2, 3]"
    assert sized["work"]["result_bytes"] == 40
    assert gptrs("inspect", path, "--svg", tmp_path / "p.svg").code == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["0=2"], "the size of `?1` is not known; give it with `--symbol 1=SIZE`"),
        (["0=2", "1=3", "7=1"], "the program has no symbol `?7`; it has `?0`, `?1`"),
        (["0=2", "0=3"], "`?0` is given the sizes 2 and 3"),
        (["x=2"], "`x=2` is not a size of a symbol"),
        (["0=-1"], "`0=-1` is not a size of a symbol"),
    ],
)
def test_sizes_that_do_not_fit_are_exit_2(gptrs, tmp_path, sizes, message):
    path = tmp_path / "p.ptir"
    path.write_text(SYMBOLIC, encoding="utf-8")
    options = [word for size in sizes for word in ("--symbol", size)]
    result = gptrs("inspect", path, *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
