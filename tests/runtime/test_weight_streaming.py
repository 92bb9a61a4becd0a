"""A model whose weights pass through less memory than they take gives the same bits."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import gptrs
from gptrs.capture.streaming.streamed_executable import MruStreamer
from gptrs.errors import ModelError, UsageError
from gptrs.nn.causal_lm import CausalLMModule
from gptrs.nn.page_buffers import PagedTexts
from gptrs_runtime.loaded_model import LoadedModel
from runtime.tiny_gpt2 import save_tiny_gpt2
from runtime.tiny_resnet import save_tiny_resnet

TOKENS = np.array([[5, 250, 7, 7, 31]])
PIN_BELOW = 300
"""Bytes: a few biases of the tiny model stay, the others do not."""
LEAST = 62_000
"""What the largest part of the tiny model needs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    streaming = {"weight_streaming": {"pin_below": PIN_BELOW}}
    return save_tiny_gpt2(tmp_path_factory.mktemp("models") / "m", n_layer=3, runtime=streaming)


def load(folder: Path, backend, budget: int | str = LEAST) -> LoadedModel:
    return gptrs.load_model(folder, backend.name, weight_budget=budget)


def streamer_of(model: LoadedModel) -> MruStreamer:
    assert model.streamer is not None
    return model.streamer


def steps(model: LoadedModel) -> list[bytes]:
    """The logits of a prompt and of some tokens after it."""
    texts = PagedTexts(model.causal_lm(), 1, 32)
    pieces = [TOKENS, TOKENS[:, :1], TOKENS[:, 1:2], TOKENS[:, :3]]
    return [texts.append(piece).tobytes() for piece in pieces]


@pytest.mark.long
@pytest.mark.parametrize("budget", [LEAST, "60%", "90%"])
def test_every_bit_is_the_same(folder, backend, budget):
    whole, streamed = load(folder, backend, "off"), load(folder, backend, budget)
    assert whole.streamer is None
    for _ in range(2):
        assert streamed.forward(TOKENS).tobytes() == whole.forward(TOKENS).tobytes()
    assert steps(streamed) == steps(whole)


def test_few_programs_serve_all_lengths(folder, backend, monkeypatch):
    if not backend.symbolic:
        pytest.skip("the backend compiles no symbols")
    whole, streamed = load(folder, backend, "off"), load(folder, backend, LEAST)
    monkeypatch.setattr(type(backend), "compile", lambda *_: pytest.fail("for one size only"))
    models = [PagedTexts(model.causal_lm(), 1, 64) for model in (whole, streamed)]
    for length in range(1, 21):
        tokens = np.arange(length)[None]
        alone, in_parts = (texts.append(tokens).tobytes() for texts in models)
        assert alone == in_parts
        for texts in models:
            texts.lengths = [0]
    lm = cast("CausalLMModule", streamed.causal_lm())
    assert lm._step.compiled <= 3


def test_convolutions_too(tmp_path, backend):
    streaming = {"weight_streaming": {"pin_below": 64}}
    folder = save_tiny_resnet(tmp_path / "m", runtime=streaming)
    images = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    whole, streamed = load(folder, backend, "off"), load(folder, backend, "70%")
    for _ in range(2):
        assert streamed.forward(images).tobytes() == whole.forward(images).tobytes()
    streamer = streamer_of(streamed)
    assert 0 < streamer.most_held <= streamer.streaming.budget


def test_a_budget_is_kept(folder, backend):
    model = load(folder, backend)
    streamer = streamer_of(model)
    steps(model)
    assert 0 < streamer.most_held <= LEAST
    assert streamer.bytes_held <= LEAST


def test_backends_keep_no_copies(folder):
    packing = pytest.importorskip("gptrs_backend_numba.packing")
    model = gptrs.load_model(folder, "numba", weight_budget=LEAST)
    gc.collect()
    before = packing.PACKED_WEIGHTS.nbytes
    steps(model)
    assert packing.PACKED_WEIGHTS.nbytes - before <= 2 * PIN_BELOW * 12, "but of pinned ones"


