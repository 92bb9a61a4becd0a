"""The chunks of a stream as events: what most of them have in common is encoded once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec

from gptrs_serve.answers import Envelope
from gptrs_serve.events import event_of

_encode = msgspec.json.Encoder().encode


class Chunks:
    """Encodes chunks with the fields of `envelope`, and `more` of them.

    `choice` gives the choice of answer `index` that adds a text, and has neither scores nor an end.
    """

    def __init__(
        self,
        envelope: Envelope,
        choice: Callable[[int, str], dict[str, object]],
        **more: object,
    ) -> None:
        self._envelope = envelope
        self._choice = choice
        self._more = more
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """What stands before and after the text of an answer."""

    def of(self, choices: Sequence[dict[str, object]], **more: object) -> bytes:
        """Return the event of a chunk with these choices."""
        return event_of(self._envelope.of(choices, **self._more | more))

    def text(self, index: int, text: str) -> bytes:
        """Return the event of a chunk that adds a text to an answer."""
        known = self._around.get(index)
        if known is None:
            mark = uuid.uuid4().hex
            before, _, after = self.of([self._choice(index, mark)]).partition(_encode(mark))
            known = self._around[index] = before, after
        return known[0] + _encode(text) + known[1]
