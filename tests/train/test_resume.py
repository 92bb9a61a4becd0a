"""A run that was killed, or interrupted, goes on with the bits that it would have had."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import killed_training
from gptrs.errors import UsageError
from gptrs_train import saved_run
from gptrs_train.saved_run import SavedRun
from gptrs_train.trainer import DivergedError, Trainer
from train.runs_support import run, save_lm, settings

TIMES = ("seconds",)


def metrics(folder: Path) -> list[dict]:
    rows = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(row).items() if k not in TIMES} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("kind", killed_training.KINDS)
def test_a_killed_run_goes_on_with_the_same_bits(kind, tmp_path):
    save_lm(tmp_path / "model", "llama")
    assert killed_training.compare(tmp_path, str(tmp_path / "model"), 3, 16, 0, (kind,)) == 0


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    saved = SavedRun.beside(tmp_path / "out", {"rate": 1e-3, "save_every": 3})
    with pytest.raises(UsageError, match="no run to resume"):
        saved.load()
    saved.begin()
    state = {"trained": {"a.b": np.arange(3.0)}, "optimizer": {"count": np.int32(7)}}
    saved.save(state, saved_run.Progressed(step=4, best=1.5))
    found, at = SavedRun.beside(tmp_path / "out", {"rate": 1e-3, "save_every": 9}).load()
    assert (at.step, at.best) == (4, 1.5)
    np.testing.assert_array_equal(found["trained"]["a.b"], np.arange(3.0))
    assert found["optimizer"]["count"] == 7
    with pytest.raises(UsageError, match=r"`rate` was `0\.001`, is `0\.002`"):
        SavedRun.beside(tmp_path / "out", {"rate": 2e-3, "save_every": 3}).load()


def test_a_file_that_is_no_state_of_a_run_is_refused(tmp_path):
    saved = SavedRun.beside(tmp_path / "out", {})
    saved.begin()
    save_file({"a": np.zeros(2)}, saved.folder / saved_run.STATE)
    with pytest.raises(saved_run.SavedRunError, match=r"safetensors` is not the state of a run"):
        saved.load()


def test_a_run_has_one_process(tmp_path):
    saved, other = (SavedRun.beside(tmp_path / "out", {}) for _ in range(2))
    with saved.alone():
        saved.begin()
        saved.save({"trained": {}}, saved_run.Progressed(step=2))
        with (
            pytest.raises(UsageError, match=r"another process is writing .*out\.run"),
            other.alone(),
        ):
            pytest.fail("two write one run")
    with other.alone(), SavedRun.beside(tmp_path / "none", {}).alone():
        assert other.exists
    assert not (tmp_path / "none.run").exists()


def test_measurements_after_the_saved_state_are_forgotten(tmp_path):
    saved = SavedRun.beside(tmp_path / "out", {})
    saved.begin()
    saved.save({"trained": {}}, saved_run.Progressed(step=2))
    rows = [json.dumps({"step": step, "loss": 1.0}) for step in (1, 2, 3)] + ["[1]", '"x"', "{}"]
    (saved.folder / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 4, "lo']))
    saved.load()
    assert [row["step"] for row in metrics(saved.folder)] == [1, 2]


def test_a_full_disk_is_told_with_the_file_that_is_not_written(tmp_path, monkeypatch):
    saved = SavedRun.beside(tmp_path / "out", {})
    saved.begin()
    with saved.measured() as found:
        monkeypatch.setattr(found, "_file", open("/dev/full", "ab", buffering=0))  # noqa: SIM115
        with pytest.raises(saved_run.SavedRunError, match=r"write `metrics\.jsonl`: No space left"):
            found.add({"step": 1})
        found._file.close()
    (saved.folder / "metrics.jsonl").unlink()
    (saved.folder / "metrics.jsonl").mkdir()
    with pytest.raises(saved_run.SavedRunError, match="Is a directory"), saved.measured():
        pytest.fail("a folder is no file")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_after_an_update_and_keeps_all(number, tmp_path):
    save_lm(tmp_path / "model", "llama")
    before = Trainer._require_finite

    def interrupting(self, loss, norm):
        before(self, loss, norm)
        if self.at.step == 3:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_require_finite", interrupting)
        chosen = settings(steps=6)
        trainer, _, losses = run(tmp_path / "model", tmp_path / "out", ["*"], "ref", chosen)
    assert trainer.at.step == len(losses) == 3
    _, whole, all_losses = run(
        tmp_path / "model", tmp_path / "out", ["*"], "ref", chosen, resume=True
    )
    _, expected, expected_losses = run(tmp_path / "model", tmp_path / "o", ["*"], "ref", chosen)
    assert all_losses == expected_losses
    for name, value in expected.items():
        assert value.tobytes() == whole[name].tobytes()


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    save_lm(tmp_path / "model", "llama")
    chosen = settings(rate=1e38, warmup=0, clip=0.0, optimizer="sgd", save_every=1)
    with pytest.raises(DivergedError, match=r"the loss of update \d+ is") as caught:
        run(tmp_path / "model", tmp_path / "out", ["*"], "ref", chosen)
    assert "out.run" in caught.value.message
