"""Logits processors: those of transformers, OpenAI's penalties, and those of the user."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gptrs
from gptrs.errors import ExecutionError, UsageError
from gptrs_runtime.generation.logits_processors import (
    AllowedTokens,
    NoRepeatNgrams,
    ProcessorChain,
    TokenCounts,
    TokenRules,
    bounds_of,
    built_in_processors,
)
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.scheduled_text import Work
from gptrs_runtime.generation.setup import GenerationSetup
from runtime.tiny_gpt2 import save_tiny_gpt2

SIZE = 40
PROMPT = [3, 7, 3, 9]
SAID = [7, 1, 3, 7, 1]
ENDS = frozenset({5, 1})
GREEDY = Sampling(temperature=0)


def applied(sampling: Sampling, rules: TokenRules, said: list[int]) -> np.ndarray:
    """Our logits after the prompt and `said`, having processed those of each token before."""
    processors = built_in_processors(
        sampling, rules, ENDS, len(PROMPT), count=len(SAID) + 1, source=PROMPT
    )
    assert processors
    chain = ProcessorChain(processors, PROMPT)
    for token in said:
        chain(logits())
        chain.append(token)
    return chain(logits())


def logits() -> np.ndarray:
    return np.random.default_rng(4).normal(0, 3, SIZE).astype(np.float32)


def theirs(processor: object, said: list[int]) -> np.ndarray:
    torch = pytest.importorskip("torch", reason="parity needs torch")
    return processor(torch.tensor([[*PROMPT, *said]]), torch.from_numpy(logits())[None])[0].numpy()


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="parity needs transformers")


@pytest.mark.long
@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(transformers, penalty):
    expected = theirs(transformers.RepetitionPenaltyLogitsProcessor(penalty), SAID)
    ours = applied(Sampling(repetition_penalty=penalty), TokenRules(), SAID)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("said", [[], SAID], ids=str)
def test_repeated_ngrams_are_those_of_transformers(transformers, size, said):
    expected = theirs(transformers.NoRepeatNGramLogitsProcessor(size), said)
    ours = applied(Sampling(), TokenRules(no_repeat_ngram_size=size), said)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 5, 6])
def test_early_ends_are_those_of_transformers(transformers, count):
    make = transformers.MinNewTokensLengthLogitsProcessor
    expected = theirs(make(len(PROMPT), count, list(ENDS)), SAID)
    ours = applied(Sampling(), TokenRules(min_new_tokens=count), SAID)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("more", [2, 3, 5, 6])
def test_ends_before_a_whole_length_are_those_of_transformers(transformers, more):
    length = len(PROMPT) + more
    expected = theirs(transformers.MinLengthLogitsProcessor(length, list(ENDS)), SAID)
    ours = applied(Sampling(), TokenRules(min_length=length), SAID)
    np.testing.assert_array_equal(ours, expected)
    both = applied(Sampling(), TokenRules(min_length=length, min_new_tokens=1), SAID)
    np.testing.assert_array_equal(both, applied(Sampling(), TokenRules(min_new_tokens=1), SAID))


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("said", [[], SAID, [7], [2] * 3], ids=str)
def test_bad_words_are_those_of_transformers(transformers, said):
    words = [[8], [7, 1, 4], [7, 1, 6], [3, 9, 11], [9, 12], [7, 13], [2, 2, 14], [5], [5, 5]]
    words += [[0] * 20, [3, 7, 3, 9, 15]]
    processor = transformers.NoBadWordsLogitsProcessor(words, eos_token_id=5)
    ours = applied(Sampling(), TokenRules(bad_words=tuple(map(tuple, words))), said)
    np.testing.assert_array_equal(ours, theirs(processor, said))


@pytest.mark.parametrize("said", [[], SAID, [7], [2] * 3], ids=str)
def test_other_rules_are_those_of_transformers(transformers, said):
    source = pytest.importorskip("torch").tensor([PROMPT])
    biases = [[[8], 2.5], [[7, 1], -3.0], [[3, 7, 1, 1], 1.5], [[2, 2, 8], 4.0], [[0] * 20, 1.0]]
    pairs = {
        transformers.SequenceBiasLogitsProcessor(biases): TokenRules(
            biases=tuple((tuple(tokens), bias) for tokens, bias in biases)
        ),
        transformers.EncoderRepetitionPenaltyLogitsProcessor(1.5, source): TokenRules(
            encoder_repetition_penalty=1.5
        ),
        transformers.EncoderNoRepeatNGramLogitsProcessor(2, source): TokenRules(
            encoder_no_repeat_ngram_size=2
        ),
        transformers.ForcedEOSTokenLogitsProcessor(len(PROMPT) + len(SAID) + 1, [4, 5]): TokenRules(
            forced_last=(4, 5)
        ),
        transformers.ExponentialDecayLengthPenalty((1, 1.3), [5, 1], len(PROMPT)): TokenRules(
            length_decay=(1, 1.3)
        ),
    }
    for processor, rules in pairs.items():
        expected = theirs(processor, said)
        np.testing.assert_allclose(applied(Sampling(), rules, said), expected, rtol=2e-7)


@pytest.mark.long
@pytest.mark.parametrize("said", [[], SAID], ids=str)
def test_suppressed_tokens_are_those_of_transformers(transformers, said):
    make = transformers.SuppressTokensAtBeginLogitsProcessor
    expected = theirs(make([2, 8], len(PROMPT)), said)
    np.testing.assert_array_equal(
        applied(Sampling(), TokenRules(begin_suppress=(2, 8)), said), expected
    )
    always = theirs(transformers.SuppressTokensLogitsProcessor([2, 8, 11]), said)
    ours = applied(Sampling(), TokenRules(suppress=(2, 8, 11, SIZE + 3)), said)
    np.testing.assert_array_equal(ours, always)


def test_a_source_may_have_tokens_that_the_text_lacks():
    rules = TokenRules(encoder_repetition_penalty=2)
    (made,) = built_in_processors(GREEDY, rules, ENDS, 1, source=[3, SIZE, SIZE + 9])
    found = made(np.array([0]), np.ones(SIZE, np.float32))
    assert found[3] == 2
    assert found.sum() == SIZE + 1


def test_presence_and_frequency_count_what_was_generated():
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    expected = logits()
    for token, count in {7: 2, 1: 2, 3: 1}.items():
        expected[token] -= np.float32(0.5 + 0.25 * count)
    np.testing.assert_allclose(applied(sampling, TokenRules(), SAID), expected, rtol=1e-6)
    np.testing.assert_array_equal(applied(sampling, TokenRules(), []), logits())


def test_the_logits_that_are_given_stay():
    given = logits()
    processors = built_in_processors(
        Sampling(repetition_penalty=2), TokenRules(suppress=(1,)), ENDS, len(PROMPT)
    )
    ProcessorChain(processors, PROMPT)(given)
    np.testing.assert_array_equal(given, logits())


def test_nothing_is_copied_where_nothing_is_processed():
    assert built_in_processors(Sampling(), TokenRules(), ENDS, len(PROMPT)) == []
    given = logits()
    assert ProcessorChain([], PROMPT)(given) is given


@pytest.mark.parametrize("size", [8, 64, 131])
def test_masks_and_allowed_tokens_leave_the_logits_of_others_as_they_are(size):
    random = np.random.default_rng(size)
    is_allowed = random.random(size) < 0.5
    given = random.normal(0, 3, size).astype(np.float32)
    given[:4] = np.inf, -np.inf, -0.0, 0.0
    wanted = np.where(is_allowed, given, np.float32(-np.inf))
    packed = np.packbits(is_allowed, bitorder="little")
    found = np.minimum(given, bounds_of(packed)[:size])
    assert found.tobytes() == wanted.tobytes()
    keep = AllowedTokens(np.flatnonzero(is_allowed).tolist(), size)
    assert keep(np.array(PROMPT), given.copy()).tobytes() == wanted.tobytes()


def test_counts_grow():
    tokens = np.random.default_rng(1).integers(0, 500, 2000)
    counts = TokenCounts()
    for end in (0, 1, 900, 2000):
        counts.update(tokens[:end])
    expected = np.bincount(tokens, minlength=500)
    found = np.zeros(500)
    found[counts.tokens] = counts.counts
    np.testing.assert_array_equal(found, expected)
    assert counts.tokens.size == np.count_nonzero(expected)


def test_ngrams_are_followed_token_by_token():
    processor, tokens = NoRepeatNgrams(3), np.array([1, 2, 3, 1, 2, 4, 1, 2, 5])
    for end, suppressed in ((8, [3, 4]), (9, [])):
        found = processor(tokens[:end], np.zeros(SIZE, np.float32))
        assert np.flatnonzero(np.isneginf(found)).tolist() == suppressed


@pytest.fixture(scope="module")
def suppressing(tmp_path_factory):
    """A model whose generation_config.json suppresses token 8."""
    folder = tmp_path_factory.mktemp("suppressing") / "tiny"
    settings = {"suppress_tokens": [8]}
    return gptrs.load_model(save_tiny_gpt2(folder, generation_config=settings), "ref")


class Recorder:
    """A processor that records what it is given."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.suppressed: list[bool] = []

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        assert (tokens.dtype, logits.dtype, logits.ndim) == (np.int64, np.float32, 1)
        assert not tokens.flags.writeable
        self.tokens.append(tokens.tolist())
        self.suppressed.append(bool(np.isneginf(logits[8])))
        return logits