def test_a_larger_budget_reads_less(folder, backend):
    read: list[int] = []
    for budget in ("40%", "70%", "95%"):
        model = load(folder, backend, budget)
        model.forward(TOKENS)
        before = streamer_of(model).bytes_read
        model.forward(TOKENS)
        read.append(streamer_of(model).bytes_read - before)
    assert read[0] > read[1] > read[2] >= 0


def test_tables_are_not_read_whole(tmp_path, backend):
    """GPT-2 reads `wte` by rows and, as its head, as a matrix: once a step, in the last part."""
    if not backend.reads_mapped_files:
        pytest.skip("the backend has weights in memory")
    folder = save_tiny_gpt2(
        tmp_path / "m", n_positions=4096, n_embd=64, runtime={"weight_streaming": {"pin_below": 0}}
    )
    model = load(folder, backend, "50%")
    model.forward(TOKENS)
    positions = 4096 * 64 * 4
    others = sum(model.weights.type_of(name).nbytes for name in model.weights.names()) - positions
    assert 0.9 * others < streamer_of(model).bytes_read <= others


def test_models_side_by_side_keep_to_their_own_budgets(folder, backend):
    models = [load(folder, backend, budget) for budget in (LEAST, "50%", "off")]
    runs = [[model.forward(TOKENS).tobytes() for model in models] for _ in range(2)]
    assert len({result for run in runs for result in run}) == 1
    for model in models[:2]:
        streamer = streamer_of(model)
        assert streamer.most_held <= streamer.streaming.budget


def test_threads_share_a_budget(folder, backend):
    model = load(folder, backend)
    expected = steps(load(folder, backend, "off"))
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(steps(model))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]
    assert streamer_of(model).most_held <= LEAST


def _prefetching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "gptrs-prefetch"}


def test_the_thread_ends_with_its_model(folder, backend):
    gc.collect()
    before = _prefetching()
    model = load(folder, backend)
    model.forward(TOKENS)
    (thread,) = _prefetching() - before
    del model
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_without_prefetching_there_is_no_thread(tmp_path, backend):
    runtime = {"weight_streaming": {"budget": LEAST, "prefetch": 0, "pin_below": PIN_BELOW}}
    folder = save_tiny_gpt2(tmp_path / "m", n_layer=3, runtime=runtime)
    gc.collect()
    before = _prefetching()
    model = gptrs.load_model(folder, backend.name)
    expected = load(folder, backend, "off").forward(TOKENS)
    assert np.array_equal(model.forward(TOKENS), expected)
    assert _prefetching() <= before


def test_weights_are_freed_with_their_model(folder, backend):
    model = load(folder, backend)
    model.forward(TOKENS)
    streamer = streamer_of(model)
    assert streamer.bytes_held > 0
    del model
    gc.collect()
    assert streamer.bytes_held == 0


def test_too_small_a_budget_says_what_is_the_least(folder, backend):
    model = load(folder, backend, 20_000)
    problem = r"20000 bytes is too small: `transformer\.wte\.weight`, a `f32\[300, 32\]`"
    with pytest.raises(ModelError, match=problem) as refused:
        model.forward(TOKENS)
    assert refused.value.hint is not None
    least = int(refused.value.hint.split()[-2])
    expected = load(folder, backend, "off").forward(TOKENS)
    assert np.array_equal(load(folder, backend, least).forward(TOKENS), expected)


def test_a_program_that_fails_releases_its_weights(folder, backend):
    model = load(folder, backend)
    with pytest.raises(UsageError):
        model.forward(np.array([[99_999]]))
    with pytest.raises(gptrs.errors.GptrsError):
        model.causal_lm().forward(np.array([[99_999]]))
    expected = load(folder, backend, "off").forward(TOKENS)
    assert np.array_equal(model.forward(TOKENS), expected)


