"""Runs with hooks for requests, which read values of a model and add vectors."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from gptrs.errors import EngineBusyError, GptrsError, UsageError
from gptrs.quoting import listed, quoted
from gptrs_observe.attribution import LensToken, lens_of_rows
from gptrs_observe.hooks import Hooks
from gptrs_observe.sites import Site, Sites
from gptrs_observe.steering import read_vectors
from gptrs_runtime.generation.generate import Generation, GenerationOptions, TextStream
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import shown_bytes
from gptrs_serve.accounts import Ledger
from gptrs_serve.bodies import TokenizeBody, Tokens
from gptrs_serve.problems import RequestError
from gptrs_serve.text_calls import TextCalls

MOST_WAITING: Final = 16
"""Most requests with interventions that wait or run; more get status 429."""
MOST_VALUES: Final = 64
"""Most values that one request may read: each is a whole result of every step."""
MOST_BYTES: Final = 16_000_000
"""Most bytes of numbers in an answer; JSON takes up to five times as many."""
MOST_LENSES: Final = 512
"""Most rows that go through the model's head, which has a logit per token."""
_MOST_HOOKS: Final = 16
"""Most sets of values for which a model's steps stay captured."""

_Numbers = Annotated[list[float], Meta(min_length=1, max_length=65_536)]


class Steering(Struct, forbid_unknown_fields=True, kw_only=True):
    """A vector to add: a preset by name, or `layer` and `vector`."""

    preset: str | None = None
    layer: str | None = None
    vector: _Numbers | Annotated[str, Meta(max_length=400_000)] | None = None
    scale: float = 1.0


class InterventionBody(TokenizeBody, kw_only=True):
    """`/v1/interventions`: a prompt or messages, the values to read, and the vectors to add."""

    refused: ClassVar[Mapping[str, str]] = {
        "stream": "values are sent when the answer is complete",
        "n": "a request has one answer",
    }
    prompt: (  # pyright: ignore[reportIncompatibleVariableOverride]  # read once, by its own route
        Annotated[
            Annotated[str, Meta(max_length=500_000)] | Tokens, Meta(description="A text or tokens.")
        ]
        | None
    ) = None
    max_tokens: Annotated[
        int, Meta(ge=0, description="Most tokens per answer; 0: only read the prompt.")
    ] = 0
    temperature: Annotated[float, Meta(ge=0, le=2, description="0: take the likeliest tokens.")] = (
        0.0
    )
    seed: Annotated[int, Meta(description="The seed of sampling.")] = 0
    read: Annotated[
        Annotated[list[str], Meta(max_length=MOST_VALUES)],
        Meta(description="Values by name or pattern, such as `h.3`, `blocks.*.hook_resid_post`."),
    ] = msgspec.field(default_factory=list[str])
    positions: Annotated[
        Literal["last", "prompt", "all"] | Annotated[list[int], Meta(max_length=4096)],
        Meta(
            description="Tokens whose rows are read: the `last` one of the prompt, the whole"
            " `prompt`, `all` with those of the answer, or positions in the prompt (-1: its last)."
        ),
    ] = "last"
    encoding_format: Annotated[
        Literal["float", "base64"],
        Meta(description="Values as lists, or as little-endian f32 in base64."),
    ] = "float"
    logit_lens: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100,
                description="Return the N likeliest next tokens for each row that is read.",
            ),
        ]
        | None
    ) = None
    steer: Annotated[
        Annotated[list[str | Steering], Meta(max_length=16)],
        Meta(
            description="Vectors to add: names of presets, or objects with `preset`, or `layer` and"
            " `vector` (a list, or base64 of f32), and `scale`."
        ),
    ] = msgspec.field(default_factory=list[str | Steering])


Vectors = Mapping[str, np.ndarray]


