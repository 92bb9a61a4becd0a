"""The kit of model kinds: a text whole, in steps and in company; its limits, its pages, its files.

The checks are those of the capabilities of the model: what it lacks is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, ContextLengthError, ModelError
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.page_buffers import PageBuffers, PagedTexts
from gptrs.nn.ragged_step import PAGE_SIZE, own_pages, pages_for, ragged_step
from gptrs.plugins.capabilities import (
    PROTOCOLS,
    CausalLM,
    ImageClassifier,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
    capabilities_of,
)
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.subject import KitCheck, absent, require_close, tried
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.sources.find_model import find_model

_MOST = 2 * PAGE_SIZE + 5
"""Tokens of a text: three pages, the last of them in part."""
_EDGE = 64
"""Pixels of the edge of an image, where config.json states none."""
_BAD: tuple[object, ...] = (None, -1, 0, "text", [], {}, 10**9, 1.5)
"""Values that a setting of config.json might have by mistake."""

Settings = Mapping[str, object]
Load = Callable[[Settings, Params], object]
Kind = TypeVar("Kind")


class _Encoder(Protocol):
    """The members that the checks of encoders use."""

    context_length: int
    vocab_size: int


class Model(Struct, frozen=True, kw_only=True):
    """A model under test: the factory of its kind, with the settings and weights that it takes.

    Without `params`, only refusals of settings are tried. `folder` has the files of the model.
    """

    load: Load
    settings: Settings = field(default_factory=dict[str, object])
    params: Callable[[Backend], Params] | None = None
    folder: Path | None = None

    def made(self, backend: Backend) -> object:
        """Return the model on a backend; UnsupportedError without weights."""
        if self.params is None:
            raise absent("no model of the kind is given")
        return self.load(self.settings, self.params(backend))


def model_in(folder: str | Path) -> Model:
    """Return the model in a folder or file; ModelError as in `find_model`."""
    path = Path(folder)
    source = find_model(path)

    def params(backend: Backend) -> Params:
        return Params(source.weights, backend=backend)

    load = manager().model_factory(source.model_type)
    return Model(load=load, settings=source.config, params=params, folder=path)


def kind_alone(name: str) -> Model:
    """Return a kind without any model: only its refusals can be tried."""
    load = cast("Load", manager().factory(ModelPlugin, name))
    return Model(load=load, settings={"model_type": name})


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


def _able(subject: Model, backend: Backend, capability: str, kind: type[Kind]) -> Kind:
    """Return the model if it has a capability."""
    made = subject.made(backend)
    if capability not in capabilities_of(made):
        raise absent(f"it does not have the capability `{capability}`")
    return cast("Kind", made)


def claims_what_it_has(subject: Model, backend: Backend) -> None:
    """Its capabilities are names that gptrs knows, and it has their members."""
    made = subject.made(backend)
    found = capabilities_of(made)
    if not found & PROTOCOLS.keys():
        kind = type(made).__name__
        raise CheckFailure(f"`{kind}.capabilities` names none of {', '.join(PROTOCOLS)}")


def _tokens(model: _Encoder | CausalLM, texts: int, seed: int = 3) -> np.ndarray:
    """Return tokens si64 [texts, T], as long as the context allows, at most three pages."""
    length = min(_MOST, model.context_length)
    return np.random.default_rng(seed).integers(0, model.vocab_size, (texts, length))


def a_text_in_steps_is_the_whole(subject: Model, backend: Backend) -> None:
    """Logits after each step, of prompts cut in several ways, are those of the whole text."""
    with use_backend(backend):
        model = _able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = _tokens(model, 1)
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
        model = _able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = _tokens(model, 1)
        cut = len(tokens) // 2
        other = tokens.copy()
        # Every later token differs, so that one that is seen cannot be equal by chance.
        other[cut:] = (other[cut:] + 1) % model.vocab_size
        found, wanted = model.forward(np.stack([other, tokens]))
        require_close(found[:cut], wanted[:cut], f"with other tokens from {cut} on, what is before")


def texts_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Texts of unequal lengths, in one step and in a batch, have the logits of each alone."""
    with use_backend(backend):
        model = _able(subject, backend, "causal_lm", CausalLM)
        rows = _tokens(model, 3)
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
        model = _able(subject, backend, "causal_lm", CausalLM)
        first, second = _tokens(model, 2)
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
        model = _able(subject, backend, "causal_lm", CausalLM)
        (tokens,) = _tokens(model, 1)
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
        model = _able(subject, backend, "causal_lm", CausalLM)
        limit = model.context_length
        if limit > 16 * _MOST:
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
        model = _able(subject, backend, "causal_lm", CausalLM)
        tokens = _tokens(model, 2)
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


def _encoders(
    made: object, capabilities: frozenset[str]
) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Return what the model computes of tokens and a mask, by capability."""
    found: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}
    if "text_embedder" in capabilities:
        found["text_embedder"] = cast("TextEmbedder", made).encode
    if "token_classifier" in capabilities:
        found["token_classifier"] = cast("TokenClassifier", made).classify_tokens
    if "text_classifier" in capabilities:
        classify = cast("TextClassifier", made).classify_texts
        found["text_classifier"] = lambda ids, mask: classify(ids, np.zeros_like(ids), mask)
    return found


def padding_changes_nothing(subject: Model, backend: Backend) -> None:
    """Vectors of a text encoder: in company, and with other tokens as padding."""
    with use_backend(backend):
        made = subject.made(backend)
        runs = _encoders(made, capabilities_of(made))
        if not runs:
            raise absent("it is no encoder of texts")
        model = cast("_Encoder", made)
        rows = _tokens(model, 2)
        length = rows.shape[1]
        short = max(length // 3, 1)
        mask = np.ones((2, length), bool)
        mask[0, short:] = False
        other = rows.copy()
        other[0, short:] = (other[0, short:] + 1) % model.vocab_size
        for name, run in runs.items():
            found, changed = run(rows, mask), run(other, mask)
            alone = run(rows[:1, :short], np.ones((1, short), bool))
            end = None if name == "text_classifier" else short
            require_close(found[0][:end], alone[0][:end], f"`{name}`: a padded text")
            require_close(changed[0][:end], alone[0][:end], f"`{name}`: other padding")


def images_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Scores of images do not depend on the batch."""
    with use_backend(backend):
        model = _able(subject, backend, "image_classifier", ImageClassifier)
        stated = subject.settings.get("image_size")
        edge = stated if isinstance(stated, int) else _EDGE
        shape = (3, model.channels, edge, edge)
        images = np.random.default_rng(2).normal(size=shape).astype(np.float32)
        batch = model.classify(images)
        for row in range(3):
            alone = model.classify(images[row : row + 1])
            require_close(batch[row], alone[0], f"image {row} of three:")


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
        model = _able(subject, backend, "causal_lm", CausalLM)
        tokens = _tokens(model, 1)
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
    texts_in_company_are_as_alone,
    used_pages_are_as_new,
    saved_pages_go_on,
    ends_at_its_context,
    padding_changes_nothing,
    images_in_company_are_as_alone,
    refuses_awkward_settings,
    saved_and_loaded_is_the_same,
)
"""The checks of a model."""
