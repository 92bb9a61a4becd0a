"""The kit of model kinds: a text whole, in steps and in company; its limits, its pages, its files.

The checks are those of the capabilities of the model: what it lacks is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.config_fields import ReadSettings
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, ContextLengthError, ModelError
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.causal_lm import CausalLMModule
from gptrs.nn.page_buffers import PageBuffers, PagedTexts
from gptrs.nn.ragged_step import own_pages, pages_for, ragged_step
from gptrs.plugins.capabilities import PROTOCOLS, CausalLM, HiddenStates, capabilities_of
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits import encoders, written_texts
from gptrs_conformance.plugin_kits.model_subject import (
    MOST,
    Model,
    Settings,
    able,
    model_in,
    tokens_of,
)
from gptrs_conformance.plugin_kits.subject import KitCheck, absent, require_close, tried
from gptrs_runtime.converting.convert import convert

_BAD: tuple[object, ...] = (None, -1, 0, "text", [], {}, 10**9, 1.5)
"""Values that a setting of config.json might have by mistake."""


class _NoWeights:
    """A checkpoint without weights."""

    def names(self) -> Sequence[str]:
        """Return no name."""
        return []

    def type_of(self, name: str) -> TensorType:
        """Raise CheckpointError: there is none."""
        raise CheckpointError(f"no weight `{name:.80}`")

    def load(self, name: str) -> np.ndarray:
        """Raise CheckpointError: there is none."""
        raise CheckpointError(f"no weight `{name:.80}`")


class _Arrays(_NoWeights):
    """A checkpoint of arrays."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    @override
    def names(self) -> Sequence[str]:
        return list(self._arrays)

    @override
    def type_of(self, name: str) -> TensorType:
        return TensorType.of(self._arrays[name])

    @override
    def load(self, name: str) -> np.ndarray:
        return self._arrays[name]


def claims_what_it_has(subject: Model, backend: Backend) -> None:
    """Its capabilities are names that gptrs knows, and it has their members."""
    made = subject.made(backend)
    found = capabilities_of(made)
    if not found & PROTOCOLS.keys():
        kind = type(made).__name__
        raise CheckFailure(f"`{kind}.capabilities` names none of {', '.join(PROTOCOLS)}")


def a_text_in_steps_is_the_whole(subject: Model, backend: Backend) -> None:
    """Logits after each step, of prompts cut in several ways, are those of the whole text."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = tokens_of(model, 1)
        whole = model.forward(tokens[None])[0]
        length = len(tokens)
        # Cuts within a page, at its borders, and one before the end: kernels for one row and for
        # many differ.
        for first in sorted({1, min(3, length), length // 2, max(length - 2, 1)}):
            texts, at = PagedTexts(model, 1, length), 0
            for size in (first, *[1] * (length - first)):
                found = texts.append([tokens[at : at + size]])
                at += size
                require_close(
                    found[0], whole[at - 1], f"after {first} tokens and one by one to {at}:"
                )


def later_tokens_change_nothing_before(subject: Model, backend: Backend) -> None:
    """Logits of a position do not depend on the tokens after it."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = tokens_of(model, 1)
        cut = len(tokens) // 2
        other = tokens.copy()
        # Every later token differs, so that one that is seen cannot be equal by chance.
        other[cut:] = (other[cut:] + 1) % model.vocab_size
        found, wanted = model.forward(np.stack([other, tokens]))
        require_close(found[:cut], wanted[:cut], f"with other tokens from {cut} on, what is before")


