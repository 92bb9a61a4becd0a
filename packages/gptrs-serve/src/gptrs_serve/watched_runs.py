"""Answers whose steps are watched: values of the model are read, and vectors added."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from gptrs.errors import GptrsError, UsageError
from gptrs.quoting import listed, quoted
from gptrs_observe.attribution import LensToken, lens_of_rows
from gptrs_observe.hooks import Hooks
from gptrs_observe.sites import Site, Sites
from gptrs_observe.steering import read_vectors
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import shown_bytes
from gptrs_serve.accounts import Ledger
from gptrs_serve.intervention_fields import MOST_VALUES, Intervention, Steering
from gptrs_serve.problems import RequestError
from gptrs_serve.text_calls import TextCalls

MOST_BYTES: Final = 16_000_000
"""Most bytes of numbers in an answer; JSON takes up to five times as many."""
MOST_LENSES: Final = 512
"""Most rows that go through the model's head, which has a logit per token."""
_MOST_HOOKS: Final = 16
"""Most sets of values for which a model's steps stay captured."""

Vectors = Mapping[str, np.ndarray]


def read_presets(given: Sequence[str]) -> dict[str, Vectors]:
    """Read NAME=FILE[:LAYER[:SCALE]]...; UsageError for other words, and as of `read_vectors`."""
    presets: dict[str, Vectors] = {}
    for each in given:
        name, _, rest = each.partition("=")
        if not name or not rest:
            raise UsageError(f"--steer: {quoted(each)} is not NAME=FILE[:LAYER[:SCALE]]")
        if name in presets:
            raise UsageError(f"--steer: two presets are called {quoted(name)}")
        path, layer, scale = _preset_parts(rest)
        presets[name] = read_vectors(path, layer or None, scale)
    return presets


def _preset_parts(rest: str) -> tuple[str, str, float]:
    """Return the file, the layer and the scale; file names may contain colons."""
    # The longest reading wins: a file called `a:1` is that file, not `a` at layer 1.
    if Path(rest).is_file():
        return rest, "", 1.0
    path, _, layer = rest.rpartition(":")
    if Path(path).is_file():
        return path, layer, 1.0
    path, _, layer = path.rpartition(":")
    if not Path(path).is_file():
        raise UsageError(f"--steer: there is no file {quoted(path or rest)}")
    try:
        scale = float(rest.rpartition(":")[2])
    except ValueError as error:
        raise UsageError(f"--steer: {quoted(rest.rpartition(':')[2])} is not a scale") from error
    if not np.isfinite(scale):
        raise UsageError(f"--steer: {scale} is not a scale")
    return path, layer, scale


