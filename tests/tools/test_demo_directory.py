"""The saved demo model: what its folder holds, what survives an error, and the whole script."""

from __future__ import annotations

import json
import math
import signal
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
import train_demo_model as script
from demo_model import card, corpus, directory, evaluation, recipe, tokenizer
from fuzzing.tiny_models import save_tiny_model
from gptrs.errors import CheckpointError

TEXT = "def double(x):\n    return x + x\n\n\n" * 200
SHAPE = recipe.ModelShape(vocab_size=280, context=160, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def bpe():
    return tokenizer.train_tokenizer([TEXT], SHAPE.vocab_size)


@pytest.fixture
def trained(bpe, tmp_path):
    """A model folder as `gptrs train` writes it, with random weights."""
    ids = tokenizer.encode_documents(bpe, [TEXT])
    recipe.write_inputs(tmp_path / "work", SHAPE, bpe, ids, ids)
    folder = tmp_path / "work" / recipe.CONFIG
    config = json.loads((folder / "config.json").read_bytes())
    rng = np.random.default_rng(0)

    def weight(shape):
        return rng.normal(0, 0.05, shape).astype(np.float32)

    save_tiny_model(folder, "gpt2", gptrs.get_backend("ref"), config, weight)
    (folder / "metrics.jsonl").write_text("of the training")
    return folder


@pytest.mark.long
def test_a_folder_holds_what_gptrs_and_transformers_read(trained, bpe, tmp_path) -> None:
    rounded, target = tmp_path / "rounded", tmp_path / "new" / "demo"
    directory.round_weights(trained, rounded)
    size = directory.save_directory(rounded, target, "# card\n")
    files = {path.name: path for path in target.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
            "tokenizer_config.json", "README.md"} == files.keys()  # fmt: skip
    assert size == sum(path.stat().st_size for path in files.values())
    assert files["README.md"].read_text(encoding="utf-8") == "# card\n"
    weights = load_file(files["model.safetensors"])
    for name, array in load_file(trained / "model.safetensors").items():
        assert np.array_equal(weights[name], array.astype(np.float16)), name
    assert json.loads(files["config.json"].read_bytes())["dtype"] == "float16"

    ours = gptrs.load_model(target, backend="ref")
    assert (ours.eos_tokens, ours.bos_token) == ({0}, 0)
    settings = (ours.generation_config["temperature"], ours.generation_config["top_k"])
    assert settings == (recipe.TEMPERATURE, recipe.TOP_K)
    ids = ours.tokenizer.encode(TEXT[:60])
    assert ids == bpe.encode(TEXT[:60]).ids
    torch = pytest.importorskip("torch", reason="transformers runs with torch")
    transformers = pytest.importorskip("transformers", reason="it must read the folder, too")
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype="float32")
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits.numpy()
    found = ours.forward(np.array([ids]))
    assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()
    reread = transformers.AutoTokenizer.from_pretrained(target)
    assert reread(TEXT[:60])["input_ids"] == ids
    assert (reread.eos_token, reread.model_max_length) == (tokenizer.END_OF_TEXT, SHAPE.context)


def test_weights_beyond_float16_are_refused(trained, tmp_path) -> None:
    weights = load_file(trained / "model.safetensors")
    name = next(iter(weights))
    weights[name].flat[3] = 1e5
    save_file(weights, trained / "model.safetensors")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        directory.round_weights(trained, tmp_path / "rounded")


def test_an_older_model_is_replaced_as_a_whole(trained, tmp_path) -> None:
    target = tmp_path / "demo"
    directory.save_directory(trained, target, "old")
    (target / "notes.txt").write_text("of the old one")
    (trained / "tokenizer_config.json").rename(trained / "aside")
    with pytest.raises(KeyError):
        directory.save_directory(trained, target, "new")
    assert (target / "README.md").read_text() == "old"
    (trained / "aside").rename(trained / "tokenizer_config.json")
    directory.save_directory(trained, target, "new")
    assert (target / "README.md").read_text() == "new"
    assert not (target / "notes.txt").exists()


def test_a_folder_of_something_else_is_left_alone(trained, tmp_path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is not a model directory"):
        directory.save_directory(trained, target, "card")
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]