def positions_count(subject: Model, backend: Backend) -> None:
    """Logits change with `rope_theta` or a table of positions, and with the last position.

    A setting that the kind marks as without effect need not count.
    """
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        assert subject.params is not None  # the model was made of them
        tokens = tokens_of(model, 1)
        read = ReadSettings(subject.settings)
        subject.load(read, subject.params(backend))
        settings = _with_other_theta(subject.settings, read.idle)
        if settings != subject.settings:
            what, other = "`rope_theta`", replace(subject, settings=settings).made(backend)
        else:
            what, other = _with_other_table(subject, model, backend)
        if not _differ(model, other, tokens):
            raise CheckFailure(
                f"{what} changes no logits: is it read by `step.positions`? If it has no effect"
                " beside other settings, say so by `ConfigFields.without_effect`"
            )
        own, before = (_last_logits(model, tokens[0], shift) for shift in (0, 1))
        if np.array_equal(own, before):
            last = tokens.shape[1] - 1
            raise CheckFailure(f"position {last} counts as {last - 1}: are `positions` clipped?")


def _last_logits(model: CausalLM, text: np.ndarray, shift: int) -> np.ndarray:
    """Return the logits of the last token, as if it stood `shift` positions before."""
    end, pages = len(text) - 1, own_pages(1, len(text))
    groups = len(cache_groups(model.cache_specs()))
    buffers = model.new_buffers([pages.size] * groups)
    _step(model, buffers, text[:end], 0, pages)
    step = ragged_step([text[end:]], [end], [pages] * groups)
    return model.step(step._replace(positions=step.positions - shift), buffers)[0]


def hidden_states_end_in_the_logits(subject: Model, backend: Backend) -> None:
    """States are finite, [B, T, C], and the head makes the logits of the last one."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        if "hidden_states" not in capabilities_of(model):
            raise absent("it does not have the capability `hidden_states`")
        tokens = tokens_of(model, 2)
        states = cast("HiddenStates", model).hidden_states(tokens)
        for name, state in states.items():
            if state.ndim != 3 or state.shape[:2] != tokens.shape:
                shape = list(tokens.shape)
                raise CheckFailure(f"`{name}` is {list(state.shape)} for tokens {shape}")
            if not np.isfinite(state).all():
                raise CheckFailure(f"`{name}` has numbers that are not finite")
        # Of other models, nobody says what `logits` takes.
        if not isinstance(model, CausalLMModule):
            return
        last = list(states.values())[-1]
        rows = Tensor.of_array(np.ascontiguousarray(last.reshape(-1, last.shape[-1])))
        found = model.logits(rows).numpy().reshape(*tokens.shape, -1)
        require_close(found, model.forward(tokens), "the head on the last of the hidden states")


def _with_other_theta(settings: Settings, idle: Collection[str]) -> dict[str, object]:
    """Return settings with four times each `rope_theta`, those in parts of them, too.

    Settings in `idle` stay.
    """
    found = dict(settings)
    for name, value in settings.items():
        if name in idle:
            continue
        if isinstance(value, Mapping):
            found[name] = _with_other_theta(cast("Settings", value), idle)
        elif name == "rope_theta" and isinstance(value, int | float):
            found[name] = value * 4
    return found


def _with_other_table(subject: Model, model: CausalLM, backend: Backend) -> tuple[str, object]:
    """Return the name of a table of positions, and the model with other rows after its first.

    Without a table, `rope_theta` with another value than the default, if that makes a difference.
    """
    assert subject.params is not None
    params = subject.params(backend)
    arrays = {name: params.tensor(name).numpy() for name in params.unused()}
    sizes = range(model.context_length, model.context_length + 3)  # some begin at the third row
    for name, array in arrays.items():
        if array.ndim == 2 and len(array) in sizes and len(array) != model.vocab_size:
            changed = np.concatenate([array[:1], -array[1:]])
            source = _Arrays({**arrays, name: changed})
            return f"`{name}`", subject.load(subject.settings, Params(source, backend=backend))
    settings = {**subject.settings, "rope_theta": 321.0}
    other = tried(lambda: replace(subject, settings=settings).made(backend), "a `rope_theta`")
    if other is None or not _differ(model, other, tokens_of(model, 1)):
        raise absent("it has neither `rope_theta` nor a table of positions")
    return "`rope_theta`", other


def _differ(model: CausalLM, other: object, tokens: np.ndarray) -> bool:
    return not np.array_equal(cast("CausalLM", other).forward(tokens), model.forward(tokens))


def texts_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Texts of unequal lengths, in one step and in a batch, have the logits of each alone."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        rows = tokens_of(model, 3)
        length = rows.shape[1]
        alone = [model.forward(row[None])[0] for row in rows]
        batch = model.forward(rows)
        for text in range(3):
            require_close(batch[text], alone[text], f"text {text} in a batch of three:")
        ends = [0, 0, 0]
        texts = PagedTexts(model, 3, length)
        for counts in ((length // 2, 1, length // 3), (1, length // 2, 1), (1, 1, length // 3)):
            starts, ends = ends, [end + max(n, 1) for end, n in zip(ends, counts, strict=True)]
            ends = [min(end, length) for end in ends]
            if any(start == end for start, end in zip(starts, ends, strict=True)):
                break
            found = texts.append([rows[i, starts[i] : ends[i]] for i in range(3)])
            for text in range(3):
                wanted = alone[text][ends[text] - 1]
                require_close(found[text], wanted, f"text {text} of three in a step to {ends}:")


def _step(
    model: CausalLM, buffers: PageBuffers, tokens: np.ndarray, at: int, table: np.ndarray
) -> np.ndarray:
    tables = [table] * len(cache_groups(model.cache_specs()))
    return model.step(ragged_step([tokens], [at], tables), buffers)[0]


def used_pages_are_as_new(subject: Model, backend: Backend) -> None:
    """A text in the pages of one that ended, in another order, is as in empty pages."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        first, second = tokens_of(model, 2)
        cut, count = len(second) // 2, pages_for(len(first))
        groups = len(cache_groups(model.cache_specs()))
        buffers = model.new_buffers([count] * groups)
        _step(model, buffers, first, 0, own_pages(1, len(first)))
        # In reverse: a kernel that takes pages for consecutive memory reads the evicted text.
        turned = own_pages(1, len(first))[:, ::-1]
        wanted = model.forward(second[None])[0]
        found = _step(model, buffers, second[:cut], 0, turned)
        require_close(found, wanted[cut - 1], "in the pages of an evicted text, the first half")
        found = _step(model, buffers, second[cut:], cut, turned)
        require_close(found, wanted[-1], "in the pages of an evicted text, the rest")


