"""Which replica has read the beginning of a prompt: requests that share one meet in its cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import msgspec

BLOCK: Final = 256
"""Bytes of a prompt that are compared at once, some 64 tokens: prompts that share less gain
nothing."""
_MOST_BLOCKS: Final = 1024
_MOST_KNOWN: Final = 200_000
"""Most remembered beginnings: some 40 MB."""
MOST_AHEAD: Final = 8
"""A replica with that many more open requests than the least busy one is overloaded: waiting there
takes longer than reading the prompt again."""
_FIRST: Final = ("model", "tools", "system", "instructions")
"""Fields of bodies that chat templates render before the messages."""
_PROMPTS: Final = ("messages", "prompt", "input", "input_prefix")
Fields = dict[str, msgspec.Raw]
"""The fields of a body, each still as JSON."""
Replica = TypeVar("Replica", bound=Hashable)


def beginnings(fields: Fields) -> tuple[bytes, ...]:
    """Return digests of the ever longer beginnings of the prompt of a body, in whole blocks.

    Bodies without a prompt have none. Turns of a conversation share those of earlier turns, as long
    as the client writes the same JSON.
    """
    if not any(name in fields for name in _PROMPTS):
        return ()
    prompt = b"".join(bytes(fields.get(name, b"")) for name in (*_FIRST, *_PROMPTS))
    digest = blake2b(digest_size=8)
    found: list[bytes] = []
    for end in range(BLOCK, min(len(prompt), BLOCK * _MOST_BLOCKS) + 1, BLOCK):
        digest.update(prompt[end - BLOCK : end])
        found.append(digest.digest())
    return tuple(found)


def response_of(path: str, fields: Fields) -> str:
    """Return the id of the stored response that a request names, empty without one."""
    if path.startswith("/v1/responses/"):
        return path.removeprefix("/v1/responses/").partition("/")[0]
    named = fields.get("previous_response_id", b"null")
    try:
        return msgspec.json.decode(named, type=str)
    except msgspec.MsgspecError:  # null, or no text, which the replica refuses
        return ""


def fields_of(body: bytes) -> Fields:
    """Return the fields of a body; none of one that is no object."""
    try:
        return msgspec.json.decode(body, type=Fields)
    except msgspec.MsgspecError:  # the replica refuses it
        return {}


def mark_of(replica: str) -> str:
    """Return what the ids of responses begin with that a replica stores."""
    return blake2b(replica.encode(), digest_size=4).hexdigest()


class Readers(Generic[Replica]):
    """The replicas that read the beginnings of prompts last; the least recent are forgotten."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        self._known: OrderedDict[bytes, Replica] = OrderedDict()
        self._most = most

    def note(self, found: Sequence[bytes], replica: Replica) -> None:
        """Remember who reads a prompt, by its `beginnings`."""
        for each in reversed(found):  # the shortest last, as it is shared most
            self._known[each] = replica
            self._known.move_to_end(each)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def reader(self, found: Sequence[bytes], replicas: Collection[Replica]) -> Replica | None:
        """Return which of `replicas` has read most of a prompt, None if none has read any."""
        for each in reversed(found):
            replica = self._known.get(each)
            if replica is not None and replica in replicas:
                return replica
        return None


def is_overloaded(replica: Replica, loads: Mapping[Replica, int]) -> bool:
    """Return whether a replica has many more open requests than another one.

    A replica that is not in `loads` has an unknown number of them, and is not overloaded.
    """
    return loads.get(replica, 0) - min(loads.values(), default=0) >= MOST_AHEAD
