"""Loads and unloads models while the server answers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final, Protocol

from gptrs.quoting import did_you_mean, listed
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.accounts import Ledger
from gptrs_serve.pools import Pool, return_memory
from gptrs_serve.problems import RequestError

Load = Callable[[], LoadedModel]
_MOST_WAITING: Final = 16
"""Most changes that wait: each may take as long as loading a model."""


class Models(Protocol):
    """The part of `Served` that `Residence` uses."""

    models: dict[str, LoadedModel]

    def named(self, name: str | None, capability: str) -> tuple[str, LoadedModel]:
        """Return a model with a capability; RequestError if there is none."""
        ...

    def add(self, name: str, model: LoadedModel) -> None:
        """Serve another model."""
        ...

    def remove(self, name: str) -> Callable[[float], None]:
        """Stop serving a model; the result waits that many seconds for its requests."""
        ...


class Residence:
    """Loads and unloads the models of `served`, one at a time, in its own thread.

    `load` takes a path or id. A request for an unloaded model loads it again.
    Open requests have `drain_seconds` to end before their model is unloaded. Belongs to one event
    loop.
    """

    def __init__(
        self,
        served: Models,
        load: Callable[[str], LoadedModel],
        drain_seconds: float,
    ) -> None:
        self._served = served
        self._load = load
        self._sources: dict[str, Load] = {}
        """How to load unloaded models again."""
        self._drain_seconds = drain_seconds
        self._changes = asyncio.Lock()
        self._threads = Pool("loading", Ledger(_MOST_WAITING))

    @property
    def unloaded(self) -> list[str]:
        """The names of unloaded models, which a request would load again."""
        return [name for name in self._sources if name not in self._served.models]

    async def ensure(self, name: str | None) -> None:
        """Load an unloaded model again; does nothing for other names."""
        if name in self._sources and name not in self._served.models:
            await self.load(name)

    async def load(self, name: str, source: str | None = None) -> None:
        """Load a model from `source` (None: as before); does nothing if it is loaded.

        RequestError for a name without a source, or one that is taken; errors as of `load_model`.
        """
        # One change at a time: two requests that bring the same model back would load it twice.
        async with self._changes:
            # Asked again within the lock: another request may have loaded it meanwhile.
            if name in self._served.models and source is None:
                return
            self._require_free(name)
            if source is not None:
                await self._serve(name, lambda: self._load(source))
            elif name in self._sources:
                await self._serve(name, self._sources[name])
            else:
                raise self._unknown(name)

    async def adapt(self, name: str, path: str, base: str | None) -> None:
        """Serve a model with a LoRA adapter under a name; errors as of `load`."""
        async with self._changes:
            self._require_free(name)
            chosen, model = self._served.named(base, "causal_lm")
            if model.base is not None:
                raise RequestError(f"`{chosen}` has an adapter already: name the model itself")
            await self._serve(name, lambda: self.base(chosen).with_adapter(path, name))

    def base(self, name: str) -> LoadedModel:
        """Return the base model of an adapter, a new object after each loading."""
        model = self._served.models.get(name)
        if model is None:
            raise RequestError(f"the model `{name}` of this adapter is unloaded: load it first")
        return model

    async def unload(self, name: str, *, forget: bool = False) -> None:
        """Unload a model, and with `forget` drop its source; RequestError if it is not loaded.

        Returns when its requests have ended and its memory is free.
        """
        async with self._changes:
            model = self._served.models.get(name)
            if model is None:
                raise self._unknown(name)
            adapters = [known for known, each in self._served.models.items() if each.base is model]
            if adapters:
                raise RequestError(f"`{name}` has adapters: unload {listed(adapters, 8)} first")
            if forget:
                self._sources.pop(name, None)
            else:
                self._sources[name] = self._again(name, model)
            # Otherwise this frame would keep the weights alive until the drain is over.
            del model
            removed = self._served.remove(name)
            # In a thread, as it waits for requests in flight; the event loop must go on answering
            # them.
            await self._threads.run(lambda: _freed(removed, self._drain_seconds))

    async def _serve(self, name: str, load: Load) -> None:
        self._served.add(name, await self._threads.run(load))

    def _again(self, name: str, model: LoadedModel) -> Load:
        """Return a function that loads a model as it was."""
        if model.base is not None and model.adapter is not None:
            bases = (known for known, each in self._served.models.items() if each is model.base)
            path, base = model.adapter.path, next(bases)
            return lambda: self.base(base).with_adapter(path, name)
        # By path, not by the name given first: a name of the hub may mean another revision by now.
        source = str(model.files.path)
        return lambda: self._load(source)

    def _require_free(self, name: str) -> None:
        if name in self._served.models:
            raise RequestError(f"there is a model called {name[:80]!r} already", code="name_taken")

    def _unknown(self, name: str) -> RequestError:
        names = list(self._served.models)
        return RequestError(
            f"there is no model called {name[:80]!r}; {did_you_mean(name, names)}there are"
            f" {listed(names, 8)}",
            status=404,
            code="model_not_found",
        )

    def close(self) -> None:
        """End the thread after the running change."""
        self._threads.close()


def _freed(remove: Callable[[float], None], seconds: float) -> None:
    """Remove a model, and return its memory to the system."""
    remove(seconds)
    gc.collect()  # models and their captures refer to each other
    return_memory()
