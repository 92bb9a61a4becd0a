"""What a loaded model computes follows its config, the environment, and overrides in force."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest

import gptrs
from functionals.temporary import implemented
from gptrs import functionals as F
from gptrs.errors import ModelError, UsageError
from gptrs.functionals.dispatch.active_overrides import ACTIVE
from gptrs_runtime.forward import command_line_overrides
from gptrs_runtime.generation.generate import GenerationOptions, stream
from gptrs_runtime.load import load_model

TOKENS = np.array([[1, 2, 3]])
SEEN: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _implementations():
    def recording(name):
        def gelu(x, approximate="none"):
            SEEN.append(name)
            return F.gelu(x, approximate)

        return gelu

    names = ("test_a", "test_b", "test_c", "test_d")
    with implemented("gelu", {name: recording(name) for name in names}):
        yield


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch):
    monkeypatch.delenv("GPTRS_OVERRIDES", raising=False)
    SEEN.clear()


@pytest.fixture
def configured(directory, tmp_path):
    """Loads a copy of the tiny model with this value of `runtime` in its config.json."""

    def load(runtime: object):
        folder = tmp_path / "configured"
        shutil.copytree(directory, folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text = json.dumps({**config, "runtime": runtime})
        (folder / "config.json").write_text(text, encoding="utf-8")
        return load_model(folder, backend="ref")

    return load


def choosing(policy: str) -> dict[str, object]:
    return {"functional_overrides": {"gelu": policy}}


def test_the_config_overrides_all_that_the_model_runs(configured, model):
    loaded = configured(choosing("force=test_a"))
    np.testing.assert_array_equal(loaded.forward(TOKENS), model.forward(TOKENS))
    assert set(SEEN) == {"test_a"}
    SEEN.clear()
    text = stream(loaded, [1, 2], GenerationOptions(max_tokens=2, ignore_eos=True))
    for _ in text:
        assert not ACTIVE.get()  # between the steps it does not hold
    assert set(SEEN) == {"test_a"}


def test_it_holds_in_every_thread(configured):
    loaded = configured(choosing("test_a"))
    thread = threading.Thread(target=lambda: loaded.forward(TOKENS))
    thread.start()
    thread.join()
    assert set(SEEN) == {"test_a"}


def test_other_models_are_not_affected(configured, model):
    configured(choosing("test_a")).forward(TOKENS)
    SEEN.clear()
    model.forward(np.array([[1, 2, 3, 4, 5]]))
    assert SEEN == []


def test_each_source_wins_over_those_before(configured, monkeypatch):
    configured(choosing("test_a")).forward(TOKENS)
    monkeypatch.setenv("GPTRS_OVERRIDES", "gelu=test_b")
    loaded = configured(choosing("test_a"))
    loaded.forward(TOKENS)
    with command_line_overrides(["gelu=test_a", "gelu=test_c"]):
        loaded.forward(TOKENS)
        with gptrs.overrides({"gelu": "test_d"}):
            loaded.forward(TOKENS)
            with command_line_overrides(["gelu=test_c"]):
                loaded.forward(TOKENS)
    assert list(dict.fromkeys(SEEN)) == ["test_a", "test_b", "test_c", "test_d"]
    assert SEEN[-1] == "test_d"


def test_a_model_still_says_what_it_can_do(configured):
    loaded = configured(choosing("test_a"))
    assert loaded.capabilities == {"causal_lm", "hidden_states"}
    lm = loaded.causal_lm()
    assert (lm.context_length, lm.vocab_size) == (64, 300)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = lm.no_such_thing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ({"functional_overrides": {"gelo": "test_a"}}, "no functional `gelo`; did you mean `gelu`"),
        ({"functional_overrides": {"gelu": "test_x"}}, "no implementation `test_x`; did you mean"),
        ({"functional_overrides": {"gelu": ["test_a"]}}, r"is not a policy for .* `gelu`"),
        (
            {"functional_overrides": "gelu"},
            "overrides` must be an object, found `'gelu'`",
        ),
        ("fast", "`runtime` must be an object, found `'fast'`"),
    ],
)
def test_a_config_that_overrides_what_does_not_exist_is_refused(configured, runtime, message):
    with pytest.raises(ModelError, match=message) as caught:
        configured(runtime)
    assert "config.json" in caught.value.message


@pytest.mark.parametrize("runtime", [{}, {"other": 1}, {"functional_overrides": {}}, None])
def test_a_config_without_overrides_is_left_alone(configured, runtime):
    configured(runtime).forward(TOKENS)
    assert SEEN == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gelu", r"`GPTRS_OVERRIDES` needs `FUNCTIONAL=POLICY`, got `gelu`"),
        ("=portable", r"needs `FUNCTIONAL=POLICY`, got `=portable`"),
        ("gelu=", r"needs `FUNCTIONAL=POLICY`, got `gelu=`"),
        ("gelu=fast", "functional `gelu` has no implementation `fast`"),
    ],
)
def test_a_variable_that_is_wrong_is_refused(directory, monkeypatch, value, message):
    monkeypatch.setenv("GPTRS_OVERRIDES", value)
    with pytest.raises(UsageError, match=message):
        load_model(directory, backend="ref")