def test_the_card_says_what_was_measured() -> None:
    train, held_out = card.TextSize(40, 90_000, 30_000), card.TextSize(2, 5_000, 1_501)
    results = card.Results(held_out_loss=2.0, sample="def f():\n\n", prompt_tokens=3)
    assert results.bits_per_byte(held_out) == pytest.approx(2.0 / math.log(2) * 1500 / 5000)
    report = {"steps": 1234, "tokens": 75_000, "seconds": 90.0, "trained": 7_312}
    config = recipe.model_config(SHAPE, 0)
    text = card.model_card(config, report, train, held_out, results, "python train.py")
    for part in (
        "2.000 nats per token, 0.866 bits per byte",
        "1,234 updates, 75,000 tokens (2.5 passes), 1.5 minutes",
        "7,312 parameters",
        "| layers, heads, width | 2, 2, 16 |",
        "2 files, 5,000 bytes, 1,501 tokens",
        "def f():\n````",
        "python train.py",
    ):
        assert part in text


def test_the_command_in_the_card_is_one_that_the_script_takes() -> None:
    options = script.parse_options(["--steps", "7", "--seed", "4", "--precision", "f32"])
    command = script.command_line(options).split()
    assert command[:2] == ["python", "tools/train_demo_model.py"]
    assert vars(script.parse_options(command[2:])) == vars(options)
    assert options.out == script.BUNDLED
    assert "--precision" not in script.command_line(script.parse_options([]))


@pytest.mark.parametrize("option", ["--steps=0", "--steps=-1", "--threads=x"])
def test_options_that_make_no_sense_are_refused(option, capsys) -> None:
    with pytest.raises(SystemExit):
        script.parse_options([option])
    assert option.partition("=")[0] in capsys.readouterr().err


def test_an_interrupt_is_for_the_training_alone(monkeypatch) -> None:
    class Training:
        def __init__(self, words):
            assert words[:4] == [sys.executable, "-m", "gptrs", "train"]

        def wait(self):
            signal.raise_signal(signal.SIGINT)
            return 130

    monkeypatch.setattr(script.subprocess, "Popen", Training)
    before = signal.getsignal(signal.SIGINT)
    assert script.run_gptrs(["train"]) == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_the_held_out_loss_is_the_mean_over_windows(trained) -> None:
    model = gptrs.load_model(trained, backend="ref")
    ids = np.random.default_rng(0).integers(280, size=160 * 3 + 6).astype(np.uint16)
    losses: list[float] = []
    for start in range(0, len(ids) - 1, 160):
        window = ids[start : start + 161].astype(np.int64)
        logits = model.forward(window[None, :-1])[0].astype(np.float64)
        odds = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        losses += (-np.log(odds[np.arange(len(odds)), window[1:]])).tolist()
    assert len(losses) == len(ids) - 1
    assert evaluation.held_out_loss(model, ids) == pytest.approx(sum(losses) / len(losses))
    with pytest.raises(ValueError, match="at least 2 tokens of text, got 1"):
        evaluation.held_out_loss(model, ids[:1])


@pytest.mark.long
def test_the_script_from_corpus_to_folder(tmp_path, monkeypatch, capsys) -> None:
    """A run that is stopped writes no model; the same command continues it."""
    files = [corpus.SourceFile(f"{n}.py", f"# file {n}\n{TEXT}") for n in range(4)]
    split = corpus.Corpus(tuple(files[:3]), tuple(files[3:]))
    monkeypatch.setattr(script, "standard_library_corpus", lambda: split)
    monkeypatch.setattr(script, "ModelShape", lambda: SHAPE)
    work, out = tmp_path / "work", tmp_path / "demo"
    words = ["--steps", "40", "--work", str(work), "--out", str(out)]
    options = script.parse_options([*words, "--backend", "ref", "--precision", "f32"])

    run, asked = script.run_gptrs, []

    def stopped(command):
        asked.append(command)
        return run(command) if len(asked) > 1 else 130

    monkeypatch.setattr(script, "run_gptrs", stopped)
    assert script.train_and_save(options) == 130
    assert not out.exists()
    assert script.train_and_save(options) == 0
    loss = float(capsys.readouterr().out.partition("held-out loss ")[2].split()[0])
    assert loss < math.log(SHAPE.vocab_size) - 1

    model = gptrs.load_model(out, backend="ref")
    ids = np.fromfile(work / recipe.VALID, "<u2")
    assert evaluation.held_out_loss(model, ids) == pytest.approx(loss, abs=6e-4)
    readme = (out / "README.md").read_text(encoding="utf-8")
    assert "40 updates" in readme
    assert f"{loss:.3f} nats per token" in readme
    assert "--steps 40" in readme
    assert (out.stat().st_mode | 0o22) & 0o777 == 0o777
    assert script.has_begun(work / "trained")
    assert script.train_and_save(options) == 0
    assert "--resume" in asked[-1]
