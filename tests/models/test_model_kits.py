"""The kit of model kinds on kinds of gptrs that write from a source, hear, or fill masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gptrs
from gptrs_conformance.plugin_kits import models
from gptrs_conformance.plugin_kits.model_subject import model_in
from gptrs_conformance.plugin_kits.subject import run_kit
from models.ctc_models import save_ctc
from models.seq2seq_models import save_seq2seq
from models.sound_models import save_moonshine
from models.test_bert_heads import KINDS, SIZES
from models.test_whisper import save_whisper
from support.tiny_models import tiny

pytest.importorskip("torch", reason="the models are made by transformers")
pytest.importorskip("transformers", reason="the models are made by transformers")

WRITES = {check.__name__.replace("_", " ") for check in models.written_texts.CHECKS}
NEEDED: dict[str, set[str]] = {
    "t5": WRITES - {"refuses texts that are too long"},  # T5 has no limit
    "bart": WRITES,
    "whisper": WRITES,
    "moonshine": WRITES,
    "ctc": {"sounds in company are as alone"},
    "masked": {"masked tokens are each alone", "padding changes nothing"},
}
SAVE: dict[str, Callable[[Path], object]] = {
    "t5": lambda folder: save_seq2seq(folder, "t5"),
    "bart": lambda folder: save_seq2seq(folder, "bart"),
    "whisper": lambda folder: save_whisper(folder, 0),
    "moonshine": save_moonshine,
    "ctc": lambda folder: save_ctc(folder, "base", 0),
    "masked": lambda folder: tiny(folder, "BertForMaskedLM", {**SIZES, **KINDS["Bert"]}, seed=3),
}


@pytest.mark.parametrize("name", NEEDED)
def test_kinds_of_gptrs_pass(name: str, tmp_path: Path) -> None:
    SAVE[name](tmp_path / "m")
    # Settings of these kinds are tried by tests of their own.
    kit = [check for check in models.KIT if "settings" not in check.__name__]
    report = run_kit(model_in(tmp_path / "m"), kit, gptrs.get_backend("ref"))
    assert not report.failures, list(map(str, report.failures))
    passed = {check for check, status in report.checks.items() if status == "pass"}
    assert passed == {"claims what it has", *NEEDED[name]}
