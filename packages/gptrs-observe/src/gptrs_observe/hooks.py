"""Hooks on the modules of a model, which read or change inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import cast

import numpy as np
from typing_extensions import override

from gptrs import functionals as F
from gptrs.capture.graph import Stored
from gptrs.capture.jitting.captured_function import Recording, recording
from gptrs.capture.tensor import Tensor, tensor
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.layers import WATCHER, Module
from gptrs.quoting import quoted
from gptrs_observe.sites import Site, Sites
from gptrs_runtime.loaded_model import LoadedModel

Replacement = Callable[[Tensor], Tensor] | np.ndarray
"""A function of a module's output, or rows that replace its first rows."""


def module_names(model: LoadedModel) -> list[str]:
    """Return the dotted names of the modules of a model, each before those in it."""
    return list(Sites(model).modules)


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
        add: Mapping[str, np.ndarray] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Watch the modules whose names match a pattern of `read` (`h.*.mlp`) or are in `replace`.

        Names are those of modules, whose inputs and outputs are read and whose outputs are changed;
        `NAME.input` and `NAME.output`; or hook points of TransformerLens
        (`blocks.3.hook_resid_post`, `blocks.*.attn.hook_pattern`) where the model has one list of
        blocks.

        `attention` reads the weights of causal attention, [H, N, N] for N rows, under the names of
        the modules that compute it, for texts that begin in the step. A function may replace them,
        by the name `blocks.N.attn.hook_pattern`; texts that began before become NaN. `add` adds
        vectors [C] to all rows: steering; or rows [R, C] to the first ones; `put` changes them.
        `after` is called after each run that read something, such as each step of a generation.
        UsageError for a name that no module has, ModelError for a model that is not made of
        modules.
        """
        self._sites = Sites(model)
        known = self._sites.watched
        self._names = {id(module): name for name, module in known.items()}
        self._keep = list(known.values())  # an id is only taken while the module lives
        self._read = {site for pattern in read for site in self._sites_read(pattern)}
        self._replace: dict[Site, Callable[[Tensor], Tensor] | Tensor] = {}
        for name, by in (replace or {}).items():
            # Arrays become inputs of the program, not constants, so that `put` needs no
            # compilation.
            site = self._changed(name, weights=callable(by))
            self._replace[site] = by if callable(by) else tensor(np.asarray(by))
        self._add = {
            self._changed(name): tensor(np.array(vector)) for name, vector in (add or {}).items()
        }
        self.wants_attention = attention or any(
            site.kind == "attention" for site in (*self._read, *self._replace)
        )
        self._recording = _WatchedRecording(after)
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
        """Return the value of a name, by default the output, in its last run; KeyError if it was
        not read.
        """
        site = self._sites.site(name)
        if str(site) not in self._recording.found:
            what = "was not computed" if site in self._read else "is not among `read`"
            raise KeyError(f"{name}: it {what}; run the model in `with hooks:`")
        return self._recording.found[str(site)].numpy()

    def put(self, name: str, value: np.ndarray) -> None:
        """Change the array that replaces a value, or is added to it; nothing is compiled.

        UsageError for a value that no array changes, or for an array of another type.
        """
        site = self._sites.site(name)
        found = self._add.get(site, self._replace.get(site))
        if not isinstance(found, Tensor):
            raise UsageError(
                f"no array replaces the {site.kind} of {quoted(site.module)}",
                hint="give one in `replace` or `add` when you make the hooks",
            )
        # A copy: the caller may change its array while a run reads it.
        array = np.array(value, order="C")
        if TensorType.of(array) != found.type:
            verb = "changed by adding" if site in self._add else "replaced by"
            raise UsageError(
                f"{quoted(name)} is {verb} a `{found.type}`, got `{TensorType.of(array)}`"
            )
        leaf = cast("Stored", found.source)
        # Without a backend, the next run copies the array to its own; one on the device is dropped.
        leaf.buffer, leaf.backend = array, None

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Call a module, and read or change as requested; see `gptrs.nn.layers.Watcher`."""
        name = self._names.get(id(module))
        if name is None:
            return call(module, *args, **kwargs)
        args, kwargs = self._given(Site(name, "input"), args, kwargs)
        self._calling.append(name)
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._calling.pop()
        site = Site(name, "output")
        result = self._after_changes(site, result)
        if site in self._read and isinstance(result, Tensor):
            self._recording.tell(str(site), result)
        return result

    def _given(
        self, site: Site, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of a module, the first tensor read and changed as requested."""
        changes = site in self._replace or site in self._add
        if not changes and site not in self._read:
            return args, kwargs
        # In the order of the call: the first tensor among positional arguments, else among named
        # ones.
        given: dict[int | str, object] = {**dict(enumerate(args)), **kwargs}
        first = next((key for key, each in given.items() if isinstance(each, Tensor)), None)
        if first is None:
            if changes:
                raise UsageError(f"{quoted(site.module)} gets no tensor that could be changed")
            return args, kwargs
        given[first] = made = self._after_changes(site, given[first])
        if site in self._read:
            self._recording.tell(str(site), cast("Tensor", made))
        return tuple(given[n] for n in range(len(args))), {name: given[name] for name in kwargs}

    def attention_of(self, weights: Tensor) -> Tensor:
        """Return the weights of the attention that is being computed, changed as requested."""
        site = Site(self._calling[-1] if self._calling else "", "attention")
        if site in self._replace:
            weights = self._replaced(site, weights)
        self._recording.tell(str(site), weights)
        return weights

    def _after_changes(self, site: Site, value: object) -> object:
        """Return a value as `replace` and then `add` change it."""
        if site in self._replace:
            value = self._replaced(site, value)
        if site in self._add:
            value = self._steered(site, value)
        return value

    def _replaced(self, site: Site, value: object) -> Tensor:
        if not isinstance(value, Tensor):
            raise UsageError(f"{quoted(site.module)} gives no tensor that could be replaced")
        by = self._replace[site]
        made: object = by
        if not isinstance(by, Tensor):
            made = by(value)
        elif _are_rows(by, value):
            made = _first_rows(value, by, lambda _, rows: rows)
        if not isinstance(made, Tensor) or made.type != value.type:
            found = f"`{made.type}`" if isinstance(made, Tensor) else type(made).__name__
            where = f"the {site.kind} of {quoted(site.module)}"
            raise UsageError(f"{where} is a `{value.type}`, not {found}")
        return made

    def _steered(self, site: Site, value: object) -> Tensor:
        vector = self._add[site]
        where = f"the {site.kind} of {quoted(site.module)}"
        if not isinstance(value, Tensor):
            raise UsageError(f"{where} is not a tensor to which a vector could be added")
        added = F.cast(vector, value.dtype)
        if vector.shape == value.shape[-1:]:
            return value + added
        if _are_rows(added, value):
            return _first_rows(value, added, lambda x, rows: x + rows)
        raise UsageError(
            f"{where} is a `{value.type}`, a `{vector.type}` cannot be added",
            hint="`add` takes one vector for all rows, or the first rows of such a value",
        )

    def _sites_read(self, pattern: str) -> list[Site]:
        """Return the sites of a pattern: input and output where it names modules."""
        found: list[Site] = []
        for name in self._sites.names(pattern):
            site = self._sites.site(name)
            found.append(site)
            if site.module == name:
                found.append(Site(name, "input"))
        return found

    def _changed(self, name: str, weights: bool = False) -> Site:
        """Return the site of a name whose value is changed.

        UsageError for several, and for attention weights unless `weights` allows them.
        """
        sites = [self._sites.site(each) for each in self._sites.names(name)]
        if len(sites) == 1 and (weights or sites[0].kind != "attention"):
            return sites[0]
        raise UsageError(
            f"{quoted(name)} is not one input or output of a module",
            hint="only a function in `replace` changes weights of attention"
            if any(site.kind == "attention" for site in sites)
            else "name each of them; `gptrs trace --modules` lists modules",
        )

    def _values(self, suffix: str) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, value in self._recording.found.items():
            base, at, again = name.partition("@")
            if base.endswith(suffix):
                found[f"{base.removesuffix(suffix)}{at}{again}"] = value.numpy()
        return found


class _WatchedRecording(Recording):
    """A recording that calls `after` when the values of a run have been stored."""

    def __init__(self, after: Callable[[], None] | None) -> None:
        super().__init__()
        self._after = after

    @override
    def deliver(self, values: Mapping[str, Tensor]) -> None:
        super().deliver(values)
        if values and self._after is not None:  # other functions run in the scope, too
            self._after()


def _are_rows(rows: Tensor, x: Tensor) -> bool:
    """Return whether `rows` can be the first rows of `x`."""
    fit = len(rows.shape) == len(x.shape) and rows.shape[1:] == x.shape[1:]
    return fit and rows.dtype == x.dtype and rows.shape[0] != 0


def _first_rows(x: Tensor, rows: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return `x` with its first rows changed by those of `rows`."""
    count = rows.shape[0]
    index = F.arange(x.shape[0])
    # By index, not by slices: the number of rows is free, and a slice would fix it. Rows past the
    # last are taken and thrown away.
    taken = F.take(rows, F.minimum(index, count - 1))
    changed = F.reshape(index < count, (x.shape[0], *[1] * (len(x.shape) - 1)))
    return F.where(changed, change(x, taken), x)
