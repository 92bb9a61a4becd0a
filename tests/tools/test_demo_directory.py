"""The saved demo model: what its folder holds, what survives an error, and the whole script."""

from __future__ import annotations

import importlib
import math
import signal
from pathlib import Path

import numpy as np
import pytest

import gptrs

torch = pytest.importorskip("torch", reason="the demo model is trained with torch")
transformers = pytest.importorskip("transformers", reason="the demo model is one of transformers")
card = importlib.import_module("demo_model.card")
corpus = importlib.import_module("demo_model.corpus")
directory = importlib.import_module("demo_model.directory")
script = importlib.import_module("train_demo_model")
tokens = importlib.import_module("demo_model.tokenizer")
training = importlib.import_module("demo_model.training")

TEXT = "def double(x):\n    return x + x\n\n\n" * 200
SHAPE = training.ModelShape(vocab_size=280, context=160, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.train_tokenizer([TEXT], SHAPE.vocab_size)


@pytest.fixture
def model():
    return training.new_model(SHAPE, end_of_text=0, seed=0)


def test_weights_are_rounded_as_they_are_stored(model) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    directory.round_to_float16(model)
    for old, new in zip(before, model.parameters(), strict=True):
        assert new.dtype == torch.float32
        assert torch.equal(new, old.half().float())
    with torch.no_grad():
        model.transformer.ln_f.bias[3] = 1e5
    with pytest.raises(ValueError, match=r"`transformer\.ln_f\.bias` has values that float16"):
        directory.round_to_float16(model)


def test_what_is_saved_is_what_gptrs_and_transformers_read(model, tokenizer, tmp_path) -> None:
    directory.round_to_float16(model)
    model.generation_config = directory.generation_settings(0)
    size = directory.save_directory(tmp_path / "new" / "demo", model, tokenizer, "# card\n")
    folder = tmp_path / "new" / "demo"
    files = {path.name: path for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
            "tokenizer_config.json", "README.md"} == files.keys()  # fmt: skip
    assert size == sum(path.stat().st_size for path in files.values())
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o644}
    assert files["README.md"].read_text(encoding="utf-8") == "# card\n"
    assert model.transformer.wte.weight.dtype == torch.float32

    ours = gptrs.load_model(folder, backend="ref")
    assert (ours.eos_tokens, ours.bos_token) == ({0}, 0)
    assert ours.generation_config["temperature"] == directory.TEMPERATURE
    assert ours.generation_config["top_k"] == directory.TOP_K
    ids = ours.tokenizer.encode(TEXT[:60])
    assert ids == tokenizer.encode(TEXT[:60]).ids
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits.numpy()
    found = ours.forward(np.array([ids]))
    assert np.abs(found - theirs).max() <= 1e-4 * np.abs(theirs).max()

    reread = transformers.AutoTokenizer.from_pretrained(folder)
    assert reread(TEXT[:60])["input_ids"] == ids
    assert (reread.eos_token, reread.model_max_length) == (tokens.END_OF_TEXT, SHAPE.context)


