"""`--truncate` and `--no-truncate`: long texts are cut and told, cut, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_heads import save_tiny_head

CLASSES = "ForSequenceClassification"
NLI = ("contradiction", "neutral", "entailment")
SHORT, LONG = "the cat", "the cat sat " * 40
GIVEN = ("--text", SHORT, "--text", LONG, "--text", SHORT, "--backend", "ref")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cut")
    save_tiny_bert(root / "bert")
    save_tiny_head(root / "nli", CLASSES, NLI)
    save_tiny_head(root / "ranker", CLASSES, ("score",))
    return root


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (("embed",), "bert"),
        (("classify",), "nli"),
        (("classify", "--label", "red", "--label", "blue"), "nli"),
        (("rank", "--query", "red"), "ranker"),
    ],
)
def test_long_texts(gptrs, folder, command, model):
    asked = (*command, "--model", folder / model, *GIVEN)
    told = gptrs(*asked, "--json")
    assert (told.code, told.json["truncated"]) == (0, [1])
    assert "1 of 3 texts were cut to" in told.err
    cut = gptrs(*asked, "--json", "--truncate")
    assert cut.json["truncated"] == [1]
    assert "were cut" not in cut.err
    refused = gptrs(*asked, "--no-truncate")
    assert refused.code == 2
    assert "error: text 1 has 12" in refused.err
    assert "let it be cut: truncate=True, --truncate" in refused.err
    short = gptrs(*command, "--model", folder / model, "--text", SHORT, "--json", "--no-truncate")
    assert short.code == 0
    assert "truncated" not in short.json


def test_long_texts_beside_images(gptrs, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image", reason="images are read by Pillow")
    tiny_clip = pytest.importorskip("runtime.tiny_clip")
    monkeypatch.chdir(tmp_path)
    tiny_clip.save_tiny_clip(tmp_path / "clip")
    image.fromarray(np.zeros((8, 8, 3), np.uint8)).save("one.png")
    asked = ("match", "--model", "clip", "--image", "one.png", *GIVEN)
    told = gptrs(*asked, "--json")
    assert (told.code, told.json["truncated"]) == (0, [1])
    assert "1 of 3 texts were cut to" in told.err
    assert gptrs(*asked, "--no-truncate").code == 2
    pictures = gptrs("embed", "--model", "clip", "--image", "one.png", "--truncate")
    assert pictures.code == 2
    assert "`--truncate` is about texts, not about images" in pictures.err