def only(token: int):
    """A processor that leaves one token."""

    def keep(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return np.where(np.arange(logits.size) == token, np.float32(0), np.float32(-np.inf))

    return keep


def test_a_processor_sees_the_tokens_so_far_after_the_built_in_ones(suppressing):
    recorder = Recorder()
    found = gptrs.generate(
        suppressing, PROMPT, max_tokens=4, sampling=GREEDY, logits_processors=[recorder, only(6)]
    )
    assert found.token_ids == (6, 6, 6, 6)
    assert recorder.tokens == [PROMPT, [*PROMPT, 6], [*PROMPT, 6, 6], [*PROMPT, 6, 6, 6]]
    assert recorder.suppressed == [True] * 4


def test_the_user_has_the_last_word(suppressing):
    found = gptrs.generate(
        suppressing, PROMPT, max_tokens=2, sampling=GREEDY, logits_processors=[only(8)]
    )
    assert found.token_ids == (8, 8)


def test_processors_run_for_each_text_of_a_batch_and_each_continuation(model):
    options = gptrs.GenerationOptions(3, GREEDY, ignore_eos=True, logits_processors=[only(4)])
    texts = [
        *gptrs.generate_batch(model, [[5, 9], [7]], options),
        *gptrs.generate_several(model, [5], 2, options),
    ]
    assert [text.token_ids for text in texts] == [(4, 4, 4)] * 4
    pieces = gptrs.stream(model, [5], options)
    list(pieces)
    assert pieces.generation.token_ids == (4, 4, 4)


def test_scores_are_those_of_the_model(model):
    plain = gptrs.GenerationOptions(1, GREEDY, ignore_eos=True, logprobs=3)
    changed = gptrs.GenerationOptions(
        1, GREEDY, ignore_eos=True, logprobs=3, logits_processors=[only(4)]
    )
    (without,), (text,) = (
        gptrs.generate_batch(model, [[5]], options) for options in (plain, changed)
    )
    assert text.logprobs[0].token == 4
    assert text.logprobs[0].top == without.logprobs[0].top


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda logits: logits.astype(np.float64), r"float64\[\d+\]"),
        (lambda logits: logits[:-1], r"float32\[\d+\]"),
        (lambda logits: logits[None], r"float32\[1, \d+\]"),
        (lambda logits: logits.tolist(), "list"),
        (lambda logits: None, "NoneType"),
    ],
)
def test_other_results_are_refused(model, result, got):
    def broken(tokens: np.ndarray, logits: np.ndarray) -> object:
        return result(logits)

    message = rf"logits processor `broken` must return an array float32\[\d+\], got {got}$"
    with pytest.raises(UsageError) as caught:
        gptrs.generate(model, PROMPT, max_tokens=2, logits_processors=[broken])
    assert re.search(message, caught.value.message)