class Interventions:
    """Makes the watches of requests, and answers with what they have read.

    Such requests have steps and a key/value cache of their own in the engine, so they cannot
    affect other answers.
    """

    def __init__(self, ledger: Ledger, presets: Mapping[str, Vectors]) -> None:
        self.presets = presets
        self._calls = TextCalls(ledger)
        self._lock = threading.Lock()
        self._captured: OrderedDict[object, _Captured] = OrderedDict()

    def require_presets(self, models: Sequence[LoadedModel]) -> None:
        """Raise UsageError for a preset whose values no model has."""
        for name, vectors in self.presets.items():
            problems: list[GptrsError] = []
            for model in models:
                try:
                    sites = Sites(model)
                    for value in vectors:
                        sites.names(value)
                except GptrsError as error:
                    problems.append(error)
            if len(problems) == len(models):
                raise UsageError(f"--steer: {name}: {problems[0]}")

    def watched(self, model: LoadedModel, asked: Intervention, prompt: int) -> Watched:
        """Return how the answers to a prompt of that many tokens are watched.

        RequestError for values, positions or vectors that the model does not have.
        """
        try:
            sites = Sites(model)
            wanted = {name: sites.site(name) for name in _names(asked, sites)}
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                added = self._added(asked, sites)
            hooks = self._hooks(model, frozenset(wanted.values()), added)
        except UsageError as error:
            more = f"; {error.hint}" if error.hint else ""
            raise RequestError(f"{error.message}{more}", param="read", code=error.code) from error
        reader = _Reading(wanted, asked, prompt)
        return Watched(model, asked, _Watch(hooks, added), reader)

    async def found(self, watched: Watched, texts: Sequence[Hashable]) -> list[Found]:
        """Return what was read for each of the answers, once they have ended.

        RequestError for rows that the logit lens cannot read.
        """
        prompt, *answers = watched.reader.parts(texts)
        count = watched.asked.logit_lens
        if count is not None:
            # The head of the model takes its time: not in the thread of the connections.
            def read() -> list[Found]:
                return [_with_lens(watched.model, each, count) for each in (prompt, *answers)]

            prompt, *answers = await self._calls.alone(read)
        return [prompt.joined(each) for each in answers]

    def forget(self, model: LoadedModel) -> None:
        """Drop the captures of a model that is no longer served."""
        with self._lock:
            for key, hooks in list(self._captured.items()):
                if hooks.model is model:
                    self._captured.pop(key, None)

    def close(self) -> None:
        """End the thread of the logit lens after what it does now."""
        self._calls.close()

    def _added(self, asked: Intervention, sites: Sites) -> dict[Site, np.ndarray]:
        """Return the sum of the vectors at each site."""
        added: dict[Site, np.ndarray] = {}
        for number, given in enumerate(asked.steer):
            for name, vector in self._vectors(given, f"steer[{number}]").items():
                (one, *others) = sites.names(name)
                site = sites.site(one)
                if others or site.kind == "attention":
                    raise RequestError(f"{quoted(name)} is not one value", param="steer")
                if site in added and added[site].shape != vector.shape:
                    raise RequestError(f"vectors at `{site}` differ in length", param="steer")
                # Summed here, so the captured step adds one vector a site, whatever the number of
                # presets.
                added[site] = added.get(site, np.float32(0)) + vector
        if not all(np.isfinite(vector).all() for vector in added.values()):
            raise RequestError("a vector has numbers beyond f32", param="steer")
        return added

    def _vectors(self, given: str | Steering, place: str) -> Vectors:
        """Return the vectors of one entry of `steer`, by the names of the values."""
        asked = Steering(preset=given) if isinstance(given, str) else given
        scale = np.float32(asked.scale)
        if asked.preset is not None:
            if asked.layer is not None or asked.vector is not None:
                raise RequestError(f"`{place}` has a preset, which tells layer and vector",
                                   param="steer")  # fmt: skip
            if asked.preset not in self.presets:
                there = listed(self.presets, 8) if self.presets else "none: `--steer` adds them"
                raise RequestError(
                    f"there is no preset {quoted(asked.preset)}; there are {there}", param="steer"
                )
            return {name: vector * scale for name, vector in self.presets[asked.preset].items()}
        if asked.layer is None or asked.vector is None:
            raise RequestError(f"`{place}` needs `preset`, or `layer` and `vector`", param="steer")
        return {asked.layer: _decoded(asked.vector, place) * scale}

    def _hooks(
        self, model: LoadedModel, read: frozenset[Site], added: Mapping[Site, np.ndarray]
    ) -> _Captured:
        """Return hooks that read and add these values, reusing captured ones."""
        # Shapes, not values: vectors are inputs of the captured step, so other numbers need no new
        # capture.
        key = (model, read, frozenset((site, vector.shape) for site, vector in added.items()))
        with self._lock:
            hooks = self._captured.pop(key, None) or _Captured(model, read, added)
            self._captured[key] = hooks
            # The least recently used goes: each entry holds captured steps of the whole model.
            while len(self._captured) > _MOST_HOOKS:
                self._captured.popitem(last=False)
        return hooks


