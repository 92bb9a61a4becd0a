"""References: other implementations of models, from plugins, with which models are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from typing_extensions import override

from gptrs.errors import GptrsError, ModelError, PluginError
from gptrs.plugins.descriptions import ReferencePlugin
from gptrs.plugins.manager import manager

if TYPE_CHECKING:
    from gptrs.checkpoint.param_source import ParamSource

_NEW = "`gptrs new reference NAME` makes a package with one"


class ReferencedModel(Protocol):
    """A loaded model, as the factory of a reference gets it."""

    kind: str
    """The `model_type` of its settings."""
    weights: ParamSource
    """Its tensors by name: `names()`, `type_of(name)`, `load(name)`."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def config(self) -> Mapping[str, object]:
        """Its settings, the whole of config.json."""
        ...

    @property
    def capabilities(self) -> Collection[str]:
        """Its capabilities, such as `causal_lm`."""
        ...

    @property
    def path(self) -> Path:
        """The folder or file that it was loaded from."""
        ...


class Reference(ABC):
    """Another implementation of a model, on the same weights; arrays are f32.

    A subclass must define only `output`; comparisons that need more raise ModelError.
    """

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of the libraries that it runs on, by name."""
        return {}

    @abstractmethod
    def output(self, inputs: np.ndarray) -> np.ndarray:
        """Return the output for tokens [B, T] or images [B, C, H, W].

        Logits [B, T, V] or [B, classes]; of a text embedder the vectors of all tokens, [B, T, D].
        """
        ...

    def hidden_states(self, inputs: np.ndarray) -> Sequence[np.ndarray]:
        """Return the hidden states, in the order in which they are computed."""
        raise self._lacks("hidden states", "`hidden_states`")

    def greedy(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """Return the logits [N, V] for each of the N tokens chosen greedily after a prompt [T].

        The default computes the whole text again for each token.
        """
        rows: list[np.ndarray] = []
        tokens = prompt
        for _ in range(count):
            rows.append(self.output(tokens[np.newaxis])[0, -1])
            tokens = np.append(tokens, np.array(rows[-1].argmax(), prompt.dtype))
        return np.stack(rows)

    def image(self, path: Path) -> np.ndarray:
        """Return the image [C, H, W] in a file, prepared for the model."""
        raise self._lacks("preparation of images", "`image`")

    def modules(self, inputs: np.ndarray, names: Iterable[str]) -> Mapping[str, np.ndarray]:
        """Return inputs and outputs of modules, as `NAME.input` and `NAME.output`, if known.

        The default knows none.
        """
        return {}

    def use_threads(self, count: int) -> None:
        """Compute with so many threads from now on; the default leaves them as they are."""
        return  # a reference of one thread, such as one in NumPy

    def _lacks(self, what: str, method: str) -> ModelError:
        return ModelError(
            f"the reference `{type(self).__name__}` has no {what}",
            hint=f"leave them out of the comparison, or define {method}",
        )


class FunctionReference(Reference):
    """A reference that is a plain function from inputs to the output."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._function = function

    @override
    def output(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self._function(inputs), np.float32)


def reference_names(kind: str | None = None) -> list[str]:
    """Return the usable references, of a kind of model if one is given, the best one first.

    One that names the kind comes before one for all kinds, then the higher `priority`.
    """
    found = [
        plugin
        for plugin in manager().descriptions(ReferencePlugin)
        if kind is None or plugin.takes(kind)
    ]
    found.sort(key=lambda plugin: (kind not in plugin.kinds, -plugin.priority, plugin.name))
    return [plugin.name for plugin in found]


def reference_of(model: ReferencedModel, name: str | None = None) -> tuple[str, Reference]:
    """Return the reference `name` for a model, by default the best for its kind, and its name.

    PluginError for an unknown name, one that does not take the kind, or a broken plugin; ModelError
    if there is none. Errors of gptrs that the factory raises pass through.
    """
    if name is None:
        names = reference_names(model.kind)
        if not names:
            raise ModelError(f"no reference for models of the kind `{model.kind}`", hint=_NEW)
        name = names[0]
    plugins = manager()
    plugin = plugins.find(ReferencePlugin, name)
    if not plugin.takes(model.kind):
        kinds = ", ".join(plugin.kinds)
        raise PluginError(
            f"the reference `{name}` is for models of {kinds}, not for `{model.kind}`", hint=_NEW
        )
    factory = cast("Callable[[ReferencedModel], object]", plugins.factory(ReferencePlugin, name))
    with plugins.code_of(ReferencePlugin, name, GptrsError):
        made = factory(model)
        if isinstance(made, Reference):
            return name, made
        if not callable(made):
            raise TypeError(
                f"it made a `{type(made).__name__}`; a `Reference` or a function is needed"
            )
    return name, FunctionReference(cast("Callable[[np.ndarray], np.ndarray]", made))