@pytest.mark.parametrize(
    ("stated", "total_share"),
    [("100000", None), ("100kB", None), ("97.65625 KiB", None), ("50%", 0.5), ("0.1MB", None)],
)
def test_sizes_are_numbers_units_and_shares(folder, stated, total_share):
    model = gptrs.load_model(folder, "ref", weight_budget=stated)
    total = sum(model.weights.type_of(name).nbytes for name in model.weights.names())
    budget = streamer_of(model).streaming.budget
    assert budget == (100_000 if total_share is None else int(total * total_share))


def test_the_argument_wins_over_the_environment_and_that_over_the_config(
    tmp_path, folder, monkeypatch
):
    runtime = {"weight_streaming": {"budget": "100kB", "prefetch": 3}}
    own = save_tiny_gpt2(tmp_path / "m", runtime=runtime)
    streaming = streamer_of(gptrs.load_model(own, "ref")).streaming
    assert (streaming.budget, streaming.prefetch, streaming.pin_below) == (100_000, 3, 65_536)
    monkeypatch.setenv("GPTRS_WEIGHT_BUDGET", "90kB")
    assert streamer_of(gptrs.load_model(own, "ref")).streaming.budget == 90_000
    assert (
        streamer_of(gptrs.load_model(own, "ref", weight_budget=80_000)).streaming.budget == 80_000
    )
    monkeypatch.setenv("GPTRS_WEIGHT_BUDGET", "off")
    assert gptrs.load_model(own, "ref").streamer is None
    assert gptrs.load_model(folder, "ref").streamer is None


def test_a_model_that_fits_is_not_streamed(folder, caplog):
    with caplog.at_level(logging.INFO, logger="gptrs"):
        assert gptrs.load_model(folder, "ref", weight_budget="100%").streamer is None
    assert "weight streaming is off: all weights, 199 kB, fit" in caplog.text


def test_the_user_is_told(folder, caplog):
    with caplog.at_level(logging.INFO, logger="gptrs"):
        gptrs.load_model(folder, "ref", weight_budget="100kB")
    said = "is on: 199 kB of weights pass through 100 kB of memory, a step reads up to 124 kB"
    assert said in caplog.text


@pytest.mark.parametrize("stated", ["", "2 parsecs", "GB", "-1", "1e9", "0", 0, -5, "0%", "²"])
def test_wrong_budgets_are_refused(folder, stated):
    with pytest.raises(UsageError, match="`weight_budget` must be a size above 0") as refused:
        gptrs.load_model(folder, "ref", weight_budget=stated)
    assert repr(stated) in str(refused.value)


def test_a_wrong_variable_is_named(folder, monkeypatch):
    monkeypatch.setenv("GPTRS_WEIGHT_BUDGET", "much")
    with pytest.raises(UsageError, match=r"`GPTRS_WEIGHT_BUDGET` must be .*, found `'much'`"):
        gptrs.load_model(folder, "ref")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([1], "must be an object, found"),
        ({"bugdet": 5}, "`runtime.weight_streaming` has an unknown field `bugdet`"),
        ({"budget": True}, "`budget` in"),
        ({"budget": [5]}, "`budget` in"),
        ({"budget": "lots"}, "found `'lots'`"),
        (
            {"budget": "1GB", "prefetch": -1},
            "prefetch` must be an integer >= 0, found `-1`",
        ),
        (
            {"pin_below": "64kB"},
            "pin_below` must be an integer, found `'64kB'`",
        ),
    ],
)
def test_wrong_settings_of_a_config_are_named(tmp_path, settings, problem):
    folder = save_tiny_gpt2(tmp_path / "m", runtime={"weight_streaming": settings})
    with pytest.raises(ModelError, match=problem) as refused:
        gptrs.load_model(folder, "ref")
    assert "runtime.weight_streaming" in str(refused.value)