class Watched(Struct, frozen=True):
    """How the answers to one prompt are watched: see `Engine.submit`."""

    model: LoadedModel
    asked: Intervention
    watch: _Watch
    reader: _Reading


class Found(Struct, frozen=True):
    """The rows read of each value, their positions, and their predictions."""

    states: Mapping[str, np.ndarray]
    positions: Sequence[int]
    lens: Mapping[str, Sequence[Sequence[LensToken]]] = {}

    def joined(self, more: Found) -> Found:
        """Return these rows and those of `more`."""
        states = {name: _rows_of(rows, more.states[name]) for name, rows in self.states.items()}
        lens = {name: [*rows, *more.lens[name]] for name, rows in self.lens.items()}
        return Found(states, [*self.positions, *more.positions], lens)


class _Captured:
    """Hooks on one set of values, and the vectors that they add now."""

    def __init__(
        self, model: LoadedModel, read: frozenset[Site], added: Mapping[Site, np.ndarray]
    ) -> None:
        self.model = model
        self.read = read
        self.hooks = Hooks(
            model,
            [str(site) for site in read],
            add={str(site): vector for site, vector in added.items()},
        )
        self.added = added

    def put(self, added: Mapping[Site, np.ndarray]) -> None:
        """Add other vectors from the next step on."""
        if self.added is not added:
            for site, vector in added.items():
                self.hooks.put(str(site), vector)
            self.added = added


class _Watch:
    """The scope of steps that read some values, and add some vectors to all rows.

    The engine's thread alone enters it, so several share captured hooks.
    """

    def __init__(self, hooks: _Captured, added: Mapping[Site, np.ndarray]) -> None:
        self._hooks = hooks
        self._added = added
        vectors = frozenset((str(site), vector.tobytes()) for site, vector in added.items())
        self.key: Hashable = (hooks.read, vectors)

    def __enter__(self) -> None:
        self._hooks.put(self._added)
        self._hooks.hooks.__enter__()

    def __exit__(self, *given: object) -> None:
        self._hooks.hooks.__exit__(*given)

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the last run; those that are no tensors are left out."""
        hooks, names = self._hooks.hooks.values, map(str, self._hooks.read)
        return {name: hooks[name] for name in names if name in hooks}


class _Reading:
    """Collects the rows of the requested positions, step by step."""

    def __init__(self, sites: Mapping[str, Site], asked: Intervention, prompt: int) -> None:
        self._sites = sites
        self._prompt = prompt
        self._all = asked.positions == "all"
        self._wanted = _wanted(asked.positions, prompt)
        self._with_lens = asked.logit_lens is not None
        self._kept: dict[Hashable, _Kept] = {}
        self._bytes = self._rows = 0
        self.first = min(self._wanted, default=prompt) if sites else prompt

    def take(self, text: Hashable, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Keep the wanted rows of a step; RequestError for too many."""
        # The first text reads the prompt of all of them.
        kept = self._kept.setdefault(text, _Kept(self._prompt if self._kept else 0))
        for name, site in self._sites.items():
            if str(site) not in rows:
                raise RequestError(
                    f"{quoted(name)} does not have a row for each token: read other values",
                    param="read",
                )
        count = len(next(iter(rows.values()), ()))
        places = range(max(start, kept.next), start + count)
        kept.next = max(kept.next, start + count)
        here = [place for place in places if self._is_wanted(place)]
        if not here:
            return
        indices = [place - start for place in here]
        kept.positions += here
        for name, site in self._sites.items():
            part = rows[str(site)][indices].astype(np.float32)
            kept.rows.setdefault(name, []).append(part)
            self._bytes += part.nbytes
            self._rows += len(part)
        self._require_bounds()

    def parts(self, texts: Sequence[Hashable]) -> list[Found]:
        """Return the rows of the prompt, then those of each answer."""
        first = self._kept.get(texts[0], _Kept(0))
        count = sum(place < self._prompt for place in first.positions)
        whole = first.found(self._sites, 0)
        prompt = {name: rows[:count] for name, rows in whole.states.items()}
        return [
            Found(prompt, first.positions[:count]),
            first.found(self._sites, count),
            *(self._kept.get(text, _Kept(0)).found(self._sites, 0) for text in texts[1:]),
        ]

    def _require_bounds(self) -> None:
        if self._bytes > MOST_BYTES:
            raise RequestError(
                f"the values take more than {shown_bytes(MOST_BYTES)}, which is the most of a"
                " request: read fewer of them, or fewer positions",
                param="read",
            )
        if self._with_lens and self._rows > MOST_LENSES:
            raise RequestError(
                f"the logit lens of {self._rows} rows or more is asked for, of {MOST_LENSES} at"
                " most: name fewer positions or values",
                param="logit_lens",
            )

    def _is_wanted(self, position: int) -> bool:
        return position in self._wanted or (self._all and position >= self._prompt)