def read_presets(given: Sequence[str]) -> dict[str, Vectors]:
    """Read NAME=FILE[:LAYER[:SCALE]]...; UsageError for other words, and as of `read_vectors`."""
    presets: dict[str, Vectors] = {}
    for each in given:
        name, _, rest = each.partition("=")
        if not name or not rest:
            raise UsageError(f"--steer: {quoted(each)} is no NAME=FILE[:LAYER[:SCALE]]")
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
        raise UsageError(f"--steer: {quoted(rest.rpartition(':')[2])} is no scale") from error
    if not np.isfinite(scale):
        raise UsageError(f"--steer: {scale} is no scale")
    return path, layer, scale


class Interventions:
    """Runs requests with hooks one after another, in a thread with its own key/value cache.

    They share no steps with the engine, so they cannot affect other answers.
    """

    def __init__(self, ledger: Ledger, presets: Mapping[str, Vectors]) -> None:
        self.presets = presets
        self._calls = TextCalls(ledger)
        self._waiting = 0
        self._watched: OrderedDict[object, _Watched] = OrderedDict()

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

    async def run(
        self, model: LoadedModel, tokens: Sequence[int], body: InterventionBody, most: int
    ) -> Found:
        """Return the result of a request; EngineBusyError if `MOST_WAITING` run or wait."""
        if self._waiting >= MOST_WAITING:
            raise EngineBusyError(
                f"{MOST_WAITING} requests with interventions run or wait, which is the most"
                " allowed",
                hint="try again later",
            )
        # The run is on another thread, which a cancelled task cannot stop: it asks after each
        # token.
        gone = threading.Event()
        self._waiting += 1
        try:
            return await self._calls.alone(lambda: self._run(model, tokens, body, most, gone))
        finally:
            gone.set()
            self._waiting -= 1

    def forget(self, model: LoadedModel) -> None:
        """Drop the captures of a model that is no longer served."""
        for key, watched in list(self._watched.items()):
            if watched.model is model:
                self._watched.pop(key, None)

    def close(self) -> None:
        """End the thread after the running request."""
        self._calls.close()

    def _run(
        self,
        model: LoadedModel,
        tokens: Sequence[int],
        body: InterventionBody,
        most: int,
        gone: threading.Event,
    ) -> Found:
        sites = Sites(model)
        names = _names(body, sites)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            added = self._added(body, sites)
        wanted = {name: sites.site(name) for name in names}
        reading = _Reading(wanted, body.positions, len(tokens), gone)
        options = GenerationOptions(
            max_tokens=most,
            sampling=Sampling(temperature=body.temperature, seed=body.seed),
            ignore_eos=body.max_tokens == 0,
        )
        with self._hooks(model, frozenset(reading.sites.values()), added) as watched:
            watched.reading = reading
            stream = TextStream(model, list(tokens), options)
            try:
                for _ in stream:  # `take` ends a long prompt, too, but only if something is read
                    if gone.is_set():
                        raise _GoneError
            finally:
                stream.close()
                watched.reading = None
        states = reading.joined()
        lens = _lenses(model, states, body.logit_lens) if body.logit_lens else {}
        return Found(stream.generation, states, reading.positions, lens)

    def _added(self, body: InterventionBody, sites: Sites) -> dict[Site, np.ndarray]:
        """Return the sum of the vectors at each site."""
        added: dict[Site, np.ndarray] = {}
        for number, given in enumerate(body.steer):
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
    ) -> _Watched:
        """Return hooks that read and add these values, reusing captured ones."""
        # Shapes, not values: vectors are inputs of the captured step, so other numbers need no new
        # capture.
        key = (model, read, frozenset((site, vector.shape) for site, vector in added.items()))
        watched = self._watched.pop(key, None)
        if watched is None:
            watched = _Watched(model, read, added)
        self._watched[key] = watched
        # The least recently used goes: each entry holds captured steps of the whole model.
        while len(self._watched) > _MOST_HOOKS:
            self._watched.popitem(last=False)
        for site, vector in added.items():
            watched.hooks.put(str(site), vector)
        return watched


class Found(Struct, frozen=True):
    """The answer, the rows read of each value, their positions, and their predictions."""

    generation: Generation
    states: Mapping[str, np.ndarray]
    positions: Sequence[int]
    lens: Mapping[str, list[list[LensToken]]]


