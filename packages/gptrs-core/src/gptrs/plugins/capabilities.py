"""What a model can do: protocols that the runtime relies on, and how a model claims one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from gptrs.errors import PluginError

if TYPE_CHECKING:
    import numpy as np

ModelCache: TypeAlias = Any
"""What a model remembers of the tokens seen: a type of its own, which callers only hand back."""


class CausalLM(Protocol):
    """The capability `causal_lm`: predicts the next token from those before it.

    Tokens are integer arrays [B, T] of ids in [0, vocab_size); logits are f32. A batch holds
    sequences of equal length.
    """

    @property
    def context_length(self) -> int:
        """Most positions that the model can attend to."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and size of the last axis of logits."""
        ...

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [B, T, V] of every position; ContextLengthError if T is too large."""
        ...

    def new_cache(self, batch: int) -> ModelCache:
        """An empty cache for `batch` sequences; it grows as tokens are appended to it."""
        ...

    def step(self, tokens: np.ndarray, cache: ModelCache) -> np.ndarray:
        """Append tokens [B, T], any T >= 1, to `cache` and return the logits [B, V] after the last.

        However a prompt is cut into steps, the logits are those of `forward` at that position, to
        rounding. ContextLengthError when the cache would exceed the context, before any work.
        """
        ...


PROTOCOLS: Final[dict[str, type]] = {"causal_lm": CausalLM}
"""The protocol that each capability known to gptrs stands for."""


def capabilities_of(model: object) -> frozenset[str]:
    """The names in the class attribute `capabilities` of `model`; none without such an attribute.

    PluginError when the attribute is no set of names, or the model lacks a member that the
    protocol of a claimed capability requires. Names that are not in `PROTOCOLS` pass unchecked: a
    plugin may give its own models capabilities that its own commands ask for.
    """
    kind = type(model)
    claimed: object = getattr(kind, "capabilities", frozenset[str]())
    if isinstance(claimed, str) or not isinstance(claimed, Iterable):
        raise PluginError(f"`{kind.__name__}.capabilities` must be a set of names, got {claimed!r}")
    names = frozenset(map(str, cast("Iterable[object]", claimed)))
    for name in sorted(names & PROTOCOLS.keys()):
        missing = _missing_members(model, PROTOCOLS[name])
        if missing:
            listed = ", ".join(f"`{member}`" for member in missing)
            raise PluginError(
                f"`{kind.__name__}` claims the capability `{name}` but lacks {listed}",
                hint=f"see `{PROTOCOLS[name].__module__}.{PROTOCOLS[name].__name__}`",
            )
    return names


def _missing_members(model: object, protocol: type) -> list[str]:
    required = (name for name in vars(protocol) if not name.startswith("_"))
    return [name for name in required if not hasattr(model, name)]
