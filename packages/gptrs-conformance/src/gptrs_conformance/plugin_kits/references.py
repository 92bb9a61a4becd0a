"""The kit of references: shapes, repetition, states, greedy tokens, and agreement with gptrs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.plugins.descriptions import ReferencePlugin
from gptrs.plugins.manager import manager
from gptrs.plugins.references import Reference, reference_of
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.numerics import Tolerance
from gptrs_conformance.plugin_kits.subject import KitCheck, absent, require_close
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import InputChoice, batch_of

_TOKENS, _GREEDY = 7, 4
_SIZES = ((2, _TOKENS), (2, _TOKENS), (1, 1), (3, 40))
"""Inputs and, of texts, at most so many tokens. Equal sizes twice: nothing may be kept by size."""
_AGREES = Tolerance.close(1e-3, 1e-3)
"""Another implementation in f32 or f64 sums in another order, through all layers."""


class ReferenceUnderTest(Struct, frozen=True, kw_only=True, dict=True):
    """A reference under test, and a function that loads a model that it takes, if there is one."""

    make: Callable[[LoadedModel], Reference]
    load: Callable[[Backend], LoadedModel] | None = None

    @cached_property
    def loaded(self) -> dict[int, tuple[LoadedModel, Reference]]:
        """The model and its reference by backend."""
        return {}


def installed_reference(
    name: str, load: Callable[[Backend], LoadedModel] | None = None
) -> ReferenceUnderTest:
    """Return the reference of a plugin; without `load`, on the demo model if it takes its kind."""
    plugin = manager().find(ReferencePlugin, name)
    if load is None and (kind := _demo_kind()) is not None and plugin.takes(kind):
        load = lambda backend: load_model(backend=backend)  # noqa: E731
    return ReferenceUnderTest(make=lambda model: reference_of(model, name)[1], load=load)


def _demo_kind() -> str | None:
    try:
        return load_model().kind
    except GptrsError:  # no demo model is installed
        return None


def _both(subject: ReferenceUnderTest, backend: Backend) -> tuple[LoadedModel, Reference]:
    if subject.load is None:
        raise absent("no model of a kind that it takes is there")
    found = subject.loaded.get(id(backend))
    if found is None:
        model = subject.load(backend)
        try:
            found = subject.loaded[id(backend)] = model, subject.make(model)
        except MissingLibraryError as error:
            raise absent(str(error)) from error
    return found


def _inputs(model: LoadedModel, count: int = 2, seed: int = 0, length: int = _TOKENS) -> np.ndarray:
    choice = InputChoice(count=count, length=length, seed=seed)
    return model.checked_inputs(batch_of(model, choice).array)


def _output(reference: Reference, inputs: np.ndarray) -> np.ndarray:
    found = reference.output(inputs)
    if not isinstance(cast("object", found), np.ndarray):
        raise CheckFailure(f"`output` gave a `{type(found).__name__}`, not a NumPy array")
    if found.dtype != np.float32:
        raise CheckFailure(f"`output` gave {found.dtype}, expected float32")
    return found


def _ours(model: LoadedModel, inputs: np.ndarray) -> np.ndarray:
    if model.has_logits:
        return model.forward(inputs)
    return model.text_embedder().encode(inputs, np.ones(inputs.shape, bool))


def agrees_with_the_model(subject: ReferenceUnderTest, backend: Backend) -> None:
    """Shape and values of the output are those of gptrs, for short and long inputs."""
    model, reference = _both(subject, backend)
    for seed, (count, length) in enumerate(_SIZES):
        inputs = _inputs(model, count, seed, length)
        found, ours = _output(reference, inputs), _ours(model, inputs)
        if found.shape != ours.shape:
            raise CheckFailure(f"`output` is {list(found.shape)}, the model's {list(ours.shape)}")
        if not np.isfinite(found).all():
            raise CheckFailure("`output` has numbers that are not finite")
        require_close(found, ours, "`output`", _AGREES)


def leaves_its_inputs_alone(subject: ReferenceUnderTest, backend: Backend) -> None:
    """Inputs are only read; they may be read-only, and results are not changed later."""
    model, reference = _both(subject, backend)
    inputs = _inputs(model)
    before = inputs.copy()
    found = _output(reference, inputs)
    kept = found.copy()
    if not np.array_equal(inputs, before):
        raise CheckFailure("`output` changed its inputs")
    before.flags.writeable = False
    _output(reference, before)
    _output(reference, _inputs(model, seed=1))
    if not np.array_equal(found, kept):
        raise CheckFailure("a later call changed an earlier result")


def repeats_itself(subject: ReferenceUnderTest, backend: Backend) -> None:
    """The same inputs give the same output, alone and in a batch, in any order of calls."""
    model, reference = _both(subject, backend)
    inputs = _inputs(model)
    first = _output(reference, inputs).copy()
    alone = _output(reference, inputs[:1])
    require_close(_output(reference, inputs), first, "the second call", _AGREES)
    require_close(alone, first[:1], "a batch of one", _AGREES)


def gives_the_hidden_states(subject: ReferenceUnderTest, backend: Backend) -> None:
    """As many states as the model, each of its shape and values."""
    model, reference = _both(subject, backend)
    if type(reference).hidden_states is Reference.hidden_states:
        raise absent("it defines no `hidden_states`")
    if "hidden_states" not in model.capabilities:
        raise absent("the model has no hidden states")
    inputs = _inputs(model)
    ours, theirs = model.hidden_states(inputs), reference.hidden_states(inputs.copy())
    # Before the comparison, which so finds memory that a later call writes over.
    reference.hidden_states(_inputs(model, seed=1))
    if len(ours) != len(theirs):
        raise CheckFailure(f"gave {len(theirs)} hidden states, the model has {len(ours)}")
    for (name, state), other in zip(ours.items(), theirs, strict=True):
        if other.shape != state.shape:
            raise CheckFailure(f"`{name}` is {list(other.shape)}, expected {list(state.shape)}")
        require_close(np.asarray(other, np.float32), state, f"`{name}`", _AGREES)


def chooses_greedy_tokens(subject: ReferenceUnderTest, backend: Backend) -> None:
    """`greedy` gives the logits of each step, as `output` of the whole text does."""
    model, reference = _both(subject, backend)
    if "causal_lm" not in model.capabilities:
        raise absent("the model writes no text")
    prompt = _inputs(model, 1)[0]
    given = prompt.copy()
    rows = np.asarray(reference.greedy(given, _GREEDY))
    if not np.array_equal(given, prompt):
        raise CheckFailure("`greedy` changed the prompt")
    if rows.ndim != 2 or len(rows) != _GREEDY:
        raise CheckFailure(f"`greedy` gave {list(rows.shape)} for {_GREEDY} tokens")
    tokens = [*prompt.tolist(), *rows.argmax(-1).tolist()]
    whole = _output(reference, np.array([tokens[:-1]], prompt.dtype))[0, len(prompt) - 1 :]
    if rows.shape != whole.shape:
        raise CheckFailure(f"`greedy` gave {list(rows.shape)}, expected {list(whole.shape)}")
    require_close(np.asarray(rows, np.float32), whole, "`greedy`", _AGREES)


def knows_modules_by_their_names(subject: ReferenceUnderTest, backend: Backend) -> None:
    """`modules` gives arrays of f32, named `NAME.input` or `NAME.output` of a module asked for."""
    model, reference = _both(subject, backend)
    if type(reference).modules is Reference.modules:
        raise absent("it defines no `modules`")
    names = list(model.named_modules())
    asked = {f"{name}.{which}" for name in names for which in ("input", "output")}
    for name, value in reference.modules(_inputs(model), names).items():
        if name not in asked:
            raise CheckFailure(f"`modules` gave `{name}`, not an input or output of a module")
        if not isinstance(cast("object", value), np.ndarray) or value.dtype != np.float32:
            raise CheckFailure(f"`modules` gave `{name}`, not as a NumPy array of float32")
        if not np.isfinite(value).all():
            raise CheckFailure(f"`{name}` of `modules` has numbers that are not finite")


def names_its_versions(subject: ReferenceUnderTest, backend: Backend) -> None:
    """Names and versions are text."""
    _, reference = _both(subject, backend)
    for name, version in reference.versions.items():
        if not (isinstance(name, str) and isinstance(version, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CheckFailure(f"`versions` has {name!r}: {version!r}, text is needed")


def refuses_what_it_lacks(subject: ReferenceUnderTest, backend: Backend) -> None:
    """A module that nobody has is left out; what is not defined raises ModelError."""
    model, reference = _both(subject, backend)
    found = reference.modules(_inputs(model), ["no.such.module"])
    if found:
        raise CheckFailure(f"`modules` finds `no.such.module`: {sorted(found)}")
    if type(reference).hidden_states is Reference.hidden_states:
        try:
            reference.hidden_states(_inputs(model))
        except ModelError:
            return
        raise CheckFailure("`hidden_states` is not defined and raised nothing")


KIT: tuple[KitCheck[ReferenceUnderTest], ...] = (
    agrees_with_the_model,
    leaves_its_inputs_alone,
    repeats_itself,
    gives_the_hidden_states,
    chooses_greedy_tokens,
    knows_modules_by_their_names,
    names_its_versions,
    refuses_what_it_lacks,
)
