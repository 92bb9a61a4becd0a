"""A cache whose pages hold, for each position, all tokens up to it: any mix-up of pages shows."""

from __future__ import annotations

from gptrs_runtime.generation.pages.page_group import GroupLayout
from gptrs_runtime.generation.pages.page_pool import PageCopy, PagePool, TextPages


class ModelledPool:
    """A pool and the content of its pages; every operation checks all texts."""

    def __init__(self, windows, most_pages, page_size=4):
        layouts = [
            GroupLayout(window, 100, most) for window, most in zip(windows, most_pages, strict=True)
        ]
        self.pool = PagePool(layouts, page_size, b"test")
        self.size = page_size
        self.content: list[dict[int, list]] = [{} for _ in layouts]
        self.texts: dict[TextPages, list[int]] = {}
        """The tokens that each text must have cached."""

    def admit(self, tokens, positions, step):
        admitted = self.pool.admit(tokens, positions, step)
        if admitted is None:
            return None
        text, copies = admitted
        assert text.length < len(tokens)
        self._add(text, tokens[: text.length], copies)
        return text

    def read(self, text, tokens):
        """Run a step with these tokens."""
        self._copy(self.pool.extend(text, len(tokens)))
        known = self.texts[text]
        for token in tokens:
            known.append(token)
            position = len(known) - 1
            for number, group in enumerate(self.pool.groups):
                page = text.tables[number][position // self.size]
                assert page, "a row is written to a page of its text"
                assert group.holders(page) == 1, "and no other text holds it"
                assert group.block_of(page) is None, "nor may another one find it"
                slots = self.content[number].setdefault(page, [None] * self.size)
                slots[position % self.size] = tuple(known)
        self.pool.commit(text, tokens)
        self.check()

    def fork(self, text):
        made = self.pool.fork(text)
        if made is not None:
            self._add(made, self.texts[text], [])
        return made

    def rewind(self, text, length):
        self._copy(self.pool.rewind(text, length))
        assert text.length in (0, length)
        del self.texts[text][text.length :]
        self.check()

    def release(self, text):
        del self.texts[text]
        self.pool.release(text)
        self.check()

    def restore(self, tokens):
        """Write the pages that the next position sees, as a file of them would."""
        firsts = [group.layout.first_seen(len(tokens), self.size) for group in self.pool.groups]
        text = self.pool.restore(tokens, firsts)
        if text is None:
            return None
        for number, first in enumerate(firsts):
            for position in range(first * self.size, len(tokens)):
                page = text.tables[number][position // self.size]
                slots = self.content[number].setdefault(page, [None] * self.size)
                slots[position % self.size] = tuple(tokens[: position + 1])
        self.pool.commit(text, tokens)
        self._add(text, tokens, [])
        return text

    def check(self):
        for text, tokens in self.texts.items():
            assert text.tokens == tokens
            assert len(text.blocks) == len(tokens) // self.size
            for number, group in enumerate(self.pool.groups):
                self._check_content(text, tokens, number, group.layout.window)
        for number, group in enumerate(self.pool.groups):
            held = [page for text in self.texts for page in text.tables[number] if page]
            assert group.held == len(set(held)) <= group.reserved <= group.layout.most_pages
            assert all(group.holders(page) == held.count(page) for page in held)
            assert group.reserved <= group.count <= group.layout.most_pages
            assert max(held, default=0) <= group.count
            for text in self.texts:
                table = text.tables[number]
                assert len([page for page in table if page]) <= text.limits[number]

    def _check_content(self, text, tokens, number, window):
        first = 0 if window is None else max(0, len(tokens) - window + 1)
        for position in range(first, len(tokens)):
            page = text.tables[number][position // self.size]
            found = self.content[number][page][position % self.size]
            assert found == tuple(tokens[: position + 1])

    def _add(self, text, tokens, copies: list[PageCopy]):
        self._copy(copies)
        self.texts[text] = list(tokens)
        self.check()

    def _copy(self, copies: list[PageCopy]):
        for number, source, target in copies:
            self.content[number][target] = list(self.content[number][source])