def saved_pages_go_on(subject: Model, backend: Backend) -> None:
    """Pages that are read, and written to other positions of new buffers, continue the text."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = tokens_of(model, 1)
        cut, count = len(tokens) // 2, pages_for(len(tokens))
        groups = len(cache_groups(model.cache_specs()))
        buffers = model.new_buffers([count] * groups)
        _step(model, buffers, tokens[:cut], 0, own_pages(1, len(tokens)))
        again = model.new_buffers([count + 2] * groups)
        for group in range(groups):
            for page in range(count):
                # Two pages further: contents must not depend on the number of their page.
                again.write(group, page + 2, buffers.read(group, page))
        found = _step(model, again, tokens[cut:], cut, own_pages(1, len(tokens)) + 2)
        wanted = model.forward(tokens[None])[0, -1]
        require_close(found, wanted, "from saved pages, the last token")


def ends_at_its_context(subject: Model, backend: Backend) -> None:
    """A text as long as the context runs; one more token is refused, and pages stay intact."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        limit = model.context_length
        if limit > 16 * MOST:
            raise absent(f"its context of {limit} tokens is too long to fill here")
        tokens = np.random.default_rng(1).integers(0, model.vocab_size, limit + 1)
        _require_error(
            lambda: model.forward(tokens[None]),
            ContextLengthError,
            f"{limit + 1} tokens at once",
            "",
        )
        whole = model.forward(tokens[None, :limit])[0]
        if not np.isfinite(whole).all():
            raise CheckFailure(f"the logits of {limit} tokens are not finite")
        texts = PagedTexts(model, 1, limit + 1)
        texts.append([tokens[: limit - 1]])
        _require_error(
            lambda: texts.append([tokens[limit - 1 :]]),
            ContextLengthError,
            "two tokens at the last one",
        )
        if not texts.buffers.usable:
            raise CheckFailure("after a text that was too long, the pages of others are lost")
        texts = PagedTexts(model, 1, limit)
        texts.append([tokens[: limit - 1]])
        found = texts.append([tokens[limit - 1 : limit]])
        require_close(found[0], whole[-1], "the last token of the context")


