"""Hooks on the modules of a model, which read or replace inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import cast

import numpy as np

from gptrs import functionals as F
from gptrs.capture.graph import Stored
from gptrs.capture.jitting.captured_function import Recording, recording
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import ModelError, UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.layers import WATCHER, Module
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel

Replacement = Callable[[Tensor], Tensor] | np.ndarray
"""A function of a module's output, or rows that replace its first rows."""


def module_names(model: LoadedModel) -> list[str]:
    """Return the dotted names of the modules of a model, each before those in it."""
    return list(_modules(model))


class Hooks:
    """Reads or replaces activations of the modules of a model, by their dotted names.

    `with hooks:` is the scope in which the model is watched. The model is captured and compiled
    once for these hooks, with additional results, then replayed: values change from call to call,
    and so may the arrays of `replace`. In the scope, equal blocks are compiled separately instead
    of once.
    """

    def __init__(
        self,
        model: LoadedModel,
        read: Sequence[str] = (),
        replace: Mapping[str, Replacement] | None = None,
        attention: bool = False,
    ) -> None:
        """Watch the modules whose names match a pattern of `read` (`h.*.mlp`) or are in `replace`.

        `attention` reads the weights of causal attention, [H, N, N] for N rows, under the names of
        the modules that compute it, for texts that begin in the step. UsageError for a name that no
        module has, ModelError for a model that is not made of modules.
        """
        known = _modules(model)
        self._names = {id(module): name for name, module in known.items()}
        self._keep = list(known.values())  # an id is only taken while the module lives
        self._read = {name for pattern in read for name in _matching(pattern, known)}
        self._replace: dict[str, Callable[[Tensor], Tensor] | Tensor] = {}
        for name, by in (replace or {}).items():
            _matching(name, known)
            self._replace[name] = by if callable(by) else tensor(np.asarray(by))
        self.wants_attention = attention
        self._recording = Recording()
        self._calling: list[str] = []
        self._scopes: list[ExitStack] = []

    def __enter__(self) -> Hooks:
        """Watch the model in this thread."""
        scope = ExitStack()
        scope.enter_context(recording(self._recording))
        token = WATCHER.set(self)
        scope.callback(lambda: WATCHER.reset(token))
        self._scopes.append(scope)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; the values read are kept."""
        self._scopes.pop().close()

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The first tensor that each module was given in its last run, by its name."""
        return self._values(".input")

    @property
    def outputs(self) -> dict[str, np.ndarray]:
        """The output of each module in its last run, by name, after replacement."""
        return self._values(".output")

    @property
    def attention(self) -> dict[str, np.ndarray]:
        """The weights of attention, [H, N, N], by the name of the module that computed them."""
        return self._values(".attention")

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Everything that was read, in the order of computation, as `NAME.input` and so on."""
        return {name: value.numpy() for name, value in self._recording.found.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the output of a module in its last run; KeyError if it was not read."""
        return self._recording.found[f"{name}.output"].numpy()

    def put(self, name: str, value: np.ndarray) -> None:
        """Change the array that replaces the output of a module; nothing is compiled.

        UsageError for a module whose output is not replaced by an array, or for another type.
        """
        found = self._replace.get(name)
        if not isinstance(found, Tensor):
            raise UsageError(
                f"no array replaces the output of {quoted(name)}",
                hint="give one in `replace` when you make the hooks",
            )
        array = np.array(value, order="C")
        if TensorType.of(array) != found.type:
            raise UsageError(
                f"{quoted(name)} is replaced by a `{found.type}`, got `{TensorType.of(array)}`"
            )
        leaf = cast("Stored", found.source)
        leaf.buffer, leaf.backend = array, None

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Call a module, and read or replace as requested; see `gptrs.nn.layers.Watcher`."""
        name = self._names.get(id(module))
        if name is None:
            return call(module, *args, **kwargs)
        reads = name in self._read
        if reads:
            given = (each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
            for first in given:
                self._recording.tell(f"{name}.input", first)
                break
        self._calling.append(name)
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._calling.pop()
        if name in self._replace:
            result = self._replaced(name, result)
        if reads and isinstance(result, Tensor):
            self._recording.tell(f"{name}.output", result)
        return result

    def attention_of(self, weights: Tensor) -> None:
        """Record the weights of the attention that is being computed."""
        self._recording.tell(f"{self._calling[-1] if self._calling else ''}.attention", weights)

    def _replaced(self, name: str, result: object) -> Tensor:
        if not isinstance(result, Tensor):
            raise UsageError(f"{quoted(name)} gives no tensor that could be replaced")
        by = self._replace[name]
        made: object = _first_rows(result, by) if isinstance(by, Tensor) else by(result)
        if not isinstance(made, Tensor) or made.type != result.type:
            found = f"`{made.type}`" if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(f"the output of {quoted(name)} is a `{result.type}`, not {found}")
        return made

    def _values(self, suffix: str) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, value in self._recording.found.items():
            base, at, again = name.partition("@")
            if base.endswith(suffix):
                found[f"{base.removesuffix(suffix)}{at}{again}"] = value.numpy()
        return found


def _modules(model: LoadedModel) -> dict[str, Module]:
    modules = model.named_modules()
    if not modules:
        raise ModelError(
            f"`{model.name}` is not made of modules that could be watched",
            hint="models whose layers are `gptrs.nn.Module`s are",
        )
    return modules


def _first_rows(x: Tensor, rows: Tensor) -> object:
    """Return `x` with its first rows replaced; `rows` itself if the sizes do not fit."""
    count = rows.shape[0] if rows.shape else 0
    if rows.dtype != x.dtype or rows.shape[1:] != x.shape[1:] or count == 0:
        return rows
    index = F.arange(x.shape[0])
    taken = F.take(rows, F.minimum(index, count - 1))
    replaced = F.reshape(index < count, (x.shape[0], *[1] * (len(x.shape) - 1)))
    return F.where(replaced, taken, x)


def _matching(pattern: str, known: Mapping[str, Module]) -> list[str]:
    found = [name for name in known if fnmatchcase(name, pattern)]
    if not found:
        near = get_close_matches(pattern, known, 3, 0.4)
        raise UsageError(
            f"no module is called {quoted(pattern)}",
            hint=f"near it: {', '.join(map(quoted, near))}"
            if near
            else "`gptrs trace --modules` lists them",
        )
    return found
