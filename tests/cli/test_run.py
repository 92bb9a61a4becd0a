"""`gptrs run`: inputs by name, results as text, JSON and files, an exit code for each failure."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.ir import dtypes, parse_program, print_json
from runtime.tiny_chat import save_scripted_chat

PROGRAM = """
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 2]) -> (f32[2, 2], f32[2, 3]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 2]
  return %0, %x
}
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([[1, 0], [0, 1], [np.inf, 1]], np.float32)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    write_archive(path, {"x": X, "w": W})
    return path


def test_results_are_printed_with_name_type_and_values(gptrs, program, inputs):
    result = gptrs("run", program, "--input", inputs)
    assert result.code == 0
    assert result.out == (
        "result0: f32[2, 2]\n  [[inf  3.]\n   [inf  9.]]\n"
        "result1: f32[2, 3]\n  [[0. 1. 2.]\n   [3. 4. 5.]]\n"
    )
    assert result.err.startswith("2 results in ")
    assert result.err.endswith(" s, backend ref\n")


def test_json_has_what_scripts_rely_on(gptrs, program, inputs):
    fields = gptrs("run", program, "--input", inputs, "--json").json
    assert fields.keys() == {"schema", "backend", "results", "seconds"}
    assert fields["backend"] == "ref"
    assert 0 < fields["seconds"] < 60
    assert fields["results"] == [
        {"name": "result0", "dtype": "f32", "shape": [2, 2], "values": [["inf", 3], ["inf", 9]]},
        {"name": "result1", "dtype": "f32", "shape": [2, 3], "values": [[0, 1, 2], [3, 4, 5]]},
    ]


def test_json_leaves_out_the_values_of_large_results(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text("ptir.v0.5\nfunc @main() -> (si64[64], si64[65]) {\n"
                    "  %0 = iota {shape = [64], axis = 0, dtype = si64} : si64[64]\n"
                    "  %1 = iota {shape = [65], axis = 0, dtype = si64} : si64[65]\n"
                    "  return %0, %1\n}\n")  # fmt: skip
    small, large = gptrs("run", path, "--json").json["results"]
    assert small["values"] == list(range(64))
    assert large == {"name": "result1", "dtype": "si64", "shape": [65]}
    assert "[ 0  1  2 ... 62 63 64]" in gptrs("run", path).out


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".gptrsten"])
def test_results_are_written_in_any_format_and_can_be_inputs(gptrs, program, tmp_path, suffix):
    given, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    write_archive(given, {"x": X, "w": W})
    result = gptrs("run", program, "--input", given, "--out", out)
    assert result.code == 0
    assert result.err.endswith(f"written to {out}\n")
    archive = open_archive(out)
    assert list(archive.names()) == ["result0", "result1"]
    np.testing.assert_array_equal(archive.read("result1"), X)
    archive.close()


def test_inputs_may_be_spread_over_files(gptrs, program, tmp_path):
    np.save(tmp_path / "x.npy", X)
    write_archive(tmp_path / "rest.safetensors", {"w": W})
    first, second = tmp_path / "x.npy", tmp_path / "rest.safetensors"
    assert gptrs("run", program, "--input", first, "--input", second).code == 0


def test_what_no_file_has_is_made_up_from_a_seed(gptrs, program, tmp_path):
    write_archive(tmp_path / "x.npz", {"x": X})

    def results(*arguments: object) -> object:
        return gptrs("run", program, "--json", *arguments).json["results"]

    one = results("--random-seed", 1)
    assert one == results("--random-seed", 1)
    assert one != results("--random-seed", 2)
    partly = results("--random-seed", 1, "--input", tmp_path / "x.npz")
    assert partly[1]["values"] == X.tolist()


