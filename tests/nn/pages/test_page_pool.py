"""Pages of texts: found again, shared, copied on write, released by windows, evicted, reserved."""

from __future__ import annotations

import random

import pytest

from gptrs.errors import CacheBudgetError
from gptrs_runtime.generation.pages import page_group
from nn.pages.pool_model import ModelledPool


def read_text(pool, tokens, positions=None, step=64):
    """Admit a text and read it to the end; return it with the number of tokens that were cached."""
    text = pool.admit(tokens, positions or len(tokens), step)
    known = text.length
    pool.read(text, tokens[known:])
    return text, known


class RandomTexts:
    """Random operations on a pool; each text keeps to the positions that it was admitted with."""

    def __init__(self, windows, seed):
        self.rng = random.Random(seed)
        self.pool = ModelledPool(windows, [self.rng.randint(8, 24) for _ in windows])
        self.limits: dict = {}

    def admit(self, _):
        tokens = self._tokens(14)
        positions = len(tokens) + self.rng.randint(0, 12)
        made = self.pool.admit(tokens, positions, 6)
        self.limits[made] = positions

    def read(self, text):
        tokens = self._tokens(6)[: self.limits[text] - text.length]
        if tokens:
            self.pool.read(text, tokens)

    def fork(self, text):
        self.limits[self.pool.fork(text)] = self.limits[text]

    def rewind(self, text):
        try:
            self.pool.rewind(text, self.rng.randint(0, text.length))
        except CacheBudgetError:
            self.pool.check()

    def restore(self, _):
        tokens = self._tokens(14)
        made = self.pool.restore(tokens)
        if made is not None:
            self.pool.release(made)

    def release(self, text):
        self.pool.release(text)

    def act(self):
        actions = [
            self.admit,
            self.read,
            self.read,
            self.read,
            self.fork,
            self.rewind,
            self.restore,
        ]
        action = self.rng.choice([*actions, self.release])
        if not self.pool.texts:
            action = self.admit
        action(self.rng.choice([*self.pool.texts]) if self.pool.texts else None)

    def _tokens(self, most):
        return [self.rng.randint(0, 1) for _ in range(self.rng.randint(1, most))]


@pytest.mark.parametrize("windows", [(None,), (5,), (None, 9), (1,), (4,)])
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_operations_keeps_the_pages_of_all_texts(windows, seed):
    texts = RandomTexts(windows, seed)
    for _ in range(4):
        for _ in range(100):
            texts.act()
        for text in list(texts.pool.texts):
            texts.release(text)
        assert all(group.reserved == group.held == 0 for group in texts.pool.pool.groups)


def test_a_prompt_finds_what_another_one_left():
    pool = ModelledPool([None], [20])
    first, known = read_text(pool, list(range(11)))
    assert known == 0
    _, known = read_text(pool, [*range(9), 50, 51])
    assert known == 8, "while a text lives, its whole pages are shared"
    pool.release(first)
    _, known = read_text(pool, [*range(10), 60])
    assert known == 10, "and the end of one that has ended, token by token"
    _, known = read_text(pool, [*range(6), 70])
    assert known == 6, "or the start of a page that goes on in another way"
    _, known = read_text(pool, list(range(8)))
    assert known == 7, "the last token is always read"


def test_shared_pages_are_reserved_once():
    pool = ModelledPool([None], [6])
    prompt = list(range(16))
    first, _ = read_text(pool, prompt, positions=20)
    second = pool.admit([*prompt, 1], 20, 4)
    assert second.length == 16
    assert pool.pool.groups[0].reserved == 6
    assert pool.fork(first) is None, "there is no room for a page of its own"
    pool.release(first)
    assert pool.pool.groups[0].reserved == 5
    pool.read(second, [1, 2, 3, 4])


def test_forks_copy_what_they_write():
    pool = ModelledPool([None], [20])
    text, _ = read_text(pool, list(range(6)), positions=12)
    forks = [pool.fork(text) for _ in range(3)]
    assert pool.pool.groups[0].held == 2
    for number, fork in enumerate(forks):
        pool.read(fork, [100 + number])
    assert pool.pool.groups[0].held == 5, "the shared page, and the second one of each"


def test_a_text_that_is_rewound_into_a_shared_page_gets_its_own():
    pool = ModelledPool([None], [8])
    text, _ = read_text(pool, list(range(8)), positions=12)
    other = pool.fork(text)
    pool.rewind(other, 3)
    pool.read(other, [50, 51, 52])
    assert pool.texts[text] == list(range(8))


def test_windows_release_pages_and_a_rewind_behind_them_begins_anew():
    pool = ModelledPool([5], [4])
    text, _ = read_text(pool, list(range(6)), positions=100, step=4)
    for start in range(6, 90, 4):
        pool.read(text, list(range(start, start + 4)))
    assert text.tables[0][:20] == [0] * 20
    pool.rewind(text, text.length - 1)
    assert text.length == 89
    pool.rewind(text, 40)
    assert text.length == 0


def test_the_page_that_was_left_first_is_evicted_first():
    pool = ModelledPool([None], [4])
    for start in (0, 100):
        text, _ = read_text(pool, [*range(start, start + 8)])
        pool.release(text)
    other, _ = read_text(pool, [7, 7, 7])
    pool.release(other)
    assert pool.admit([*range(100, 108), 1], 9, 4).length == 8
    index = pool.pool.index
    assert index.child(index.root(0), range(4)).pages == [1], "its end went first"


def test_pages_become_more_as_they_are_needed():
    pool = ModelledPool([None], [150])
    assert pool.pool.counts == (1,)
    for position, pages in enumerate((64, 128, 151)):
        read_text(pool, [position] * 200)
        assert pool.pool.counts == (pages,)


def test_what_cannot_fit_is_refused_and_what_does_not_fit_now_waits():
    pool = ModelledPool([None], [4])
    with pytest.raises(CacheBudgetError, match=r"17 positions takes 500 bytes .* 400 are the most"):
        pool.admit([1], 17, 4)
    text, _ = read_text(pool, [1], positions=12)
    assert pool.admit([2], 8, 4) is None
    pool.release(text)
    assert pool.admit([2], 8, 4) is not None


def test_a_rewind_that_needs_more_than_there_is_changes_nothing():
    pool = ModelledPool([None], [5])
    text, _ = read_text(pool, list(range(12)), positions=16)
    other = pool.fork(text)
    with pytest.raises(CacheBudgetError, match="no room for pages that a text of 12 positions"):
        pool.rewind(other, 2)
    pool.check()
    assert other.length == 12


def test_equal_hashes_of_different_tokens_are_no_match(monkeypatch):
    monkeypatch.setattr(page_group, "block_digest", lambda parent, tokens: b"the same")
    pool = ModelledPool([None], [20])
    first, _ = read_text(pool, list(range(12)))
    second, known = read_text(pool, list(range(50, 62)))
    assert known == 0
    pool.release(first)
    pool.release(second)
    _, known = read_text(pool, [*range(4), *range(54, 60)])
    assert known == 4
