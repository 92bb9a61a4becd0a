"""The engine: each answer is what it is alone, whoever comes, goes, waits or fails meanwhile."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref

import pytest

from gptrs.errors import CacheBudgetError, EngineBusyError, EngineClosedError, UsageError
from gptrs_runtime.generation import scheduled_text
from gptrs_runtime.generation.batch import generate_several
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from runtime.generation.fake_lm import VOCABULARY
from runtime.serving_models import PromptedModel, eventually

DRAWN = GenerationOptions(20, Sampling(temperature=0.9, seed=3), ignore_eos=True)


def alone(prompt, options=DRAWN, answers=1, model=None):
    """The token ids of what `generate_several` gives on a model that has seen nothing else."""
    made = generate_several(model or PromptedModel(), prompt, answers, options)
    return [text.token_ids for text in made]


def tokens_of(stream):
    return [text.token_ids for text in stream.result()]


def scores_of(generation):
    return [
        logprob
        for scores in generation.logprobs
        for logprob in (scores.logprob, *(logprob for _, logprob in scores.top))
    ]


class Slow:
    """A logits processor that lets tests act while texts are generated."""

    def __init__(self):
        self.tokens = 0
        self.go_on = threading.Event()

    def __call__(self, tokens, logits):
        self.tokens += 1
        assert self.go_on.wait(120)
        return logits


@pytest.mark.sample(16)
@pytest.mark.parametrize("seed", range(8))
def test_random_arrivals_get_what_they_get_alone(seed):
    rng = random.Random(seed)
    start = [rng.randrange(1, VOCABULARY) for _ in range(70)]
    windows = rng.choice([(None,), (None, 33)])
    engine = Engine(
        PromptedModel(windows),
        token_budget=rng.choice([16, 64]),
        most_running=rng.choice([2, 8]),
        cache_budget=rng.choice([24_000, 200_000]),
    )
    asked = []
    with engine:
        for _ in range(25):
            own = [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 60))]
            prompt = [*start[: rng.choice([0, 5, 40, 70])], *own]
            sampling = Sampling(temperature=0.8, seed=rng.randrange(5))
            options = GenerationOptions(rng.randint(1, 30), sampling)
            answers = rng.choice([1, 1, 1, 3])
            stream = engine.submit(prompt, options, answers=answers, priority=rng.choice([0, 0, 5]))
            asked.append((stream, prompt, options, answers))
            if rng.random() < 0.15:
                asked.pop()[0].cancel()
            if rng.random() < 0.5:
                next(asked[0][0], None) if asked else None
        for stream, prompt, options, answers in asked:
            assert tokens_of(stream) == alone(prompt, options, answers, PromptedModel(windows))
        eventually(lambda: engine.state().requests == 0 == engine.state().pages_held)


@pytest.mark.usefixtures("without_amx")
def test_real_models_give_the_bits_that_they_give_alone(directory, backend):
    prompts = ["def main():\n", "the cat and the dog", "def main():\n    return", "für Elise"] * 3
    fields = {"max_tokens": 9, "temperature": 0.8, "seed": 4, "logprobs": 2}
    model = load_model(directory, backend.name)
    expected = {p: generate_several(model, p, 2, **fields) for p in set(prompts)}
    with Engine(load_model(directory, backend.name), token_budget=32, most_running=7) as engine:
        streams = [engine.submit(prompt, answers=2, **fields) for prompt in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            for found, told in zip(stream.result(), expected[prompt], strict=True):
                assert (found.text, found.token_ids) == (told.text, told.token_ids)
                assert found.finish_reason == told.finish_reason
                loose = 0 if backend.name == "numba" else 1e-5  # `ref` takes the products of BLAS
                assert scores_of(found) == pytest.approx(scores_of(told), rel=loose, abs=loose)


def test_pieces_add_up_to_the_answers(model):
    with Engine(model) as engine:
        stream = engine.submit("the cat", answers=3, max_tokens=12, logprobs=1, temperature=1.0)
        pieces = list(stream)
    assert {piece.index for piece in pieces} == {0, 1, 2}
    for index, made in enumerate(stream.generations):
        own = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in own) == made.text
        assert sum((piece.tokens for piece in own), ()) == made.token_ids
        assert sum((piece.scores for piece in own), ()) == made.logprobs
        assert [piece.finish_reason for piece in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == made.finish_reason


def test_tasks_read_their_streams():
    prompts = [[1 + number, 2, 3] for number in range(9)]

    async def every(engine):
        streams = [engine.submit(prompt, DRAWN) for prompt in prompts]
        return await asyncio.gather(*(stream.aresult() for stream in streams))

    with Engine(PromptedModel()) as engine:
        found = asyncio.run(every(engine))
        # An event loop that has gone leaves nothing behind.
        stream = engine.submit([1, 2], DRAWN)
        assert tokens_of(stream) == alone([1, 2])
    assert [text.token_ids for (text,) in found] == [alone(p)[0] for p in prompts]


def test_a_task_that_ends_cancels_what_it_asked_for():
    async def leave(engine):
        async with engine.submit([1, 2], DRAWN, logits_processors=[lambda t, x: x]) as stream:
            return (await anext(stream)).index

    with Engine(PromptedModel()) as engine:
        assert asyncio.run(leave(engine)) == 0
        eventually(lambda: engine.state().requests == 0 == engine.state().pages_held)


def test_cancelled_within_one_step_queued_and_running():
    slow = Slow()
    options = GenerationOptions(50, logits_processors=[slow], ignore_eos=True)
    with Engine(PromptedModel(), most_running=1) as engine:
        running = engine.submit([1, 2, 3], options)
        waiting = engine.submit([4, 5], options)
        after = engine.submit([6, 7], DRAWN)
        eventually(lambda: slow.tokens == 1)  # in the middle of the first step
        running.cancel()
        waiting.cancel()
        slow.go_on.set()
        assert tokens_of(after) == alone([6, 7])
        assert slow.tokens == 1
        assert [len(list(stream)) <= 1 for stream in (running, waiting)] == [True, True]
        assert waiting.generations[0].token_ids == ()
        assert running.generations[0].finish_reason == "interrupted"
        running.cancel()  # once more does nothing


def test_higher_priority_begins_first_and_equals_in_their_order():
    slow, order = Slow(), []

    def noting(name):
        def note(tokens, logits):
            if name not in order:
                order.append(name)
            return logits

        return GenerationOptions(2, logits_processors=[note], ignore_eos=True)

    first = GenerationOptions(1, logits_processors=[slow])
    with Engine(PromptedModel(), most_running=1) as engine:
        engine.submit([1], first)
        eventually(lambda: slow.tokens == 1)
        streams = [
            engine.submit([2], noting(name), priority=priority)
            for name, priority in [("a", 0), ("b", 0), ("c", 7), ("d", -1), ("e", 7)]
        ]
        slow.go_on.set()
        for stream in streams:
            stream.result()
    assert order == ["c", "e", "a", "b", "d"]


def test_a_short_prompt_does_not_wait_until_a_long_one_is_read():
    model, slow = PromptedModel(), Slow()
    blocked = GenerationOptions(1, logits_processors=[slow], ignore_eos=True)
    with Engine(model, token_budget=32, most_running=4) as engine:
        engine.submit([9], blocked)
        eventually(lambda: slow.tokens == 1)
        long = engine.submit([3] * 150, max_tokens=1)
        short = engine.submit([1, 2, 3], max_tokens=1)
        slow.go_on.set()
        short.result()
        long.result()
    sizes = [step.row_starts.tolist() for step in model.lm.steps]
    assert sizes[1] == [0, 29, 32]  # the next step reads all of the short one
    assert max(rows[-1] for rows in sizes) <= 32


def test_an_error_of_one_request_is_its_own():
    def broken(tokens, logits):
        raise ZeroDivisionError("of the request")

    with Engine(PromptedModel()) as engine:
        others = [engine.submit([1, number], DRAWN) for number in range(1, 4)]
        bad = engine.submit([5], answers=3, max_tokens=5, logits_processors=[broken])
        with pytest.raises(ZeroDivisionError, match="of the request"):
            bad.result()
        for number, stream in enumerate(others, 1):
            assert tokens_of(stream) == alone([1, number])
        eventually(lambda: engine.state().pages_held == 0)


@pytest.mark.parametrize("loses_pages", [False, True])
def test_a_step_that_fails_once_is_done_again(loses_pages):
    model = PromptedModel()
    model.lm.fails, model.lm.loses_pages = MemoryError("for a moment"), loses_pages
    with Engine(model) as engine:
        assert tokens_of(engine.submit([1, 2, 3], DRAWN)) == alone([1, 2, 3])


def test_a_model_that_fails_ends_those_that_run_and_no_others(monkeypatch, caplog):
    model = PromptedModel()
    step, failing = model.lm.step, threading.Event()

    def fail(*arguments):
        if failing.is_set():
            raise RuntimeError("kernel")
        return step(*arguments)

    monkeypatch.setattr(model.lm, "step", fail)
    with Engine(model, most_running=1) as engine:
        failing.set()
        first = engine.submit([1, 2], DRAWN)
        with pytest.raises(RuntimeError, match="kernel"):
            first.result()
        failing.clear()
        assert tokens_of(engine.submit([1, 2], DRAWN)) == alone([1, 2])
    assert "a step of `fake` failed" in caplog.text


def test_what_has_no_room_waits_or_is_refused():
    """The cache holds 4 pages: one such text at a time."""
    budget = 5_000
    with Engine(PromptedModel(), cache_budget=budget) as engine:
        prompts = [[number] * 70 for number in range(1, 6)]
        streams = [engine.submit(prompt, DRAWN) for prompt in prompts]
        with pytest.raises(CacheBudgetError, match="a text of 179 positions takes 6000 bytes"):
            engine.submit([1] * 160, DRAWN)
        assert [tokens_of(stream) for stream in streams] == [alone(p) for p in prompts]


def test_texts_besides_the_engine_make_it_wait():
    model = PromptedModel()
    held = GenerationOptions(100, ignore_eos=True, cache_budget=5_000)
    from gptrs_runtime.generation.stream import TextStream

    other = TextStream(model, [1] * 20, held)
    next(other)
    with Engine(model, cache_budget=5_000) as engine:
        stream = engine.submit([2] * 60, DRAWN)
        assert engine.state().waiting <= 1
        other.close()
        assert tokens_of(stream) == alone([2] * 60)


def test_no_more_requests_than_it_takes():
    slow = Slow()
    options = GenerationOptions(1, logits_processors=[slow])
    with Engine(PromptedModel(), most_requests=2) as engine:
        streams = [engine.submit([1, number], options) for number in range(2)]
        with pytest.raises(EngineBusyError, match="has 2 answers that have not ended"):
            engine.submit([3])
        slow.go_on.set()
        for stream in streams:
            stream.result()
        eventually(lambda: engine.state().requests == 0)
        engine.submit([3], max_tokens=1).result()


def test_drained_and_closed():
    engine = Engine(PromptedModel())
    streams = [engine.submit([1, number], DRAWN) for number in range(1, 5)]
    assert engine.drain()
    assert [tokens_of(stream) for stream in streams] == [alone([1, n]) for n in range(1, 5)]
    with pytest.raises(EngineClosedError):
        engine.submit([1])
    engine.close()
    engine.close()
    slow = Slow()
    late = Engine(PromptedModel())
    stream = late.submit([1], max_tokens=50, logits_processors=[slow])
    eventually(lambda: slow.tokens == 1)
    assert not late.drain(timeout=0.02)
    slow.go_on.set()
    late.close()
    assert stream.done


def test_several_models_share_a_budget(tmp_path):
    small, large = PromptedModel(), PromptedModel((None, None))
    with Engine({"small": small, "large": large}, cache_budget=60_000) as engine:
        streams = [engine.submit([1, 2], DRAWN, model=name) for name in ("small", "large", None)]
        found = [tokens_of(stream) for stream in streams]
        with pytest.raises(UsageError, match="there is no model `smal` in the engine; did you"):
            engine.submit([1], model="smal")
    assert found == [alone([1, 2]), alone([1, 2], model=PromptedModel((None, None))), found[0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_cache": False}, "`use_cache` is not an option of a request"),
        ({"prompt_cache": "x.safetensors"}, "`prompt_cache` is not"),
        ({"answers": 0}, "a request has 1 to 128 answers, asked for 0"),
        ({"max_tokens": 500}, "do not fit into the context"),
        ({"max_token": 5}, "did you mean `max_tokens`"),
    ],
)
def test_refused_requests(fields, message):
    with Engine(PromptedModel()) as engine, pytest.raises(UsageError, match=message):
        engine.submit([1, 2], **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_budget": 10, "most_running": 8}, "raise the token budget to 16"),
        ({"most_running": 0}, "runs one text and takes one request at least"),
    ],
)
def test_refused_engines(fields, message):
    with pytest.raises(UsageError, match=message):
        Engine(PromptedModel(), **fields)


def test_the_cache_tells_what_it_had():
    with Engine(PromptedModel()) as engine:
        engine.submit([7] * 100, DRAWN).result()
        again = engine.submit([7] * 100, DRAWN)
        again.result()
    assert (again.prompt_tokens, again.cached_tokens) == (100, 99)


def test_who_waits_long_begins_before_a_flood_of_higher_priority(monkeypatch):
    monkeypatch.setattr("gptrs_runtime.generation.scheduled_text.MOST_PASSED_S", 0.2)
    begun = []

    def noting(name):
        def note(tokens, logits):
            begun.append(name)
            return logits

        return GenerationOptions(1, DRAWN.sampling, ignore_eos=True, logits_processors=[note])

    with Engine(PromptedModel(), most_running=1) as engine:
        slow = Slow()
        first = engine.submit([1], GenerationOptions(1, logits_processors=[slow]))
        eventually(lambda: slow.tokens)
        honest = engine.submit([2], noting("honest"))
        time.sleep(0.3)
        flood = [engine.submit([2], noting("flood"), priority=9) for _ in range(4)]
        slow.go_on.set()
        for stream in (first, honest, *flood):
            stream.result()
    assert begun == ["honest", *["flood"] * 4]


@pytest.mark.parametrize("client", ["same", "other"])
def test_many_answers_to_one_request_leave_a_slot_to_another(client, monkeypatch):
    """The text that is put back for it goes on later, with the same tokens."""
    monkeypatch.setattr(scheduled_text, "PATIENCE_S", 0.0)
    many = GenerationOptions(100, DRAWN.sampling, ignore_eos=True)
    slow = Slow()
    slowly = GenerationOptions(100, DRAWN.sampling, ignore_eos=True, logits_processors=[slow])
    with Engine(PromptedModel(), most_running=3) as engine:
        flood = engine.submit([1, 2], slowly, answers=8, client="same")
        eventually(lambda: slow.tokens)
        ended = []

        def count(tokens, logits):
            ended.append([text for text in flood.texts if text.ended])
            return logits

        shortly = GenerationOptions(2, ignore_eos=True, logits_processors=[count])
        short = engine.submit([3], shortly, client=client)
        slow.go_on.set()
        short.result()
        assert len(ended[-1]) < 3
        assert tokens_of(flood) == alone([1, 2], many, 8)


def test_models_come_and_go_while_others_answer():
    first, second = PromptedModel(), PromptedModel()
    with Engine({"first": first}) as engine:
        staying = engine.submit([1], DRAWN)
        engine.add("second", second)
        with pytest.raises(UsageError, match="has a model `second` already"):
            engine.add("second", second)
        assert tokens_of(engine.submit([2, 3], DRAWN, model="second")) == alone([2, 3])
        slow = Slow()
        options = GenerationOptions(9, logits_processors=[slow], ignore_eos=True)
        cut = engine.submit([4], options, model="second")
        eventually(lambda: slow.tokens)
        assert engine.open_requests("second") == 1
        gone = threading.Thread(target=engine.remove, args=("second", 0))
        gone.start()
        eventually(lambda: "second" not in engine.models)
        with pytest.raises(UsageError, match="no model `second`"):
            engine.submit([2], DRAWN, model="second")
        eventually(lambda: engine._loop._calls)  # its time is over while a step runs
        slow.go_on.set()
        gone.join(120)
        with pytest.raises(EngineClosedError, match="`second` was unloaded"):
            cut.result()
        assert tokens_of(staying) == alone([1])
        whole = engine.submit([5], DRAWN)
        engine.remove("first")
        assert tokens_of(whole) == alone([5])
        with pytest.raises(UsageError, match="no model in the engine"):
            engine.submit([2], DRAWN)
        kept = weakref.ref(first)
        del first, staying, whole
        eventually(lambda: gc.collect() is not None and kept() is None)
        engine.add("first", second)
        assert tokens_of(engine.submit([2], DRAWN)) == alone([2])


def test_a_flood_that_came_before_leaves_a_turn_to_each_priority(monkeypatch):
    """The order by age alone would let all of the flood pass."""
    monkeypatch.setattr(scheduled_text, "MOST_PASSED_S", 5.0)
    now = time.perf_counter()

    def work(priority, number, waited):
        made = scheduled_text.Work(None, (-priority, 0.0, number))
        made.since = now - waited
        return made

    flood = [work(100, number, 20.0) for number in range(50)]
    honest, late = work(0, 60, 6.0), work(0, 61, 1.0)
    waiting = [*flood, honest, late]
    in_order = scheduled_text.in_order
    assert in_order(waiting, {-100: now})[:2] == [honest, flood[0]]
    assert in_order(waiting, {-100: now, 0: now - 1})[0] is flood[0]  # it had its turn
    assert in_order(waiting, {-100: now, 0: now - 6})[0] is honest
    assert in_order([*flood, late], {-100: now}) == [*flood, late]
    assert in_order([late], {}) == [late]
