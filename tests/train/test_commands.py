"""`gptrs finetune` and `gptrs train`: files in, models and adapters that run out."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from io import StringIO

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer import BadParameter

from gptrs import jit, value_and_grad
from gptrs.capture.execute import use_backend
from gptrs.errors import ModelError, UsageError
from gptrs.optimizer.pipeline import Pipeline
from gptrs.plugins.manager import backend_of
from gptrs_backend_numba.backend import create
from gptrs_cli.command_group import command_of
from gptrs_runtime.load import load_model
from gptrs_runtime.quantize import quantize
from gptrs_runtime.sources.find_model import find_model
from gptrs_train import commands, runs
from gptrs_train import losses as learner_losses
from gptrs_train.chat_rows import DataError
from gptrs_train.learner import Batch, Learner, LowRank
from gptrs_train.products import adapter_config
from gptrs_train.saved_run import STATE, SavedRunError
from train.runs_support import CONFIGS, save_lm, stream

SIZES = {"hidden_size": 64, "intermediate_size": 96}
QUICK = ("--steps", "6", "--batch", "2", "--length", "16", "--rate", "1e-2", "--backend", "ref")


def gptrs(name, *args):
    """Run a command of the package; return its exit code."""
    command = command_of(getattr(commands, name), name)
    return command.main([str(each) for each in args], name, standalone_mode=False)


@pytest.fixture
def tokens(tmp_path):
    stream().tofile(tmp_path / "train.bin")
    return tmp_path / "train.bin"


def test_a_line_that_changes_never_wraps(monkeypatch):
    class Terminal(StringIO):
        def isatty(self):
            return True

        def fileno(self):
            return 2

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((9, 24)))
    show = commands._Line(True).watch().texts
    show(1, 2)
    show(2, 2)
    assert shown.getvalue() == "\r\x1b[K1 of 2 r\r\x1b[K2 of 2 rows read\n"


def losses(out):
    rows = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_an_adapter_is_written_that_runs(tokens, tmp_path, capsys, caplog):
    save_lm(tmp_path / "model", "llama")
    out = tmp_path / "adapter"
    tokens.with_name("test.bin").write_bytes(b"")
    caplog.set_level(logging.INFO, "gptrs")
    gptrs("finetune", tmp_path / "model", "--data", tmp_path, "--out", out, "--lora", 4, *QUICK,
          "--target", "q_proj", "--target", "down_proj", "--json")  # fmt: skip
    assert caplog.text.count("test.bin` is not read; --valid names a file to evaluate on") == 1
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["schema"], result["steps"], result["ended"]) == ("gptrs.train/1", 6, "done")
    assert "learns 1.2k of" in said.err
    assert "held out" in said.err
    config = json.loads((out / "adapter_config.json").read_bytes())
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert (config["r"], config["lora_alpha"]) == (4, 8.0)
    assert (out / "training.svg").read_text(encoding="utf-8").startswith("<svg")
    batch = stream()[:12].astype(np.int64)[np.newaxis]
    plain = load_model(tmp_path / "model", "ref").forward(batch)
    adapted = load_model(tmp_path / "model", "ref", adapter=out).forward(batch)
    assert 1e-4 < np.abs(adapted - plain).max() < 1
    assert "trained on other weights" not in caplog.text
    save_lm(tmp_path / "model", "llama", rms_norm_eps=1e-5, tie_word_embeddings=True)
    load_model(tmp_path / "model", "ref", adapter=out)
    assert "was trained on other weights than those of `model`" in caplog.text


def test_the_base_of_an_adapter_is_a_model_of_the_hub_not_a_path_in_its_cache(tmp_path):
    for folder in (tmp_path / "models--me--my--tiny" / "snapshots" / "1", tmp_path / "mine"):
        save_lm(folder, "llama")
        learner = Learner(find_model(folder), backend_of("ref", None), LowRank(2, 4.0))
        base = adapter_config(learner)["base_model_name_or_path"]
        assert base == (str(folder) if folder.name == "mine" else "me/my--tiny")


@pytest.mark.long
@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_an_adapter_is_learnt_on_a_quantized_base(form, tokens, tmp_path):
    save_lm(tmp_path / "model", "llama", **SIZES)
    base = tmp_path / ("q8.gguf" if form == "gguf" else "q4")
    quantize(tmp_path / "model", base, "q8" if form == "gguf" else "q4", to=None)
    out = tmp_path / "adapter"
    gptrs("finetune", base, "--data", tokens, "--out", out, "--lora", 4, *QUICK, "--steps", 16)
    found = losses(out)
    assert np.mean(found[-5:]) < np.mean(found[:5])
    batch = stream()[:12].astype(np.int64)[np.newaxis]
    adapted = load_model(base, "ref", adapter=out).forward(batch)
    assert np.abs(adapted - load_model(base, "ref").forward(batch)).max() > 1e-4
    with pytest.raises(ModelError, match="is quantized, and cannot be changed by small steps"):
        gptrs("finetune", base, "--data", tokens, "--out", tmp_path / "full", "--full", *QUICK)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_is_made_from_nothing(kind, tokens, tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    config = {"model_type": kind, **CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    out = tmp_path / "model"
    gptrs("train", folder, "--data", tokens, "--out", out, *QUICK, "--steps", 40)
    assert losses(out)[0] == pytest.approx(np.log(65), abs=0.1)
    assert losses(out)[-1] < losses(out)[0] - 0.5
    made = load_model(out, "ref")
    batch = stream(100, seed=9)[:64].astype(np.int64)[np.newaxis]
    logits = made.forward(batch[:, :-1])[0]
    costs = np.log(np.exp(logits).sum(-1)) - logits[np.arange(63), batch[0, 1:]]
    assert costs.mean() < losses(out)[0] - 0.4
    transformers = pytest.importorskip("transformers", reason="it must load the folder, too")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    with torch.no_grad():
        expected = loaded(torch.tensor(batch[:, :-1])).logits.numpy()[0]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.long
def test_a_run_can_be_profiled(tokens, tmp_path, capsys):
    save_lm(tmp_path / "model", "llama")
    run = ("finetune", tmp_path / "model", "--data", tokens, "--lora", 2, *QUICK, "--steps", 2)
    gptrs(*run, "--out", tmp_path / "told", "--profile")
    table = capsys.readouterr().err.partition("asked for by\n")[2]
    assert re.search(r"^ +\d+ +2 .* on ref$", table, re.M)
    gptrs(*run, "--out", tmp_path / "written", "--profile-out", tmp_path / "profile")
    assert "open report.html in it" in capsys.readouterr().err
    programs = json.loads((tmp_path / "profile" / "profile.json").read_bytes())["programs"]
    assert 2 in {each["runs"] for each in programs}
    assert losses(tmp_path / "told") == losses(tmp_path / "written")


def test_layers_of_a_quantized_base_stay_quantized(tmp_path):
    save_lm(tmp_path / "model", "llama", **SIZES)
    quantize(tmp_path / "model", tmp_path / "q4", "q4", to=None)
    learner = Learner(find_model(tmp_path / "q4"), backend_of("ref", None), LowRank(4, 8.0))
    kept = learner.params._parameters
    for layer in learner.layers:
        assert f"{layer}.weight" not in kept, "a decoded weight would be in memory all the time"
        assert f"{layer}.weight#codes" in kept


@pytest.mark.long
@pytest.mark.parametrize("tied", [True, False])
def test_a_quantized_head_and_table_are_decoded_in_parts(tied, tmp_path, monkeypatch):
    """The loss is that of the logits. Products of numba decode: no matrix is whole in memory."""
    save_lm(tmp_path / "model", "llama", **SIZES, tie_word_embeddings=tied)
    base = tmp_path / "q8.gguf"
    quantize(tmp_path / "model", base, "q8", to=None)
    reference = backend_of("ref", None)
    learner = Learner(find_model(base), reference, LowRank(4, 8.0))
    tokens = stream(30).astype(np.int64).reshape(2, 15)
    weights = np.linspace(0, 1, 28, dtype=np.float32).reshape(2, 14)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], weights, None)
    rng = np.random.default_rng(0)
    trained = {n: rng.normal(0, 0.1, x.shape).astype("f4") for n, x in learner.trained.items()}
    monkeypatch.setattr(learner_losses, "MOST_LOGITS", 10 * learner.vocabulary)

    def differentiated():
        step = jit(lambda trained, batch: value_and_grad(learner.loss)(trained, batch))
        with use_backend(reference):
            loss, grads = step(trained, batch)
            return loss.item(), {n: x.numpy() for n, x in grads.items()}, step.lower(trained, batch)

    loss, grads, program = differentiated()
    fused = str(Pipeline(fuse=tuple(create(1).fuse())).run(program))
    assert not re.findall(r"f32\[(?:32|64|65|96), (?:64|96)\]", fused)
    kept = re.findall(r"then\([^)]*f32\[(?:32|64|96), (?:64|96)\]", str(program))
    assert not kept, "matrices of layers are decoded again for the derivative"
    monkeypatch.setattr(Learner, "_decoded_head", lambda self, module: None)
    whole, expected, _ = differentiated()
    assert loss == pytest.approx(whole, rel=1e-6)
    for name, value in expected.items():
        np.testing.assert_allclose(grads[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    zeros = {n: x * 0 if n.endswith("B.weight") else x for n, x in trained.items()}
    logits = load_model(base, "ref").forward(tokens[:, :-1]).astype(np.float64)
    costs = (
        np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, tokens[:, 1:, None], 2)[..., 0]
    )
    with use_backend(reference):
        assert jit(learner.loss)(zeros, batch).item() == pytest.approx(
            (costs * weights).sum(), rel=1e-5
        )


def test_chosen_weights_alone_change(tokens, tmp_path):
    save_lm(tmp_path / "model", "llama")
    out = tmp_path / "out"
    gptrs("finetune", tmp_path / "model", "--data", tokens, "--out", out, *QUICK,
          "--weights", "*.mlp.*", "--held-out", 0)  # fmt: skip
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name, value in before.items() if not np.array_equal(value, after[name])}
    assert changed == {name for name in before if ".mlp." in name}


@pytest.mark.long
def test_early_stop_keeps_the_best_evaluation(tokens, tmp_path):
    save_lm(tmp_path / "model", "llama")
    out = tmp_path / "out"
    gptrs("finetune", tmp_path / "model", "--data", tokens, "--out", out, "--full", *QUICK,
          "--steps", 40, "--rate", 1, "--clip", 0, "--warmup", 0, "--eval-every", 1,
          "--patience", 3)  # fmt: skip
    report = json.loads((out / "training.json").read_bytes())["result"]
    assert report["ended"] == "early"
    assert report["steps"] == report["best_step"] + 3
    rows = [json.loads(row) for row in (out / "metrics.jsonl").read_text().splitlines()]
    held = [row["valid_loss"] for row in rows if "valid_loss" in row]
    assert report["best_loss"] == min(held)
    batches = stream()[2850:].astype(np.int64)
    logits = load_model(out, "ref").forward(batches[np.newaxis, :16])[0]
    costs = np.log(np.exp(logits).sum(-1)) - logits[np.arange(16), batches[1:17]]
    assert abs(costs.mean() - min(held)) < abs(costs.mean() - max(held))


@pytest.mark.long
def test_what_is_there_is_kept_unless_told(tokens, tmp_path):
    save_lm(tmp_path / "model", "llama")
    out = tmp_path / "out"
    args = ("finetune", tmp_path / "model", "--data", tokens, "--out", out, "--lora", 2, *QUICK)
    gptrs(*args)
    with pytest.raises(UsageError, match="out` exists"):
        gptrs(*args)
    gptrs(*args, "--resume", "--save-every", 3)
    with pytest.raises(UsageError, match="is another one: `batch` was `2`, is `3`"):
        gptrs(*args, "--resume", "--batch", 3)
    (out / "training.json").write_text("{")
    with pytest.raises(UsageError, match="out` exists"):
        gptrs(*args, "--resume")
    gptrs(*args, "--force", "--batch", 3)
    for kept, problem in ((tmp_path / "model", "lies in"), (tmp_path, "lies in")):
        with pytest.raises(UsageError, match=problem):
            gptrs(*args[:4], "--out", kept, *QUICK, "--force")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(UsageError, match="is not a model or adapter, which --force could replace"):
        gptrs(*args[:4], "--out", tmp_path / "mine", *QUICK, "--force")


@pytest.mark.parametrize(
    ("more", "error", "problem"),
    [
        (("--lora", 4, "--full"), UsageError, "--lora and --full exclude each other"),
        (("--target", "nothing"), UsageError, "has no linear layer `nothing`"),
        (("--weights", "nothing"), UsageError, "has no weight that fits `nothing`"),
        (("--length", 65), UsageError, "rows of 65 tokens do not fit into the context of 64"),
        (("--optimizer", "adam"), UsageError, "there is no optimizer `adam`"),
        (("--mask-prompt",), UsageError, "is not a .jsonl file: it has no prompts to mask"),
        (("--valid", "short.bin"), DataError, "has 3 tokens"),
        (("--alpha", "nan"), UsageError, "a finite alpha above 0, got 8 and nan"),
        (("--seed", 2**63), BadParameter, "less than or equal to"),
        (("--out", "."), UsageError, "`.` cannot be replaced by a whole folder"),
        (("--valid", "none.bin"), UsageError, "there is no file `none.bin` to evaluate on"),
    ],
)
def test_bad_settings_are_told_before_any_work(more, error, problem, tokens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.arange(3, dtype="<u2").tofile("short.bin")
    save_lm(tmp_path / "model", "llama")
    with pytest.raises(error, match=problem):
        gptrs("finetune", "model", "--data", tokens, "--out", "out", *QUICK, *more)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.run").exists()


def test_too_little_memory_or_disk_is_told_before_any_work(tokens, tmp_path, monkeypatch):
    save_lm(tmp_path / "model", "llama")
    args = ("finetune", tmp_path / "model", "--data", tokens, "--out", tmp_path / "out", "--full")
    usage = runs.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(SavedRunError, match="has 1 kB free"):
        gptrs(*args, *QUICK)
    monkeypatch.setattr(runs, "memory_limit", lambda: 1000)
    with pytest.raises(UsageError, match="weights, gradients and moments take"):
        gptrs(*args, *QUICK)


def test_the_room_on_the_disk_is_for_the_whole_model_that_few_weights_change(
    tokens, tmp_path, monkeypatch
):
    save_lm(tmp_path / "model", "llama")
    args = ("finetune", tmp_path / "model", "--data", tokens, "--out", tmp_path / "out")
    some = ("--weights", "norm.weight", *QUICK)
    free = (tmp_path / "model" / "model.safetensors").stat().st_size // 2
    usage = runs.shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SavedRunError, match="the state and the result of the run take"):
        gptrs(*args, *some)
    state = tmp_path / "out.run" / STATE  # that of another run, which --force removes
    state.parent.mkdir()
    state.write_bytes(bytes(4 * free))
    gptrs(*args, *some, "--force")


def test_a_copied_head_is_learnt_as_one_weight_and_not_written(tokens, tmp_path):
    save_lm(tmp_path / "model", "llama")
    path, base = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "config.json"
    stored = load_file(path)
    table = np.array(stored["embed_tokens.weight"])
    save_file({**stored, "lm_head.weight": table}, path)
    config = json.loads(base.read_text(encoding="utf-8"))
    base.write_text(json.dumps({**config, "tie_word_embeddings": True}), encoding="utf-8")
    out = tmp_path / "out"
    gptrs("finetune", tmp_path / "model", "--data", tokens, "--out", out, "--full", *QUICK)
    written = load_file(out / "model.safetensors")
    assert "lm_head.weight" not in written
    assert np.abs(written["embed_tokens.weight"] - table).max() > 1e-3


def test_other_models_do_not_learn(tokens, tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    config = {"model_type": "bert", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 12}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="is a `bert` model, which does not continue texts"):
        gptrs("train", folder, "--data", tokens, "--out", tmp_path / "out", *QUICK)
