"""The training of the demo model: its tokens, its batches and schedule, and a loss that falls."""

from __future__ import annotations

import importlib
import itertools
import math

import pytest
from tokenizers import Tokenizer, models

torch = pytest.importorskip("torch", reason="the demo model is trained with torch")
pytest.importorskip("transformers", reason="the demo model is a model of transformers")

evaluation = importlib.import_module("demo_model.evaluation")
tokens = importlib.import_module("demo_model.tokenizer")
training = importlib.import_module("demo_model.training")

TEXTS = ["def double(x):\n    return x + x\n\n\n" * 30, "class Node:\n    pass\n" * 30 + "=" * 90]
SHAPE = training.ModelShape(vocab_size=280, context=16, width=16, layers=2, heads=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokens.train_tokenizer(TEXTS, SHAPE.vocab_size)


def plan(steps: int | None = None, **settings: float) -> training.TrainingPlan:
    return training.TrainingPlan(seconds=1000.0, steps=steps, seed=3, **settings)


def never() -> bool:
    return False


@pytest.mark.parametrize("text", [*TEXTS, "", " \n\t\n  x ", "naïve 你好 😀\r\n\x00"])
def test_any_text_can_be_encoded(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_lines_keep_their_structure(tokenizer: Tokenizer) -> None:
    found = tokenizer.encode("def double(x):\n    return x\n\n").tokens
    assert found.count("Ċ") == 3
    assert not any("Ċ" in token for token in found if token != "Ċ")
    assert found[found.index("Ċ") + 1] == "Ġ" * 4


def test_the_vocabulary_has_the_size_that_was_asked_for(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == list(range(SHAPE.vocab_size))
    assert (
        max(len(token) for token in vocabulary if token != tokens.END_OF_TEXT)
        <= tokens.MAX_TOKEN_LENGTH
    )


def test_documents_stand_between_ends(tokenizer: Tokenizer) -> None:
    ids = tokens.encode_documents(tokenizer, ["pass", "x + x"])
    first, second = tokenizer.encode("pass").ids, tokenizer.encode("x + x").ids
    end = tokens.end_of_text_id(tokenizer)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [end, *first, end, *second, end]


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no `<\|endoftext\|>` token"):
        tokens.end_of_text_id(Tokenizer(models.BPE()))


def test_what_is_reached_first_ends_the_training() -> None:
    both = plan(steps=10)
    assert both.part_done(0.0, 0) == 0
    assert both.part_done(500.0, 1) == 0.5
    assert both.part_done(1.0, 8) == 0.8
    assert both.part_done(2000.0, 0) == both.part_done(0.0, 20) == 1
    assert plan().part_done(250.0, 10**9) == 0.25


def test_the_rate_rises_and_falls_to_nothing() -> None:
    schedule = plan(learning_rate=0.5, warmup=0.2)
    rates = [schedule.learning_rate_at(part / 100) for part in range(101)]
    assert rates[0] == 0
    assert rates[10] == pytest.approx(0.25)
    assert rates[20] == max(rates) == 0.5
    assert rates[60] == pytest.approx(0.25)
    assert rates[100] == pytest.approx(0)
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_a_pass_covers_the_text_in_windows_that_follow_one_another() -> None:
    ids, context = torch.arange(1000), 16
    one_pass = (1000 - context) // context // 4  # batches
    batches = list(itertools.islice(training.shuffled_batches(ids, context, plan()), 2 * one_pass))
    assert all(batch.shape == (4, context + 1) for batch in batches)
    firsts = [batch[:, 0] for batch in batches]
    for batch, first in zip(batches, firsts, strict=True):
        assert torch.equal(batch, first[:, None] + torch.arange(context + 1))
    starts = torch.cat(firsts[:one_pass]).tolist()
    assert len(set(starts)) == len(starts)
    assert len({start % context for start in starts}) == 1
    assert starts != sorted(starts)
    again = list(itertools.islice(training.shuffled_batches(ids, context, plan()), 2 * one_pass))
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))


def test_too_short_a_text_is_refused() -> None:
    assert next(training.shuffled_batches(torch.arange(129), 16, plan())).shape == (4, 17)
    with pytest.raises(ValueError, match="at least 129 tokens of text, got 128"):
        next(training.shuffled_batches(torch.arange(128), 16, plan()))


def test_the_bundled_shape_has_the_size_that_is_said() -> None:
    model = training.new_model(training.ModelShape(), end_of_text=0, seed=0)
    assert round(model.num_parameters() / 1e6, 1) == 3.2
    assert round(2 * model.num_parameters() / 1e6, 1) == 6.3


def test_the_seed_decides_the_weights() -> None:
    first, same, other = (training.new_model(SHAPE, end_of_text=7, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.transformer.wte.weight, same.transformer.wte.weight)
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)
    assert first.config.eos_token_id == 7


def test_each_parameter_has_one_optimizer() -> None:
    model = training.new_model(SHAPE, end_of_text=0, seed=0)
    muon, adamw = (
        [p for group in optimizer.param_groups for p in group["params"]]
        for optimizer in training.new_optimizers(model, plan())
    )
    assert sorted(map(id, muon + adamw)) == sorted(map(id, model.parameters()))
    assert len(muon) == 4 * SHAPE.layers  # two of attention and two of the MLP
    assert id(model.transformer.wte.weight) in map(id, adamw)


def test_training_lowers_the_loss(tokenizer: Tokenizer) -> None:
    ids = tokens.encode_documents(tokenizer, TEXTS)
    model = training.new_model(SHAPE, tokens.end_of_text_id(tokenizer), seed=0)
    before = evaluation.held_out_loss(model, ids)
    assert before == pytest.approx(math.log(SHAPE.vocab_size), rel=0.05)
    record = training.train(model, ids, ids, plan(steps=60, learning_rate=1e-2), never)
    assert (record.steps, record.tokens) == (60, 60 * 4 * SHAPE.context)
    assert not record.interrupted
    assert evaluation.held_out_loss(model, ids) < before / 2


def test_training_stops_when_it_is_told_to(tokenizer: Tokenizer) -> None:
    ids = tokens.encode_documents(tokenizer, TEXTS)
    model = training.new_model(SHAPE, tokens.end_of_text_id(tokenizer), seed=0)
    asked = itertools.count()
    record = training.train(model, ids, ids, plan(steps=60), lambda: next(asked) >= 3)
    assert record.steps == 3
    assert record.interrupted


def test_the_held_out_loss_is_the_mean_over_windows() -> None:
    model = training.new_model(SHAPE, end_of_text=0, seed=0).eval()
    ids = torch.randint(280, (16 * 9 + 6,), generator=torch.Generator().manual_seed(0))
    losses: list[float] = []
    for start in range(0, len(ids) - 1, SHAPE.context):
        window = ids[start : start + SHAPE.context + 1]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        losses += (-logits.log_softmax(-1)[torch.arange(len(window) - 1), window[1:]]).tolist()
    assert len(losses) == len(ids) - 1
    assert evaluation.held_out_loss(model, ids) == pytest.approx(
        sum(losses) / len(losses), rel=1e-5
    )
    with pytest.raises(ValueError, match="at least 2 tokens of text, got 1"):
        evaluation.held_out_loss(model, ids[:1])
