"""`gptrs generate --prompts`: many prompts from a file, results as lines, resumed and repaired."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import gptrs as gptrs_library
from gptrs_cli.generate import batch, prompt_lines
from gptrs_cli.generate.prompt_lines import LONGEST_LINE
from gptrs_cli.options import text_input
from gptrs_runtime.generation.batch import Batches
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_gpt2 import save_tiny_gpt2

LINES = [
    {"prompt": "the cat", "id": "cat"},
    {"prompt_ids": [5, 9, 2]},
    {"prompt": "def main():\n", "max_tokens": 2, "note": "other keys are not looked at"},
    {"prompt_ids": [7] * 20, "id": 44},
]
IDS = ["cat", 2, 3, 44]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)) + "\n\n", encoding="utf-8")
    return file


@pytest.fixture
def run(gptrs, model_directory):
    def generate(*options: object):
        asked = ("generate", "--model", model_directory, "--greedy", "--ignore-eos")
        return gptrs(*asked, "--max-tokens", 6, *options)

    return generate


def records(text: str) -> dict[object, dict]:
    return {record["id"]: record for record in map(json.loads, text.splitlines())}


BAD = (
    ('{"prompt": "the dog", "id": "cat"}', "is also the id of line 1 of"),
    ('{"prompt": ', "is not usable JSON"),
    ('{"prompt_ids": [1], "prompt": "a"}', "found `prompt` and `prompt_ids`"),
    (json.dumps({"prompt_ids": [1] * 5000}), "5000 prompt tokens and 6 new ones do not fit"),
    ('{"prompt_ids": [4000]}', "token 4000 is not in the vocabulary"),
)


def test_bad_lines_are_left_out_if_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_lines, "LONGEST_LINE", 20_000)
    file = tmp_path / "prompts.jsonl"
    long = json.dumps({"prompt": "a" * 60_000})
    lines = [json.dumps(LINES[0]), long, *(line for line, _ in BAD), json.dumps(LINES[3])]
    file.write_text("\n".join(lines), encoding="utf-8")
    result = run("--prompts", file, "--skip-bad")
    assert result.code == 1
    assert records(result.out).keys() == {"cat", 44}
    *told, summary = result.err.splitlines()
    assert summary == "2 prompts are done, 6 bad ones were left out"
    assert len(told) == 6
    begin = "warning: left out: line "
    assert {line[: len(begin) + 1] for line in told} == {f"{begin}{n}" for n in range(2, 8)}
    for number, says in enumerate(["has more than 20000 bytes", *(says for _, says in BAD)], 2):
        assert any(f"line {number} of " in line and says in line for line in told), says
    alone = run("--prompt-ids", ",".join(["7"] * 20), "--json").json
    assert records(result.out)[44]["token_ids"] == alone["token_ids"]
    strict = run("--prompts", file)
    assert (strict.code, strict.out) == (3, "")
    assert run("--prompt", "a", "--skip-bad").code == 2


def test_a_conversation_that_the_template_refuses_is_left_out(gptrs, tmp_path):
    folder = save_tiny_chat(tmp_path / "chat")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    refusing = "{% if messages[0].content == 'no' %}{{ raise_exception('never') }}{% endif %}"
    settings["chat_template"] = refusing + settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "no"}\n{"prompt": "yes"}\n{"prompt": "no"}\n')
    asked = ("generate", "--model", folder, "--prompts", file, "--chat", "--max-tokens", 2)
    result = gptrs(*asked, "--skip-bad")
    assert (result.code, records(result.out).keys()) == (1, {2})
    assert result.err.count("never") == 2
    assert gptrs(*asked).code == 3


def test_lines_say_what_their_template_is_told(gptrs, tmp_path):
    template = (
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}:{{ m.content }};"
        "{{ m.tool_calls[0].function.arguments.a if m.tool_calls }}{% endfor %}{{ mood }}"
        "{% if enable_thinking %}think{% endif %}{% if add_generation_prompt %}->{% endif %}"
    )
    folder = save_tiny_chat(tmp_path / "chat", template)
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
    said = [{"role": "user", "content": [{"type": "text", "text": "the"}]}]
    called = [*said, {"role": "assistant", "content": "", "tool_calls": [call]}]
    lines = [
        {"messages": said, "chat_template_kwargs": {"mood": "!"}, "enable_thinking": True},
        {"messages": called, "tools": [{"function": {"name": "f"}}], "tool_choice": "auto"},
        {"messages": said, "continue_final_message": True, "tools": None},
        {"prompt": "the", "add_generation_prompt": False, "chat_template_kwargs": {"mood": "?"}},
        {"prompt": "the", "tools": "none"},
        {"messages": said, "chat_template_kwargs": {"bos_token": "x"}},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    asked = ("generate", "--model", folder, "--prompts", file, "--max-tokens", 1, "--skip-bad")
    result = gptrs(*asked, "--chat", "--template-var", "mood=.", "--backend", "ref")
    assert result.err.count("line 5 of") == result.err.count("line 6 of") == 1
    assert "tools must be a list" in result.err
    assert "`bos_token` cannot be set as a variable" in result.err
    model = gptrs_library.load_model(folder, backend="ref")
    texts = [
        model.tokenizer.decode(each["prompt_token_ids"]) for each in records(result.out).values()
    ]
    tool = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object",'
    assert texts == [
        "user:the;!think->",
        f'[{tool} "properties": {{}}}}}}}}]user:the;assistant:;b.->',
        "user:the",
        "user:the;?",
    ]
    plain = gptrs(*asked, "--backend", "ref")  # a text alone is no message
    assert set(records(plain.out)) == {1, 2, 3, 4, 5}


def test_each_prompt_gives_the_text_that_it_gives_alone(run, prompts):
    result = run("--prompts", prompts, "--batch-size", 3)
    assert result.code == 0
    assert result.err == "4 prompts are done\n"
    found = records(result.out)
    assert set(found) == set(IDS)
    for line, name in zip(LINES, IDS, strict=True):
        asked = ["--prompt", line["prompt"]] if "prompt" in line else []
        asked += ["--prompt-ids", str(line["prompt_ids"])[1:-1]] if "prompt_ids" in line else []
        alone = run(*asked, "--max-tokens", line.get("max_tokens", 6), "--json").json
        keys = {"id", "text", "token_ids", "finish_reason", "prompt_token_ids", "model"}
        assert found[name].keys() == keys | {"schema"}
        for key in keys - {"id"}:
            assert found[name][key] == alone[key]


def test_results_come_in_the_order_of_prompts(run, tmp_path, capsys, monkeypatch):
    """Also where the first text ends last; and what is done is kept if the work ends early."""
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt_ids": [n + 1], "max_tokens": 9 - n} for n in range(9)]
    file.write_text("\n".join(map(json.dumps, lines)))
    whole = run("--prompts", file, "--batch-size", 9)
    assert list(records(whole.out)) == list(range(1, 10))

    class Interrupted(Batches):
        def __next__(self):
            number, result = super().__next__()
            if number == 4:
                raise KeyboardInterrupt
            return number, result

    with monkeypatch.context() as patched:
        patched.setattr(batch, "Batches", Interrupted)
        cut = run("--prompts", file, "--batch-size", 9, "--out", out)
    assert cut.code == 130
    assert list(records(out.read_text())) == [6, 7, 8, 9], "the short ones, which ended first"
    assert "interrupted: 4 of 9 prompts are done" in cut.err
    assert run("--prompts", file, "--out", out).err == "9 prompts are done, 4 of them before\n"
    assert records(out.read_text()) == records(whole.out)


def test_results_in_a_file_are_not_done_again(run, prompts, tmp_path):
    out = tmp_path / "results.jsonl"
    first = run("--prompts", prompts, "--out", out)
    assert (first.code, first.out) == (0, "")
    whole = out.read_bytes()
    again = run("--prompts", prompts, "--out", out)
    assert again.err == "4 prompts are done, 4 of them before\n"
    assert out.read_bytes() == whole


@pytest.mark.parametrize("cut", [1, 2, 30, 100])
def test_a_file_that_was_torn_is_repaired(run, prompts, tmp_path, cut):
    out = tmp_path / "results.jsonl"
    run("--prompts", prompts, "--out", out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-cut])
    assert run("--prompts", prompts, "--out", out).code == 0
    assert records(out.read_text()) == records(whole.decode())
    assert out.read_bytes().count(b"\n") == len(LINES)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from gptrs_cli.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def whole(model_directory, tmp_path_factory) -> str:
    """What a process writes that has room."""
    file = tmp_path_factory.mktemp("whole") / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    asked = ["generate", "--model", str(model_directory), "--greedy", "--ignore-eos"]
    asked += ["--max-tokens", "6", "--prompts", str(file)]
    command = [sys.executable, "-u", "-c", LIMITED, str(1 << 20), *asked]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GPTRS_")}
    environment = {**plain, "GPTRS_BACKEND": "ref", "GPTRS_WEIGHT_CACHE_BYTES": "0"}
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout.decode()


@pytest.mark.sample(1)
@pytest.mark.long
@pytest.mark.parametrize("missing", [1, 50, 300])
@pytest.mark.parametrize("to_stdout", [False, True])
def test_a_full_disk_is_an_error_and_a_later_run_goes_on(
    run, whole, model_directory, prompts, tmp_path, missing, to_stdout
):
    out = tmp_path / "results.jsonl"
    asked = ["generate", "--model", str(model_directory), "--greedy", "--ignore-eos"]
    asked += ["--max-tokens", "6", "--prompts", str(prompts)]
    asked += [] if to_stdout else ["--out", str(out)]
    limit = str(len(whole.encode()) - missing)
    command = [sys.executable, "-u", "-c", LIMITED, limit, *asked]
    with out.open("ab") as file:
        stdout = file if to_stdout else subprocess.DEVNULL
        cut = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (cut.returncode, b"are done" in cut.stderr) == (1 if to_stdout else 3, False)
    assert b"File too large" in cut.stderr
    # Where programs are not in the cache yet, they find no room either, which is told.
    told = [line for line in cut.stderr.splitlines() if b"programs cannot be kept" not in line]
    assert len(told) == 1
    if not to_stdout:
        assert run("--prompts", prompts, "--out", out).code == 0
        assert records(out.read_text()) == records(whole)


# A command that kills itself when it has written five results.
KILLED = """
import os, signal, sys
from gptrs_cli.__main__ import main
from gptrs_cli.generate import batch
written = []
def write_all(descriptor, data, write=batch.write_all):
    write(descriptor, data)
    written.append(data)
    if len(written) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