class _Watched:
    """Hooks on one set of values; they pass the rows of each step to `reading`."""

    def __init__(
        self, model: LoadedModel, read: frozenset[Site], added: Mapping[Site, np.ndarray]
    ) -> None:
        self.model = model
        self.reading: _Reading | None = None
        self.hooks = Hooks(
            model,
            [str(site) for site in read],
            add={str(site): vector for site, vector in added.items()},
            after=self._after,
        )

    def __enter__(self) -> _Watched:
        self.hooks.__enter__()
        return self

    def __exit__(self, *given: object) -> None:
        self.hooks.__exit__(*given)

    def _after(self) -> None:
        if self.reading is not None:
            self.reading.take(self.hooks)


class _GoneError(Exception):
    """The client has disconnected."""


class _Reading:
    """Collects the rows of the requested positions, step by step."""

    def __init__(
        self,
        sites: Mapping[str, Site],
        asked: str | Sequence[int],
        prompt: int,
        gone: threading.Event,
    ) -> None:
        self.sites = sites
        self.positions: list[int] = []
        self._rows: dict[str, list[np.ndarray]] = {name: [] for name in sites}
        self._prompt = prompt
        self._all = asked == "all"
        self._wanted = _wanted(asked, prompt)
        self._gone = gone
        self._read = 0
        self._bytes = 0

    def take(self, hooks: Hooks) -> None:
        """Keep rows of a step; RequestError for too many, or a value without rows."""
        if self._gone.is_set():
            raise _GoneError
        values = {name: _value(hooks, name, site) for name, site in self.sites.items()}
        first, *others = values
        count = len(values[first]) if values[first].ndim else 0
        for name in others:
            if values[name].shape[:1] != (count,):
                raise RequestError(
                    f"{quoted(first)} and {quoted(name)} have different numbers of rows: read those"
                    " that have a row for each token",
                    param="read",
                )
        here = [n for n in range(count) if self._is_wanted(self._read + n)]
        self.positions += [self._read + n for n in here]
        self._read += count
        for name, value in values.items():
            rows = np.asarray(value[here], np.float32)
            self._bytes += rows.nbytes
            self._rows[name].append(rows)
        if self._bytes > MOST_BYTES:
            raise RequestError(
                f"the values take more than {shown_bytes(MOST_BYTES)}, which is the most of an"
                " answer: read fewer of them, or fewer positions",
                param="read",
            )

    def _is_wanted(self, position: int) -> bool:
        return position in self._wanted or (self._all and position >= self._prompt)

    def joined(self) -> dict[str, np.ndarray]:
        """Return the rows of each value, f32 [P, ...]."""
        return {name: np.concatenate(rows) for name, rows in self._rows.items()}


def _lenses(
    model: LoadedModel, states: Mapping[str, np.ndarray], count: int
) -> dict[str, list[list[LensToken]]]:
    """Return the predictions of each row; RequestError for too many, or if they are not states."""
    rows = sum(map(len, states.values()))
    if rows > MOST_LENSES:
        raise RequestError(
            f"the logit lens of {rows} rows is asked for, of {MOST_LENSES} at most: name fewer"
            " positions or values",
            param="logit_lens",
        )
    found: dict[str, list[list[LensToken]]] = {}
    for name, value in states.items():
        try:
            if value.ndim != 2 or not np.isfinite(value).all():
                raise UsageError("its rows are no vectors of finite numbers")
            found[name] = lens_of_rows(model, value, count)
        except UsageError as error:
            raise RequestError(
                f"{quoted(name)} is no state that the logit lens reads: {error.message}",
                param="logit_lens",
            ) from error
    return found


def _value(hooks: Hooks, name: str, site: Site) -> np.ndarray:
    try:
        return hooks[str(site)]
    except KeyError as error:
        raise RequestError(f"{quoted(name)} is no tensor", param="read") from error


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


def _names(body: InterventionBody, sites: Sites) -> list[str]:
    """Return the names of all values to read; RequestError for too many, or attention."""
    read = body.read
    if body.logit_lens is not None and not read:
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
        raise RequestError(f"`{place}.vector` is no base64 of f32", param="steer") from error
    return vector.astype(np.float32)
