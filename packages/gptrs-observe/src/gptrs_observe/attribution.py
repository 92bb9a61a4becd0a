"""Attributes the wall time of a profile to parts that add up to the total."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from msgspec import Struct

from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ModelError
from gptrs_observe.hooks import Hooks
from gptrs_observe.profile import Profile
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Number

REST = "not attributed"
_KERNELS = "kernels"
_BETWEEN = "between kernels"
_PROGRAMS = "programs"
_MEANING = {
    _KERNELS: "the kernels of the backend",
    _BETWEEN: "binding the inputs of programs, and what it takes to time each kernel",
    _PROGRAMS: "programs of a backend that does not time its kernels",
    "import": "importing the modules of gptrs",
    "load model": "finding the model, and making its layers",
    "read tokenizer": "reading tokenizer.json",
    "tokenize": "text to tokens",
    "capture": "recording the ops of a step that is new",
    "optimize": "passes of the optimizer",
    "find optimized program": "looking for optimized programs on disk",
    "compile program": "around optimizing and compiling: keys, memory checks",
    "compile": "lowering programs to kernels",
    "compile kernel": "kernels that no cache had",
    "load installed kernel": "kernels that were installed with the backend",
    "load kernel": "kernels out of the cache on disk",
    "read weights": "weights out of their files",
    "pack weights": "weights into the layout that kernels read",
    "model": "Python between a step and its program: arguments, results",
    "step": "which tokens are next, and where their keys and values go",
    "choose token": "sampling, and tokens to text",
    "write text": "writing the text out",
    REST: "all else: the command itself, its output, the end",
}


class Part(Struct, frozen=True):
    """A part of the wall time, in words."""

    name: str
    seconds: float
    meaning: str


def attribution(profile: Profile) -> list[Part]:
    """Return the parts of the wall time, largest first, with the unattributed rest last.

    Covers the thread that started the profile; parts do not overlap.
    """
    timed = any(program.kernels for program in profile.programs.values())
    sums: dict[str, float] = defaultdict(float)
    for (kind, name), seconds in profile.timeline.own.items():
        if kind == "kernel":
            sums[_KERNELS] += seconds
        elif kind == "run":
            sums[_BETWEEN if timed else _PROGRAMS] += seconds
        else:
            sums[name] += seconds
    rest = max(0.0, profile.seconds - sum(sums.values()))
    found = [*sorted(sums.items(), key=lambda item: -item[1]), (REST, rest)]
    return [Part(name, seconds, _MEANING.get(name, "")) for name, seconds in found]


# Values of one run of a model by name: hidden states, modules, attention, and the logit lens.


_MODULE = re.compile(r"\.(?:input|output|attention)(?:@\d+)?$")
"""Suffixes of the names of module values."""


class TraceRequest(Struct, frozen=True):
    """Values to trace in addition to the hidden states."""

    modules: Sequence[str] = ()
    """Patterns of names of modules, whose inputs and outputs are read."""
    attention: bool = False


def traced_values(
    model: LoadedModel, inputs: np.ndarray, request: TraceRequest
) -> dict[str, np.ndarray]:
    """Run a model once and return the requested values, hidden states first.

    Modules come in the order of computation, as `NAME.input` and `NAME.output`; attention weights
    as `NAME.attention`, [B, H, T, T]. Rows of texts are [B, T, ...] as hidden states are.
    UsageError for a pattern that no module has, ModelError for a model that shows no attention.
    """
    if not request.modules and not request.attention:
        return model.hidden_states(inputs)
    hooks = Hooks(model, request.modules, attention=request.attention)
    with hooks:
        states = model.hidden_states(inputs)
    if request.attention and not hooks.attention:
        raise ModelError(f"`{model.name}` shows no weights of attention")
    rows = inputs.shape if inputs.ndim == 2 else None
    return states | {name: _by_text(name, value, rows) for name, value in hooks.values.items()}


def hidden_states_of(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the hidden states among the values of `traced_values`."""
    return {name: value for name, value in values.items() if not _MODULE.search(name)}


def _by_text(name: str, value: np.ndarray, rows: tuple[int, ...] | None) -> np.ndarray:
    """Return flat rows of texts [B * T, ...] as [B, T, ...], and attention for each text."""
    if rows is None:
        return value
    batch, length = rows
    if ".attention" in name:
        cuts = [slice(text * length, (text + 1) * length) for text in range(batch)]
        return np.stack([value[:, cut, cut] for cut in cuts])
    if value.ndim and value.shape[0] == batch * length and value.shape[:2] != rows:
        return value.reshape(batch, length, *value.shape[1:])
    return value


class _Head(Protocol):
    def final_norm(self, x: Tensor) -> Tensor: ...

    def logits(self, x: Tensor) -> Tensor: ...


class LensToken(Struct, frozen=True):
    """A token that a state predicts, its probability, and its text, if there is a tokenizer."""

    token: int
    probability: Number
    text: str | None


def logit_lens(
    model: LoadedModel, states: Mapping[str, np.ndarray], count: int
) -> dict[str, list[LensToken]]:
    """Return the `count` likeliest next tokens by each hidden state at the last position.

    Uses the first text. Each state goes through the last norm and the head of the model
    (nostalgebraist 2020); the last one has been through the norm. ModelError for a model without
    these.
    """
    head = _head(model)
    found: dict[str, list[LensToken]] = {}
    *_, last = states
    for name, state in states.items():
        rows = np.ascontiguousarray(state[:1, -1], np.float32)  # (1, C)
        (found[name],) = _lens(model, head, rows, count, is_normed=name == last)
    return found


def lens_of_rows(model: LoadedModel, rows: np.ndarray, count: int) -> list[list[LensToken]]:
    """Return the `count` likeliest next tokens by each state of the residual stream, f32 [P, C].

    Rows are states between blocks, the last one before the final norm. Errors as of `logit_lens`,
    and UsageError for rows of another width.
    """
    return _lens(model, _head(model), np.ascontiguousarray(rows, np.float32), count)


def _head(model: LoadedModel) -> _Head:
    lm = model.causal_lm()
    if not (hasattr(lm, "final_norm") and hasattr(lm, "logits")):
        raise ModelError(f"`{model.name}` has no separate norm and head for a logit lens")
    return cast("_Head", lm)


def _lens(
    model: LoadedModel, head: _Head, rows: np.ndarray, count: int, *, is_normed: bool = False
) -> list[list[LensToken]]:
    found: list[list[LensToken]] = []
    for number in range(len(rows)):
        # One row at a time: programs are compiled for each number of rows.
        x = tensor(rows[number : number + 1])  # (1, C)
        logits = head.logits(x if is_normed else head.final_norm(x)).numpy()[0]
        found.append(_likeliest(model, logits.astype(np.float64), count))
    return found


def _likeliest(model: LoadedModel, logits: np.ndarray, count: int) -> list[LensToken]:
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    best = np.argsort(-chances, kind="stable")[:count].tolist()
    texts = [
        (model.tokenizer.token_text(each) or "") if model.has_tokenizer else None for each in best
    ]
    return [
        LensToken(token, float(chances[token]), text)
        for token, text in zip(best, texts, strict=True)
    ]
