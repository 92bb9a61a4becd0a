"""The server of gptrs-serve as an application of Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from ray import serve
from ray.serve import Application
from starlette.applications import Starlette

from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.served import WRITING, Served

_SERVE: Final[Any] = serve
"""The module `ray.serve`, which is only partly typed."""


def serve_app(
    models: Mapping[str, str | None],
    *,
    replicas: int = 1,
    cpus: int = 4,
    backend: str | None = None,
    most_output: int | None = None,
    keys: tuple[str, ...] = (),
    name: str = "gptrs",
) -> Application:
    """Return an application that speaks OpenAI's API; run it by `serve.run`.

    `models` maps names for clients to paths or names that `load_model` takes on each host. Each of
    the `replicas` has `cpus` CPUs, as many threads, and its own engine and KV cache. With `keys`,
    requests must send one of these API keys.
    """

    # Models are loaded in the replica: they cannot be pickled, and each host reads its own files.
    def replica() -> Starlette:
        return _application(models, backend, cpus, most_output, keys)

    deployment = _SERVE.deployment(
        name=name, num_replicas=replicas, ray_actor_options={"num_cpus": cpus}
    )
    return cast("Application", deployment(_SERVE.ingress(replica)(_Replica)).bind())


class _Replica:
    """A replica of Ray Serve: all requests go to the application."""


def _application(
    models: Mapping[str, str | None],
    backend: str | None,
    threads: int,
    most_output: int | None,
    keys: tuple[str, ...],
) -> Starlette:
    loaded = {name: load_model(path, backend, threads) for name, path in models.items()}
    writers = {n: each for n, each in loaded.items() if not each.capabilities.isdisjoint(WRITING)}
    engine = Engine(writers) if writers else None
    return new_app(Served(loaded, engine, most_output), Access(keys=keys))