def test_a_text_without_a_token_ends_as_an_error(model):
    made = gptrs.generate(model, PROMPT, max_tokens=2, logits_processors=[only(-1)])
    assert (made.finish_reason, made.token_ids) == ("error", ())
    assert made.error.startswith("no next token is allowed: all of them are suppressed")
    beams = gptrs.generate(model, PROMPT, max_tokens=2, logits_processors=[only(-1)], beams=3)
    assert (beams.finish_reason, beams.error) == ("error", made.error)


def test_other_texts_of_a_batch_go_on(model):
    prompts = [[5, 6], [7, 8], [5, 9]]

    def ban(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if tokens[0] == 7 and tokens.size == 4:
            logits[:] = -np.inf
        return logits

    plain = gptrs.generate_batch(model, prompts, max_tokens=5)
    made = gptrs.generate_batch(model, prompts, max_tokens=5, logits_processors=[ban])
    assert [each.finish_reason for each in made] == ["length", "error", "length"]
    assert [len(each.token_ids) for each in made] == [5, 2, 5]
    for ours, theirs in zip(made, plain, strict=True):
        assert ours.token_ids == theirs.token_ids[: len(ours.token_ids)]


@pytest.mark.parametrize(("dies_after", "accepted"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_a_text_that_dies_within_a_guess_ends_there(model, dies_after, accepted):
    """It ends without another token: its last one is not that of the guess."""

    def dies(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if tokens.size == 2 + dies_after:
            logits[:] = -np.inf
        return logits

    options = GenerationOptions(logits_processors=[dies], sampling=GREEDY, max_tokens=20)
    setup = GenerationSetup(model, options)
    text, fives = setup.new_text([5, 5]), np.zeros((4, setup.lm.vocab_size), np.float32)
    fives[:, 5] = 1
    assert setup.new_scheduler()._grow(Work(text, (0, 0, 0)), fives, [5, 5, 5]) == accepted
    assert text.tokens == [5] * min(4, dies_after)
    assert text.reason == ("error" if dies_after < 4 else "interrupted")


def test_a_model_that_gives_no_token_is_no_error_of_the_text(model):
    setup = GenerationSetup(model, GenerationOptions(logits_processors=[lambda _, logits: logits]))
    text = setup.new_text([1])
    with pytest.raises(ExecutionError, match="largest logit of the next token is -inf"):
        text.append(np.full(setup.lm.vocab_size, -np.inf, np.float32))


EXTREME = (1e-300, 1e-45, 1e-38, 1e-3, 1e3, 1e38, 1e39, 1e300, 1.7e308)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0, 1e300])
@pytest.mark.parametrize("penalty", EXTREME)
def test_extreme_penalties_leave_logits_finite(penalty, temperature):
    logits = np.array([5, 0, -3, 3e38, -3e38, -np.inf, 1], np.float32)
    seen = np.arange(6)
    for sampling in (
        Sampling(temperature, seed=1, repetition_penalty=penalty),
        Sampling(temperature, seed=1, presence_penalty=penalty, frequency_penalty=penalty),
        Sampling(temperature, seed=1, presence_penalty=-penalty, frequency_penalty=-penalty),
        Sampling(temperature, seed=1, presence_penalty=penalty, frequency_penalty=-penalty),
    ):
        chain = ProcessorChain(built_in_processors(sampling, TokenRules(), (), 0), seen)
        changed = chain(logits)
        assert np.isfinite(changed[[0, 1, 2, 3, 4, 6]]).all()
        assert changed[5] == -np.inf
        assert (np.sign(changed[:5]) == np.sign(logits[:5])).all() or sampling.presence_penalty
        assert changed[6] == 1
        assert {Sampler(sampling).choose(changed) for _ in range(20)} <= {0, 1, 2, 3, 4, 6}
