"""`gptrs generate`: what it prints where, its JSON contract, prompts and sampling options."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points

import pytest

from gptrs_runtime.generation.generate import generate
from gptrs_runtime.load import load_model
from runtime.tiny_gpt2 import save_tiny_gpt2

BACKENDS = sorted(entry.name for entry in entry_points(group="gptrs.backends"))
TIMINGS = {"load_s", "first_token_s", "prompt_tokens_per_s", "decode_tokens_per_s"}
FIELDS = {
    "schema",
    *("text", "token_ids", "prompt", "prompt_token_ids", "finish_reason", "timings"),
    *("model", "backend", "precision"),
}


@pytest.fixture
def generated(gptrs, model_directory):
    """The JSON of a generation of 6 tokens with more options."""

    def run(*options: object):
        result = gptrs(
            *("generate", "--model", model_directory, "--max-tokens", 6, "--json"), *options
        )
        # The first process on a machine compiles kernels, and says so.
        told = [line for line in result.err.splitlines() if "compiling kernels" not in line]
        assert (result.code, told) == (0, [])
        return result.json

    return run


def test_json_is_the_contract(generated, backend):
    result = generated("--prompt-ids", "5,9,2", "--greedy", "--backend", backend.name)
    assert result.keys() == FIELDS
    assert result["prompt_token_ids"] == [5, 9, 2]
    assert result["prompt"] is None
    assert len(result["token_ids"]) == 6
    assert result["finish_reason"] == "length"
    assert result["timings"].keys() == TIMINGS
    assert all(value > 0 for value in result["timings"].values())
    assert (result["model"], result["backend"]) == ("tiny", backend.name)


@pytest.mark.long
def test_every_backend_takes_the_same_greedy_tokens(generated):
    results = [generated("--prompt-ids", "5,9,2", "--greedy", "--backend", b) for b in BACKENDS]
    assert len({tuple(result["token_ids"]) for result in results}) == 1


def test_text_goes_to_stdout_and_figures_to_stderr(gptrs, generated, model_directory):
    asked = ("--prompt", "the cat", "--temperature", 1, "--seed", 4)
    expected = generated(*asked)
    assert expected["prompt"] == "the cat"
    result = gptrs("generate", "--model", model_directory, "--max-tokens", 6, *asked)
    assert result.code == 0
    assert result.out.rstrip("\n") == expected["text"].rstrip("\n")
    assert result.out.endswith("\n")
    assert result.err.count("\n") == 1
    for part in ("prompt ", "tok/s", "first token", "6 new tokens", "backend ref", "loaded in"):
        assert part in result.err


def test_echo_prints_the_prompt_first(gptrs, model_directory):
    result = gptrs(
        *("generate", "--model", model_directory, "--prompt", "the cat", "--echo"),
        *("--max-tokens", 2, "--greedy"),
    )
    assert result.out.startswith("the cat")


def test_without_a_model_and_a_prompt_the_bundled_one_speaks(gptrs):
    result = gptrs("generate", "--max-tokens", 4, "--json", "--seed", 1)
    assert result.code == 0
    assert result.json["prompt"].startswith("def ")
    assert len(result.json["token_ids"]) == 4


def test_a_prompt_file_is_used_as_it_is(generated, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes("the cat 你好\r\n".encode())
    assert generated("--prompt-file", file)["prompt"] == "the cat 你好\r\n"


def test_a_prompt_can_come_from_standard_input(gptrs_process, model_directory):
    result = gptrs_process(
        *("generate", "--model", model_directory, "--prompt-file", "-"),
        *("--max-tokens", 2, "--json"),
        stdin="smile 😀".encode(),
    )
    assert result.json["prompt"] == "smile 😀"


def test_a_prompt_may_be_an_argument_or_be_piped_in(gptrs, model_directory, tmp_path, monkeypatch):
    asked = ("generate", "--model", model_directory, "--max-tokens", 2, "--json")
    assert gptrs(*asked, stdin=b"the dog\n").json["prompt"] == "the dog"

    def given(text: str, *arguments: object):
        (tmp_path / "in").write_text(text)
        with (tmp_path / "in").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            return gptrs(*asked, *arguments)

    assert given("unused", "the cat").json["prompt"] == "the cat"
    assert given("two\nlines\n\n").json["prompt"] == "two\nlines\n"
    both = given("", "the cat", "--prompt", "the dog")
    assert both.json["message"] == "`PROMPT` and `--prompt` exclude each other"
    none = given("")
    assert (none.code, none.json["message"]) == (2, "there is no prompt")


def test_a_made_up_prompt_is_shown_beside_a_piped_text(gptrs):
    result = gptrs("generate", "--max-tokens", 1)
    assert "continues the prompt `def read_file(path):`" in result.err
    result = gptrs("generate", "--max-tokens", 1, "--echo")
    assert result.out.startswith("def read_file(path):")
    assert "continues the prompt" not in result.err


def test_a_person_is_told_that_the_model_is_the_bundled_one(gptrs, monkeypatch):
    asked, told = (
        ("generate", "def f", "--max-tokens", 1),
        "no model was named: this is the bundled",
    )
    assert told not in gptrs(*asked).err
    monkeypatch.setattr("gptrs_cli.generate.run.is_terminal", lambda stream: True)
    assert f"{told} `demo`; `--model` names another: `smollm2" in gptrs(*asked).err
    assert told not in gptrs(*asked, "--json").err
    assert told not in gptrs(*asked, "--model", "demo").err


def test_tokens_may_be_separated_by_spaces(generated):
    assert generated("--prompt-ids", " 5, 9  2 ")["prompt_token_ids"] == [5, 9, 2]


def test_a_seed_repeats_and_greedy_does_not_need_one(generated):
    def tokens(*options: object) -> list[int]:
        return generated("--prompt-ids", "1", "--ignore-eos", *options)["token_ids"]

    assert tokens("--top-k", 50, "--seed", 1) == tokens("--top-k", 50, "--seed", 1)
    assert tokens("--top-p", 0.99, "--seed", 1) != tokens("--top-p", 0.99, "--seed", 2)
    assert tokens() == tokens("--greedy") == tokens("--temperature", 0) == tokens("--top-k", 1)


def test_single_sampling_options_replace_those_of_the_model(gptrs, tmp_path):
    settings = {"do_sample": True, "temperature": 5.0, "top_k": 200}
    directory = save_tiny_gpt2(tmp_path / "sampled", generation_config=settings)

    def tokens(*options: object) -> list[int]:
        asked = ("generate", "--model", directory, "--prompt-ids", "1", "--max-tokens", 10)
        return gptrs(*asked, "--seed", 3, "--ignore-eos", "--json", *options).json["token_ids"]

    full = tokens("--temperature", 5, "--top-k", 200, "--top-p", 1)
    assert tokens() == full, "the model's own settings are used"
    assert tokens("--top-k", 200) == full, "its temperature stays when top-k is given"
    assert tokens("--temperature", 0.1) != full
    assert tokens("--top-k", 1) == tokens("--greedy") != full


def test_a_stop_string_ends_the_text(generated):
    asked = (
        "--prompt-ids",
        "1",
        "--temperature",
        1,
        "--seed",
        9,
        "--ignore-eos",
        "--max-tokens",
        30,
    )
    whole = generated(*asked)["text"]
    cut = generated(*asked, "--stop", "\u0000nowhere", "--stop", whole[8:11])
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole[: whole.index(whole[8:11])]


def test_an_uncached_generation_is_the_same(generated):
    cached = generated("--prompt-ids", "1,2", "--greedy")
    assert generated("--prompt-ids", "1,2", "--greedy", "--no-cache")["text"] == cached["text"]


def test_a_model_without_tokenizer_prints_tokens(gptrs, tmp_path):
    directory = save_tiny_gpt2(tmp_path / "bare", tokenizer=False)
    asked = ("generate", "--model", directory, "--prompt-ids", "5,9", "--max-tokens", 5)
    tokens = gptrs(*asked, "--json").json["token_ids"]
    assert gptrs(*asked).out.split() == [str(token) for token in tokens]


def test_options_may_stand_before_the_command(gptrs, model_directory):
    result = gptrs(
        *("--backend", "ref", "--threads", 1, "--json", "generate", "--model", model_directory),
        *("--prompt-ids", "1", "--max-tokens", 1),
    )
    assert result.json["backend"] == "ref"


def test_an_option_after_the_command_wins(gptrs, model_directory):
    asked = ("generate", "--model", model_directory, "--prompt-ids", "1", "--max-tokens", 1)
    result = gptrs("--backend", "abacus", *asked, "--backend", "ref", "--json")
    assert result.json["backend"] == "ref"


def test_an_option_wins_over_the_environment(gptrs, model_directory, monkeypatch):
    monkeypatch.setenv("GPTRS_BACKEND", "abacus")
    asked = ("generate", "--model", model_directory, "--prompt-ids", "1", "--max-tokens", 1)
    assert gptrs(*asked).code == 4
    assert gptrs(*asked, "--backend", "ref").code == 0


def test_several_texts_come_as_json_and_as_text(gptrs, generated, model_directory):
    asked = ("--prompt", "the cat", "--temperature", 2, "--seed", 4, "--num-return", 3)
    result = generated(*asked)
    assert result.keys() == FIELDS | {"generations"}
    texts = result["generations"]
    assert [text.keys() for text in texts] == [{"text", "token_ids", "finish_reason"}] * 3
    assert texts[0] == {key: result[key] for key in texts[0]}
    assert len({tuple(text["token_ids"]) for text in texts}) == 3
    shown = gptrs("generate", "--model", model_directory, "--max-tokens", 6, *asked)
    heads = [f"--- {number} of 3\n" for number in (1, 2, 3)]
    written = [text["text"].rstrip("\n") + "\n" for text in texts]
    expected = "".join(map("".join, zip(heads, written, strict=True)))
    assert re.sub("\n+", "\n", shown.out) == re.sub("\n+", "\n", expected)
    assert "6 new tokens" in shown.err


def test_log_probabilities_come_with_json(generated):
    result = generated("--prompt-ids", "5,9,2", "--greedy", "--logprobs", 2)
    assert result.keys() == FIELDS | {"logprobs"}
    assert [scores["token_id"] for scores in result["logprobs"]] == result["token_ids"]
    for scores in result["logprobs"]:
        assert scores.keys() == {"token_id", "logprob", "top"}
        assert len(scores["top"]) == 2
        best = scores["top"][0]
        assert (best["token_id"], best["logprob"]) == (scores["token_id"], scores["logprob"])


def test_variables_stand_between_options_and_the_model(gptrs, tmp_path, monkeypatch):
    settings = {"do_sample": True, "max_new_tokens": 3, "repetition_penalty": 1.2}
    directory = save_tiny_gpt2(tmp_path / "sampled", generation_config=settings)
    asked = ("generate", "--model", directory, "--prompt-ids", "1", "--ignore-eos", "--json")

    def tokens(*options: object) -> list[int]:
        return gptrs(*asked, *options).json["token_ids"]

    assert len(tokens()) == 3
    monkeypatch.setenv("GPTRS_MAX_TOKENS", "9")
    monkeypatch.setenv("GPTRS_SEED", "5")
    monkeypatch.setenv("GPTRS_TEMPERATURE", "1.5")
    monkeypatch.setenv("GPTRS_TOP_K", "50")
    from_variables = tokens()
    assert len(from_variables) == 9
    assert len(tokens("--max-tokens", 4)) == 4
    greedy = tokens("--greedy")
    assert greedy != from_variables, "--greedy wins over variables, with which it may stand"
    for name in ("MAX_TOKENS", "SEED", "TEMPERATURE", "TOP_K"):
        monkeypatch.delenv(f"GPTRS_{name}")
    options = ("--max-tokens", 9, "--seed", 5, "--temperature", 1.5, "--top-k", 50)
    assert tokens(*options) == from_variables
    assert tokens("--max-tokens", 9, "--greedy") == greedy
    assert gptrs(*asked, "--greedy", "--min-p", 0.1).code == 2
    monkeypatch.setenv("GPTRS_TOP_P", "much")
    wrong = gptrs(*asked)
    assert wrong.code == 2
    assert "`GPTRS_TOP_P=much`" in wrong.out.replace("'", "`")


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", 0.3), ("epsilon_cutoff", 0.004), ("eta_cutoff", 0.9), ("min_p", 0.8)],
)
def test_cuts_of_the_distribution_are_those_of_python(
    generated, gptrs, model_directory, name, value
):
    """Each makes a greedy text a sampled one."""
    flag = f"--{name.replace('_', '-')}"
    asked = ("--prompt-ids", "5,9,2", "--ignore-eos", "--max-tokens", 12, "--seed", 3)
    fields = {"max_tokens": 12, "ignore_eos": True, "seed": 3, name: value}
    model = load_model(model_directory)
    wanted = list(generate(model, [5, 9, 2], **fields).token_ids)
    assert generated(*asked, flag, value)["token_ids"] == wanted
    for other in (["--greedy"], ["--temperature", 1]):
        assert wanted != generated(*asked, *other)["token_ids"]
    refused = gptrs("generate", "--model", model_directory, *asked, flag, 1.5)
    assert refused.code == 2
    assert f"`--{name.replace('_', '-')}` must be" in refused.err
    assert gptrs("generate", *asked, "--greedy", flag, value).code == 2


def test_penalties_change_the_text(generated):
    asked = ("--prompt-ids", "5,9,2,5,9,2", "--greedy", "--ignore-eos", "--max-tokens", 12)
    plain = generated(*asked)["token_ids"]
    assert generated(*asked, "--repetition-penalty", 1)["token_ids"] == plain
    for option in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        penalized = generated(*asked, option, 50)["token_ids"]
        assert len(set(penalized)) == 12, option


def test_a_context_that_shifts(generated, gptrs, model_directory):
    asked = ("--prompt-ids", "5,9,2", "--greedy", "--ignore-eos", "--max-tokens", 100)
    refused = gptrs("generate", "--model", model_directory, *asked)
    assert refused.code == 2
    assert "--context-shift" in refused.err
    whole = generated(*asked, "--context-shift", "--keep", 2)["token_ids"]
    assert len(whole) == 100
    small = (*asked[:-1], 20, "--context", 23, "--prefill-chunk", 2)
    assert generated(*small)["token_ids"] == whole[:20]


def test_a_prompt_that_was_read_before(generated, tmp_path):
    file = tmp_path / "prompt.safetensors"
    asked = ("--prompt", "the cat and the dog", "--greedy", "--prompt-cache", file)
    first = generated(*asked)
    assert file.exists()
    assert generated(*asked)["token_ids"] == first["token_ids"]


def test_special_tokens_are_left_out_unless_asked_for(gptrs, tmp_path):
    directory = save_tiny_gpt2(tmp_path / "ends", eos_token_id=list(range(300)))
    asked = ("generate", "--model", directory, "--prompt-ids", "1", "--greedy", "--json")
    hidden, shown = gptrs(*asked).json, gptrs(*asked, "--special").json
    assert (hidden["text"], hidden["finish_reason"]) == ("", "eos")
    assert shown["text"] != ""


@pytest.mark.parametrize(
    ("option", "source", "fits"),
    [
        ("--regex", "[a-c]{2}-[0-9]", r"[a-c]{2}-[0-9]"),
        ("--grammar", 'start: "yes" | "no"', r"yes|no"),
        ("--json-schema", '{"enum": [12, null]}', r"12|null"),
    ],
)
def test_texts_of_a_form(gptrs, tmp_path, option, source, fits):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    if option != "--regex":
        (tmp_path / "form").write_text(source, encoding="utf-8")
        source = tmp_path / "form"
    asked = ("generate", "--prompt", "x", "--temperature", 1, "--seed", 1, "--backend", "ref")
    made = gptrs(*asked, option, source, "--json", "--num-return", 2).json
    assert all(re.fullmatch(fits, each["text"]) for each in made["generations"])
    cut = gptrs(*asked, option, source, "--max-tokens", 1)
    assert "a text was cut before its form was whole" in cut.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--regex", "("], "the regex cannot be used"),
        (
            ["--json-schema", "deep.json"],
            "the json_schema cannot be used: recursion limit exceeded",
        ),
        (["--json-schema", "none.json"], "cannot be used: it is not JSON: Expecting value: line 1"),
        (["--json-schema", "missing.json"], "cannot read the JSON schema from `missing.json`"),
        (["--regex", "a", "--grammar", "b"], "`--grammar` and `--regex` exclude each other"),
    ],
)
def test_forms_that_are_refused(gptrs, tmp_path, monkeypatch, words, message):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    (tmp_path / "deep.json").write_text('{"items":' * 3000 + "{}" + "}" * 3000, encoding="utf-8")
    (tmp_path / "none.json").touch()
    monkeypatch.chdir(tmp_path)
    result = gptrs("generate", "--prompt", "x", "--backend", "ref", *words)
    assert result.code in (2, 3)
    assert message in result.err


def test_a_text_that_loses_its_form_is_told_and_fails(gptrs, tmp_path):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    message = "the form cannot be kept after 1 token: lexer error"
    asked = ("generate", "--backend", "ref", "--regex", "(a?){2000}a{2000}")
    shown = gptrs(*asked, "--prompt", "x")
    assert (shown.code, shown.out) == (2, "a\n")
    assert f"error: {message}" in shown.err
    made = gptrs(*asked, "--prompt", "x", "--json", "--num-return", 2)
    assert made.code == 2
    for each in (made.json, *made.json["generations"]):
        assert each["finish_reason"] == "error"
        assert each["error"].startswith(message)
    assert made.err.count(message) == 1
    (tmp_path / "in.jsonl").write_text('{"id": 1, "prompt": "x"}\n{"id": 2, "prompt": "y"}\n')
    lines = gptrs(*asked, "--prompts", tmp_path / "in.jsonl")
    assert lines.code == 1
    assert [json.loads(line)["finish_reason"] for line in lines.out.splitlines()] == ["error"] * 2
    assert "2 prompts are done, 2 with an `error`" in lines.err


@pytest.mark.long
def test_guesses_change_no_text_and_are_counted(gptrs):
    """`--prompt-lookup` and `--draft`, here the model itself."""
    options = ("--backend", "ref", "--max-tokens", "12", "--seed", "3", "--ignore-eos", "--json")
    prompt = "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return"
    plain = gptrs("generate", prompt, *options).json
    assert "guesses" not in plain
    guessed = gptrs("generate", prompt, *options, "--prompt-lookup", "--draft", "demo").json
    assert guessed["token_ids"] == plain["token_ids"]
    assert 0 <= guessed["guesses"]["accepted"] <= guessed["guesses"]["proposed"]
    refused = gptrs("generate", prompt, "--prompt-lookup", "--no-cache")
    assert refused.code == 2
    assert "guessing ahead needs a cache" in refused.err


def test_beams_take_the_likeliest_whole_text(gptrs):
    options = ("--prompt", "def read", "--max-tokens", "6", "--backend", "ref", "--json")
    asked = ("--beams", "3", "--length-penalty", "0.5", "--num-return", "2")
    found = gptrs("generate", *options, *asked).json
    texts = [one["token_ids"] for one in found["generations"]]
    assert (len(texts), found["token_ids"]) == (2, texts[0])
    greedy = gptrs("generate", *options, "--beams", "1", "--temperature", "0").json["token_ids"]
    # Without a temperature of 0 the demo model samples, and once in a while hits one of these.
    assert texts[0] not in (texts[1], greedy)
    refused = gptrs("generate", *options, "--beams", "3", "--temperature", "0.5")
    assert refused.code == 2
    assert "choose greedily, or ask for 1 beam" in refused.out + refused.err