def test_a_program_may_be_json_whatever_it_is_called(gptrs, inputs, tmp_path):
    path = tmp_path / "program.txt"
    path.write_text("\n  " + print_json(parse_program(PROGRAM)), encoding="utf-8")
    assert "result0: f32[2, 2]" in gptrs("run", path, "--input", inputs).out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no input is given for `x`: f32[2, 3], `w`: f32[3, 2], which are needed; name"),
        (["--random-seed", "-1"], 2, "a seed is an integer >= 0, got -1"),
        (["--random-seed", "one"], 2, "--random-seed"),
        (["--input", "missing.npz"], 3, "No such file or directory"),
        (["--input", "p.ptir"], 3, "is not a file of tensors"),
        (["--input", "odd.npz"], 2, "the program has no parameter `y`; it takes `x`"),
        (["--input", "wrong.npz"], 2, "input `x` must be `f32[2, 3]`, got `f64[2]`"),
        (["--input", "in.npz", "--input", "in.npz"], 2, "as a file before it has"),
        (["--input", "in.npz", "--out", "out.txt"], 2, "names no format of tensors"),
        (["--input", "in.npz", "--out", "missing/out.npz"], 3, "cannot write `missing/out.npz`"),
        (["--input", "in.npz", "--out", "out.npy"], 2, "holds one array, got 2"),
        (["--input", "in.npz", "--backend", "none-such"], 4, "none-such"),
        (["--input", "in.npz", "--threads", "0"], 2, "threads"),
    ],
)
def test_each_failure_is_one_line_and_an_exit_code(
    gptrs, program, inputs, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    write_archive("odd.npz", {"y": X})
    write_archive("wrong.npz", {"x": np.zeros(2), "w": W})
    before = sorted(os.listdir())
    result = gptrs("run", "p.ptir", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert sorted(os.listdir()) == before
    fields = gptrs("run", "p.ptir", *arguments, "--json").json
    assert fields.keys() == {"schema", "code", "message", "hint"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1, column 1"),
        (b"ptir.v0.5\nfunc @main(%x: f32[2) -> f32[2] {", "line 2, column"),
        (b"ptir.v9\n", "`ptir.v9`"),
        (b"{", "JSON"),
        (b'{"version": "ptir.v0.5"}', "functions"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"(" * 1_000_000, "line 1, column 1"),
        (None, "p.ptir`: No such file or directory"),
    ],
)
def test_what_is_no_program_is_exit_3(gptrs, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("p.ptir").write_bytes(content)
    result = gptrs("run", "p.ptir")
    assert (result.code, result.out) == (3, "")
    assert message in result.err
    assert len(result.err) < 1000


def test_a_file_beyond_the_limit_is_not_read(gptrs, tmp_path, monkeypatch):
    monkeypatch.setattr("gptrs_runtime.programs.MAX_PROGRAM_BYTES", 1000)
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM + " " * 1000, encoding="utf-8")
    result = gptrs("run", path)
    assert result.code == 3
    assert "is larger than 1000 bytes" in result.err


def test_what_depends_on_values_is_exit_1(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text("ptir.v0.5\nfunc @main(%x: f32[2], %i: si64[1]) -> f32[1] {\n"
                    "  %0 = take %x, %i : f32[1]\n  return %0\n}\n")  # fmt: skip
    write_archive(tmp_path / "in.npz", {"x": np.zeros(2, np.float32), "i": np.array([5])})
    result = gptrs("run", path, "--input", tmp_path / "in.npz")
    assert result.code == 1
    assert "5" in result.err


def test_an_op_that_the_backend_lacks_is_exit_5_before_anything_runs(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    call = 'custom_call %x {target = "vendor.kernel.v1", results = [f32[1]]}'
    path.write_text(f"ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[1] {{\n"
                    f"  %0 = {call} : f32[1]\n  return %0\n}}\n")  # fmt: skip
    out = tmp_path / "out.npz"
    result = gptrs("run", path, "--random-seed", 0, "--out", out)
    assert result.code == 5
    assert "vendor.kernel.v1" in result.err
    assert not out.exists()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_goes_in_and_out(gptrs, tmp_path, dtype):
    path = tmp_path / "p.ptir"
    path.write_text(f"ptir.v0.5\nfunc @main(%x: {dtype}[3]) -> {dtype}[3] {{\n  return %x\n}}\n")
    array = np.array([1, 0, 1]).astype(dtype.numpy)
    write_archive(tmp_path / "in.gptrsten", {"x": array})
    arguments = ("--input", tmp_path / "in.gptrsten", "--out", tmp_path / "out.gptrsten")
    fields = gptrs("run", path, *arguments, "--json").json
    assert fields["results"][0]["dtype"] == dtype.name
    expected = [[1, 0], [0, 0], [1, 0]] if dtype.is_complex else [1, 0, 1]
    assert fields["results"][0]["values"] == expected
    found = open_archive(tmp_path / "out.gptrsten").read("result0")
    assert found.tobytes() == array.tobytes()
    assert f"result0: {dtype}[3]" in gptrs("run", path, *arguments).out


def test_the_process_starts_and_ends_as_others_do(gptrs_process, program, inputs):
    result = gptrs_process("run", program, "--input", inputs, "--json")
    assert result.code == 0
    assert json.loads(result.out)["results"][1]["shape"] == [2, 3]


def test_symbolic_dims_take_the_sizes_of_inputs_or_options(gptrs, tmp_path):
    path, x = tmp_path / "p.ptir", tmp_path / "x.npy"
    path.write_text("ptir.v0.5\nfunc @main(%x: f32[?0], %y: f32[?0], %z: f32[?1]) -> f32[?0+?1] {\n"
                    "  %0 = add %x, %y : f32[?0]\n"
                    "  %1 = concat %0, %z {axis = 0} : f32[?0+?1]\n  return %1\n}\n")  # fmt: skip
    np.save(x, np.zeros(3, np.float32))
    given = ("run", path, "--input", x, "--random-seed", 1)
    [result] = gptrs(*given, "--symbol", "?1=2", "--json").json["results"]
    assert result["shape"] == [5]
    missing = gptrs(*given)
    assert missing.code == 2
    assert "the size of `?1` is not known" in missing.err
    differs = gptrs(*given, "--symbol", "0=4", "--symbol", "1=2")
    assert differs.code == 2
    assert "`?0` is 3 in the inputs, not 4" in differs.err


def test_what_is_missing_comes_before_what_its_size_would_be(gptrs, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text("ptir.v0.5\nfunc @main(%x: f32[?0]) -> f32[?0] {\n  return %x\n}\n")
    result = gptrs("run", path)
    assert result.code == 2
    assert "no input is given for `x`: f32[?0], which is needed" in result.err


TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def test_a_model_with_a_prompt_answers_it_as_a_message_if_it_has_a_template(gptrs, tmp_path):
    model = save_scripted_chat(tmp_path / "m", "meow", prompt="the cat", template=TEMPLATE)
    made = gptrs("run", model, "the cat", "--greedy", "--max-tokens", "9", "--json")
    assert made.code == 0, made.err
    asked = gptrs("generate", "--model", model, "the cat", "--greedy", "--chat", "--json")
    assert made.json["text"] == asked.json["text"] == "meow"
    assert made.json["prompt"] == asked.json["prompt"]
    plain = gptrs("run", model, "--prompt-ids", "1,2", "--max-tokens", "2", "--json")
    assert plain.json["prompt_token_ids"] == [1, 2]


def test_a_model_without_a_template_continues_what_is_piped_in(gptrs, model_directory):
    options = ("--max-tokens", "2", "--greedy", "--json")
    made = gptrs("run", model_directory, *options, stdin=b"the cat\n")
    assert (made.code, made.json["prompt"]) == (0, "the cat"), made.err


def test_a_model_chats_where_nothing_is_piped_in(gptrs, tmp_path, monkeypatch):
    model = save_scripted_chat(tmp_path / "m", "meow", prompt="the cat", template=TEMPLATE)
    monkeypatch.setattr("gptrs_cli.models.run_model.is_piped", lambda: False)
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    talked = gptrs("run", model, "--greedy")
    assert (talked.code, talked.out.strip()) == (0, "meow"), talked.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--out", "x.npz"], "`--out` is for programs, `demo` is a model of text"),
        (["p.ptir", "--greedy"], "no such option: --greedy"),
        (["p.ptir", "more"], "unexpected extra argument: more"),
        (["--greedy", "demo"], "name the program or the model first"),
        (["demo", "a", "--no-such"], "No such option"),
    ],
)
def test_what_does_not_go_with_a_program_or_a_model(gptrs, arguments, words):
    result = gptrs("run", *arguments)
    assert result.code == 2
    assert words.lower() in result.err.lower()


def test_a_model_of_another_task_names_its_command(gptrs, tmp_path, model_directory):
    folder = shutil.copytree(model_directory, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["GPT2ForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    result = gptrs("run", folder, "hello")
    assert result.code == 2
    assert f"it is one for `gptrs classify --model {folder}`" in result.err
