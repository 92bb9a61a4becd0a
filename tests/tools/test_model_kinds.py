"""The table of popular kinds says what the code does, and most of them run."""

from __future__ import annotations

import model_kinds


def test_most_of_the_popular_kinds_run():
    kinds = [kind for group in model_kinds.POPULAR.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    refused = {kind: model_kinds.refusal(kind) for kind in kinds}
    sentences = {kind: why for kind, why in refused.items() if why is not None}
    assert len(kinds) - len(sentences) >= 90
    for kind, why in sentences.items():
        assert why.startswith(f"there is no model kind `{kind}`")
        assert "gptrs list models" in why


def test_the_page_is_up_to_date():
    assert model_kinds.PAGE.read_text(encoding="utf-8") == model_kinds.page_text(), (
        "run tools/model_kinds.py"
    )