class _Kept:
    """The rows kept of one text, and the first position that has not been read."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.positions: list[int] = []
        self.rows: dict[str, list[np.ndarray]] = {}

    def found(self, names: Mapping[str, object], start: int) -> Found:
        """Return the rows from number `start` on."""
        empty = [np.zeros(0, np.float32)]
        states = {name: np.concatenate(self.rows.get(name, empty))[start:] for name in names}
        return Found(states, self.positions[start:])


def _with_lens(model: LoadedModel, found: Found, count: int) -> Found:
    """Return rows with their predictions; RequestError if they are not states."""
    lens: dict[str, list[list[LensToken]]] = {}
    for name, value in found.states.items():
        try:
            if not found.positions:
                lens[name] = []
                continue
            if value.ndim != 2 or not np.isfinite(value).all():
                raise UsageError("its rows are not vectors of finite numbers")
            lens[name] = lens_of_rows(model, value, count)
        except UsageError as error:
            raise RequestError(
                f"{quoted(name)} is not a state that the logit lens reads: {error.message}",
                param="logit_lens",
            ) from error
    return msgspec.structs.replace(found, lens=lens)


def _rows_of(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    # Of no rows, the size of one is not known.
    parts = [each for each in (first, then) if len(each)]
    return np.concatenate(parts) if parts else first


def _wanted(asked: str | Sequence[int], prompt: int) -> frozenset[int]:
    if isinstance(asked, str):
        return frozenset([prompt - 1] if asked == "last" else range(prompt))
    for position in asked:
        if not -prompt <= position < prompt:
            raise RequestError(
                f"position {position} is not in the prompt of {prompt} tokens", param="positions"
            )
    # -1 is the last token of the prompt, as in Python.
    return frozenset(position % prompt for position in asked)


def _names(asked: Intervention, sites: Sites) -> list[str]:
    """Return the names of all values to read; RequestError for too many, or attention."""
    read = asked.read
    if asked.logit_lens is not None and not read:
        read = ["blocks.*.hook_resid_post"]
    names = list(dict.fromkeys(name for pattern in read for name in sites.names(pattern)))
    if len(names) > MOST_VALUES:
        raise RequestError(
            f"`read` names {len(names)} values, a request may read {MOST_VALUES}", param="read"
        )
    if any(sites.site(name).kind == "attention" for name in names):
        raise RequestError(
            "attention weights are not read over HTTP: `gptrs trace --attention` shows them",
            param="read",
        )
    return names


def _decoded(given: list[float] | str, place: str) -> np.ndarray:
    if not isinstance(given, str):
        return np.array(given, np.float32)
    try:
        # `validate`: otherwise characters outside the alphabet would be skipped, and another vector
        # added.
        vector = np.frombuffer(base64.b64decode(given, validate=True), "<f4")
    except ValueError as error:
        raise RequestError(f"`{place}.vector` is not base64 of f32", param="steer") from error
    return vector.astype(np.float32)