def test_an_older_model_is_replaced_as_a_whole(model, tokenizer, tmp_path) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    directory.save_directory(target, model, tokenizer, "old")
    (target / "notes.txt").write_text("of the old one")
    directory.save_directory(target, model, tokenizer, "new")
    assert (target / "README.md").read_text() == "new"
    assert not (target / "notes.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_folder_of_something_else_is_left_alone(model, tokenizer, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is not a model directory"):
        directory.save_directory(tmp_path, model, tokenizer, "card")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_error_leaves_what_was_there(model, tokenizer, tmp_path, monkeypatch) -> None:
    target = tmp_path / "demo"
    directory.save_directory(target, model, tokenizer, "old")

    def fails(path: Path, context: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(directory, "write_tokenizer_config", fails)
    with pytest.raises(OSError, match="the disk is full"):
        directory.save_directory(target, model, tokenizer, "new")
    with pytest.raises(FileNotFoundError):
        directory.replace_directory(target, tmp_path / "absent", tmp_path / "aside")
    assert (target / "README.md").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_the_card_says_what_was_measured(model) -> None:
    train, held_out = card.TextSize(40, 90_000, 30_000), card.TextSize(2, 5_000, 1_501)
    results = card.Results(held_out_loss=2.0, sample="def f():\n\n", prompt_tokens=3)
    assert results.bits_per_byte(held_out) == pytest.approx(2.0 / math.log(2) * 1500 / 5000)
    record = training.TrainingRecord(steps=1234, tokens=75_000, seconds=90.0, interrupted=True)
    text = card.model_card(model, train, held_out, record, results, "python train.py")
    for part in (
        "2.000 nats per token, 0.866 bits per byte",
        "1,234 steps, 75,000 tokens (2.5 passes), 1.5 minutes, interrupted before its end",
        f"{model.num_parameters():,} parameters",
        "| layers, heads, width | 2, 2, 16 |",
        "2 files, 5,000 bytes, 1,501 tokens",
        "def f():\n````",
        "python train.py",
    ):
        assert part in text


def test_the_command_in_the_card_is_one_that_the_script_takes() -> None:
    options = script.parse_options(["--minutes", "2.5", "--steps", "7", "--seed", "4"])
    command = script.command_line(options).split()
    assert command[:2] == ["python", "tools/train_demo_model.py"]
    again = script.parse_options(command[2:])
    assert vars(again) == vars(options)
    assert options.out == script.BUNDLED
    assert "--steps" not in script.command_line(script.parse_options([]))


@pytest.mark.parametrize("option", ["--minutes=0", "--minutes=nan", "--steps=-1", "--threads=x"])
def test_options_that_make_no_sense_are_refused(option, capsys) -> None:
    with pytest.raises(SystemExit):
        script.parse_options([option])
    assert option.partition("=")[0] in capsys.readouterr().err


def test_an_interrupt_saves_and_a_second_one_stops(capsys) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with script.stop_on_interrupt() as stopped:
            assert not stopped()
            signal.raise_signal(signal.SIGINT)
            assert stopped()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert "saving what is trained so far" in capsys.readouterr().err


def held_out_loss(model, ids: np.ndarray) -> float:
    """What gptrs says of windows of the model's context, in nats per token."""
    losses: list[float] = []
    for start in range(0, len(ids) - 1, SHAPE.context):
        window = ids[start : start + SHAPE.context + 1]
        logits = model.forward(window[None, :-1])[0].astype(np.float64)
        chosen = logits[np.arange(len(window) - 1), window[1:]]
        losses += (np.log(np.exp(logits).sum(-1)) - chosen).tolist()
    return float(np.mean(losses))


def test_the_script_from_corpus_to_folder(tmp_path, monkeypatch, capsys) -> None:
    files = [corpus.SourceFile(f"{n}.py", f"# file {n}\n{TEXT}") for n in range(4)]
    split = corpus.Corpus(tuple(files[:3]), tuple(files[3:]))
    monkeypatch.setattr(script, "standard_library_corpus", lambda: split)
    monkeypatch.setattr(script, "ModelShape", lambda: SHAPE)
    options = script.parse_options(["--steps", "12", "--out", str(tmp_path / "demo")])
    script.train_and_save(options, lambda: False)
    printed = capsys.readouterr().out
    loss = float(printed.partition("held-out loss ")[2].split()[0])
    assert loss < math.log(SHAPE.vocab_size)

    model = gptrs.load_model(tmp_path / "demo", backend="ref")
    ids = tokens.encode_documents(
        tokens.train_tokenizer([file.text for file in split.train], SHAPE.vocab_size),
        [file.text for file in split.held_out],
    ).numpy()
    assert held_out_loss(model, ids) == pytest.approx(loss, abs=2e-3)
    readme = (tmp_path / "demo" / "README.md").read_text(encoding="utf-8")
    assert "12 steps" in readme
    assert f"{loss:.3f} nats per token" in readme
    assert "--steps 12" in readme