batch.write_all = write_all
sys.exit(main())
"""


def test_a_run_that_is_killed_goes_on(gptrs, tmp_path):
    model = save_tiny_gpt2(tmp_path / "long", n_positions=1024)
    file, out = tmp_path / "prompts.jsonl", tmp_path / "results.jsonl"
    file.write_text("".join(f'{{"prompt_ids": [{n}]}}\n' for n in range(1, 13)))
    asked = ["generate", "--model", str(model), "--greedy", "--ignore-eos", "--max-tokens", "5"]
    asked += ["--prompts", str(file), "--out", str(out), "--batch-size", "1"]
    done = subprocess.run([sys.executable, "-c", KILLED, *asked], check=False)
    assert done.returncode == -signal.SIGKILL
    before = records(out.read_text())
    assert len(before) == 5
    result = gptrs(*asked)
    assert (result.code, result.out) == (0, "")
    # Before it, a busy machine may tell how long it takes.
    assert result.err.endswith(f"12 prompts are done, {len(before)} of them before\n")
    after = records(out.read_text())
    assert list(after) == list(range(1, 13))
    assert {key: after[key] for key in before} == before


def test_an_interrupt_says_how_far_it_came(tmp_path):
    model = save_tiny_gpt2(tmp_path / "long", n_positions=1024)
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f'{{"prompt_ids": [{n}]}}\n' for n in range(1, 200)))
    asked = [sys.executable, "-m", "gptrs_cli", "generate", "--model", str(model), "--greedy"]
    asked += ["--ignore-eos", "--prompts", str(file), "--max-tokens", "100", "--batch-size", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(asked, stdout=pipe, stderr=pipe) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    done = len((first + rest).splitlines())
    assert process.returncode == 130
    # It may strike between a line and its count.
    told = [
        f"interrupted: {n} of 199 prompts are done; the same command goes on\n"
        for n in (done, done - 1)
    ]
    assert err.decode() in told


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 of"),
        ("[1]", "must be an object"),
        ('{"id": 1}', "line 2 of .* needs one of .* found none of them"),
        ('{"prompt": "a", "prompt_ids": [1]}', "found `prompt` and `prompt_ids`"),
        ('{"prompt": 3}', "line 2 of .*: `prompt` must be a string"),
        (
            '{"prompt_ids": [1.5]}',
            r"`prompt_ids\[0\]` must be an integer, found `1.5`",
        ),
        ('{"prompt_ids": 1}', "`prompt_ids` must be a list, found `1`"),
        ('{"prompt": "a", "id": [1]}', "`id` must be"),
        ('{"prompt": "a", "id": "cat"}', "line 2 of .*: the id `'cat'` is also the id of line 1"),
        ('{"prompt": "a", "max_tokens": 0}', "`max_tokens` must be an integer >= 1"),
        ('{"messages": []}', "line 2 of .*: messages must be a list"),
        ('{"prompt_ids": [999]}', "line 2 of .*: token 999 is not in the vocabulary"),
        ('{"prompt_ids": [1], "max_tokens": 64}', "line 2 of .*: 1 prompt tokens and 64 new"),
        ('{"messages": [{"role": "user"}]}', "no chat template"),
    ],
)
def test_a_bad_line_stops_before_any_work(run, prompts, tmp_path, line, message):
    prompts.write_text(f"{json.dumps(LINES[0])}\n{line}\n", encoding="utf-8")
    result = run("--prompts", prompts, "--json")
    assert result.code in (2, 3)
    (only,) = result.out.splitlines()
    assert re.search(message, json.loads(only)["message"])


def test_files_of_other_kinds_are_left_alone(run, prompts, tmp_path):
    out = tmp_path / "results.jsonl"
    for content, message in {
        b"hello\nworld\n": "line 1 of .* lines that are not results",
        b'{"a": 1}\n': "is not a result: it has no `id`",
        b'{"id": 1, "model": "other"}\n': "a result of the model `'other'`, not of `tiny`",
    }.items():
        out.write_bytes(content)
        result = run("--prompts", prompts, "--out", out)
        assert result.code == 3
        assert re.search(message, result.err)
        assert out.read_bytes() == content
    assert "not a regular file" in run("--prompts", prompts, "--out", "/dev/null").err
    assert run("--prompts", tmp_path / "no.jsonl").code == 3
    prompts.write_text("\n\n")
    assert "has no prompts" in run("--prompts", prompts).err


@pytest.mark.parametrize(
    "options",
    [
        ("--prompts", "x", "--prompt", "a"),
        ("--prompts", "x", "--prompt-ids", "1"),
        ("--prompts", "x", "--num-return", "2"),
        ("--prompts", "x", "--prompt-cache", "a.safetensors"),
        ("--prompts", "x", "--echo"),
        ("--out", "x"),
        ("--batch-size", "2"),
        ("--prompt", "x", "--system", "y"),
        ("--prompt-ids", "1", "--chat"),
        ("--prompt", "x", "--num-return", "0"),
        ("--prompt", "x", "--keep", "1"),
        ("--prompt", "x", "--logprobs", "2"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_together_are_refused(run, options):
    assert run(*options).code == 2


def test_log_probabilities_that_nobody_would_see_are_refused(run):
    refused = run("--prompt", "x", "--logprobs", "2")
    assert (refused.code, refused.out) == (2, "")
    assert "error: `--logprobs` is part of JSON results only; add --json" in refused.err


def test_conversations_in_a_file(gptrs, tmp_path):
    model = save_tiny_chat(tmp_path / "chat")
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}\n'
        '{"prompt": "b"}\n'
    )
    asked = ("generate", "--model", model, "--greedy", "--max-tokens", 4)
    found = records(gptrs(*asked, "--prompts", file, "--chat", "--system", "s").out)
    for name, text in {1: "a", 2: "b"}.items():
        alone = gptrs(*asked, "--chat", "--system", "s", "--prompt", text, "--json").json
        assert found[name]["token_ids"] == alone["token_ids"]
        assert found[name]["prompt_token_ids"] == alone["prompt_token_ids"]
        assert alone["prompt"] == f"system: s<|end|>\nuser: {text}<|end|>\nassistant: "


@pytest.mark.sample(1)
@pytest.mark.parametrize("source", ["pipe", "stdin"])
def test_prompts_may_come_through_a_pipe(gptrs_process, model_directory, prompts, tmp_path, source):
    asked = ["generate", "--model", model_directory, "--greedy", "--max-tokens", 2, "--prompts"]
    data = prompts.read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if source == "pipe":
        threading.Thread(target=lambda: pipe.write_bytes(data), daemon=True).start()
        result = gptrs_process(*asked, pipe)
    else:
        result = gptrs_process(*asked, "-", stdin=data)
    assert (result.code, set(records(result.out))) == (0, set(IDS))


def test_a_line_is_bounded_and_a_device_refused(run, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n' + b" " * (LONGEST_LINE + 1))
    result = run("--prompts", file)
    assert result.code == 3
    assert f"line 2 of `{file}` has more than {LONGEST_LINE} bytes" in result.err
    result = run("--prompts", "/dev/zero")
    assert (result.code, result.out) == (3, "")
    assert "cannot read the prompts from `/dev/zero`: it is a device or socket" in result.err


@pytest.fixture
def small_parts(monkeypatch):
    """Some ten prompts make a part."""
    monkeypatch.setattr(prompt_lines, "PART_BYTES", 300)


def test_prompts_of_several_parts_are_those_of_one(run, tmp_path, small_parts, capsys):
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"prompt_ids": [number, 3]}) for number in range(1, 26)]
    file.write_text("\n".join(lines))
    result = run("--prompts", file, "--out", out)
    assert (result.code, result.err) == (0, "25 prompts are done\n")
    found = records(out.read_text())
    assert list(found) == sorted(found, key=int) == list(range(1, 26))
    assert found[17]["token_ids"] == run("--prompt-ids", "17,3", "--json").json["token_ids"]
    assert run("--prompts", file, "--out", out).err == "25 prompts are done, 25 of them before\n"


def test_a_pipe_without_an_end_is_read_as_it_is_done(run, tmp_path, small_parts):
    """What came before a line that is malformed stays, and a later run goes on there."""
    pipe, out = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)

    def write(*lines: str) -> None:
        with pipe.open("w") as file:
            file.write("".join(lines))

    good = [json.dumps({"prompt_ids": [number, 3], "id": f"n{number}"}) for number in range(1, 21)]
    good = [f"{line}\n" for line in good]
    for bad, said in (
        ("{]\n", "line 21 of"),
        (good[4], "line 21 of.*the id .'n5'.*is also the id of line 5 of"),
    ):
        writer = threading.Thread(target=write, args=(*good, bad))
        writer.start()
        result = run("--prompts", pipe, "--out", out)
        writer.join()
        assert result.code == 3
        assert re.search(said, result.err)
        assert 0 < len(records(out.read_text())) < 20
    writer = threading.Thread(target=write, args=good)
    writer.start()
    assert "20 prompts are done" in run("--prompts", pipe, "--out", out).err
    writer.join()
    assert len(records(out.read_text())) == 20


def test_a_prompt_without_an_end_is_refused(run, monkeypatch):
    monkeypatch.setattr(text_input, "LARGEST_TEXT", 1000)
    result = run("--prompt-file", "/dev/zero")
    assert result.code == 3
    assert "the prompt from `/dev/zero`: it has more than 1000 bytes" in result.err