def _require_error(
    act: Callable[[], object],
    kind: type[ModelError] | type[ContextLengthError],
    what: str,
    hint: str = "",
) -> None:
    """Raise CheckFailure unless `act` raises `kind`; `hint` says how a model comes to raise it."""
    needed = f"a `{kind.__name__}` is needed{hint}"
    try:
        act()
    except kind:
        return
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        shown = f"{type(error).__name__}: {error}"
        raise CheckFailure(f"{what} raised {shown:.200}; {needed}") from error
    raise CheckFailure(f"{what}: accepted; {needed}")


def gives_the_same_again(subject: Model, backend: Backend) -> None:
    """The logits of a text are finite, f32, of the right shape, and again the same."""
    with use_backend(backend):
        model = able(subject, backend, "causal_lm", CausalLM)
        tokens = tokens_of(model, 2)
        first = model.forward(tokens)
        wanted = (*tokens.shape, model.vocab_size)
        if first.dtype != np.float32 or first.shape != wanted:
            raise CheckFailure(
                f"logits are {first.dtype}{list(first.shape)}, not f32{list(wanted)}"
            )
        if not np.isfinite(first).all():
            raise CheckFailure("logits are not finite")
        model.forward(tokens[:, ::-1])
        if model.forward(tokens).tobytes() != first.tobytes():
            raise CheckFailure("a text gives other logits after another text")


def refuses_awkward_settings(subject: Model, backend: Backend) -> None:
    """Settings that are missing, or of another type, give a ModelError or a model."""
    load, settings = subject.load, subject.settings
    params = subject.params(backend) if subject.params else Params(_NoWeights(), backend=backend)
    # The loader chooses the kind by its `model_type`, so that is always there.
    alone = {name: value for name, value in settings.items() if name == "model_type"}
    _require_error(
        lambda: load(alone, params),
        ModelError,
        "a config.json of the model type alone",
        ": read settings by `ConfigFields`",
    )
    for name in settings.keys() - alone.keys():
        rest = {each: value for each, value in settings.items() if each != name}
        tried(lambda rest=rest: load(rest, params), f"config.json without `{name}`")
        for bad in _BAD:
            tried(
                lambda name=name, bad=bad: load({**settings, name: bad}, params),
                f"`{name}`: {bad!r} in config.json",
            )


def saved_and_loaded_is_the_same(subject: Model, backend: Backend) -> None:
    """Converted to one file and to a folder, and loaded again, it computes the same."""
    if subject.folder is None:
        raise absent("no folder with its files is given")
    with use_backend(backend), tempfile.TemporaryDirectory() as folder:
        model = able(subject, backend, "causal_lm", CausalLM)
        tokens = tokens_of(model, 1)
        wanted = model.forward(tokens)
        for name in ("model.gptrschk", "folder"):
            target = Path(folder) / name
            convert(subject.folder, target)
            again = cast("CausalLM", model_in(target).made(backend))
            require_close(again.forward(tokens), wanted, f"loaded from `{name}`, it")


KIT: Sequence[KitCheck[Model]] = (
    claims_what_it_has,
    gives_the_same_again,
    a_text_in_steps_is_the_whole,
    later_tokens_change_nothing_before,
    positions_count,
    hidden_states_end_in_the_logits,
    texts_in_company_are_as_alone,
    used_pages_are_as_new,
    saved_pages_go_on,
    ends_at_its_context,
    *written_texts.CHECKS,
    *encoders.CHECKS,
    refuses_awkward_settings,
    saved_and_loaded_is_the_same,
)
"""The checks of a model."""
