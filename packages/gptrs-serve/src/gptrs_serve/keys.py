"""API keys: who sends requests, how many at once, and with what share."""

from __future__ import annotations

import hmac
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gptrs.api import UsageError
from gptrs_runtime.generation.scheduled_text import Client

KEY_VARIABLE: Final = "GPTRS_SERVE_API_KEY"
_HINT: Final = "write one on each line: KEY [name=WORD] [weight=N] [most-requests=N] [admin=yes]"


class Key(Struct, frozen=True):
    """A key, its name in logs, and its share: weight 2 gets twice as many turns as weight 1.

    At most `most_requests` of its requests are open at once; None: no limit.
    """

    text: str
    name: str = ""
    weight: float = 1.0
    most_requests: int | None = None
    is_admin: bool = False
    """Whether it may load and unload models."""

    @property
    def client(self) -> Client:
        """The client, as the engine identifies it."""
        return Client(self.text, self.weight)


class KeyRing:
    """The keys of a server; `reload` reads them again, and keeps the old ones on an error."""

    def __init__(
        self, keys: Iterable[Key], read: Callable[[], Sequence[Key]] | None = None
    ) -> None:
        self._keys = list(keys)
        self._read = read
        self._open = Counter[str]()
        """Open requests of each key."""

    @classmethod
    def of(cls, keys: KeyRing | Sequence[str]) -> KeyRing:
        """Return a ring of keys without limits, or the given ring."""
        return keys if isinstance(keys, KeyRing) else cls([Key(key) for key in keys])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, given: str) -> Key | None:
        """Return the key that a client sent, None if it is unknown.

        All keys are compared in constant time.
        """
        data = given.encode()
        found = None
        # No early end: its time would tell how far down the list the key stands.
        for key in self._keys:
            if hmac.compare_digest(data, key.text.encode()):
                found = key
        return found

    def begin(self, key: Key) -> bool:
        """Count a request of a key; False, without a change, if it has reached its limit."""
        if key.most_requests is not None and self._open[key.text] >= key.most_requests:
            return False
        self._open[key.text] += 1
        return True

    def end(self, key: Key) -> None:
        """Undo `begin`."""
        self._open[key.text] -= 1

    def reload(self) -> None:
        """Read the keys again, if they come from a file."""
        if self._read is None:
            return
        try:
            # Replaced whole. Open requests keep the key they came with, and are counted by its
            # text, so counts survive a reload.
            self._keys = list(self._read())
        except UsageError as error:
            # A typing error in the file must not lock every client out of a running server.
            print(f"warning: the keys stay as they are: {error}", file=sys.stderr, flush=True)
        else:
            print(f"{len(self._keys)} API keys", file=sys.stderr, flush=True)


def read_keys(file: Path | None) -> list[Key]:
    """Return the keys of the variable and of `file`; UsageError for a file without any."""
    keys = [Key(key) for key in [os.environ.get(KEY_VARIABLE, "").strip()] if key]
    if file is None:
        return keys
    try:
        lines = file.read_text("utf-8").splitlines()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--api-key-file: `{file}` cannot be read: {problem}") from error
    found = [
        _key(line, f"--api-key-file: line {number} of `{file}`")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not found:
        raise UsageError(f"--api-key-file: `{file}` has no key", hint=_HINT)
    if len({key.text for key in [*keys, *found]}) < len(keys) + len(found):
        raise UsageError(f"--api-key-file: `{file}` has a key twice")
    if mode & stat.S_IROTH:
        note = f"warning: every user of this machine can read `{file}`: chmod o-r {file}"
        print(note, file=sys.stderr)
    return [*keys, *found]


def _key(line: str, where: str) -> Key:
    """Return the key of a line; UsageError, without the key, for unknown words."""
    # The message must not show the key: logs are read by more people than key files.
    text, *words = line.split()
    given: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not value or name in given:
            raise UsageError(f"{where}: `{word}` is not understood", hint=_HINT)
        given[name] = value
    named = given.pop("name", "")
    weight = given.pop("weight", "1")
    most = given.pop("most-requests", None)
    admin = given.pop("admin", "no")
    if admin not in ("yes", "no"):
        raise UsageError(f"{where}: `admin={admin}` is neither yes nor no", hint=_HINT)
    if given:
        raise UsageError(f"{where}: there is no `{next(iter(given))}`", hint=_HINT)
    try:
        key = Key(text, named, float(weight), None if most is None else int(most), admin == "yes")
    except ValueError as error:
        raise UsageError(f"{where}: {error}", hint=_HINT) from error
    if not 0.001 <= key.weight <= 1000 or (most is not None and int(most) < 1):
        raise UsageError(f"{where}: a weight is 0.001 to 1000, a limit at least 1", hint=_HINT)
    return key
