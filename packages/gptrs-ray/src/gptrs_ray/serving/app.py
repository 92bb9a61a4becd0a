"""The server of gptrs-serve as an application of Ray Serve."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

import ray
from ray import serve
from ray.serve import Application, config
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gptrs.api import UsageError
from gptrs_ray.serving.affinity import mark_of
from gptrs_ray.serving.relay import Asked, Begin, answered, door
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import MOST_REQUESTS, Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.served import WRITING, Served

_SERVE: Final[Any] = serve
"""The module `ray.serve`, which is only partly typed."""
_ROUTER: Final[Any] = getattr(config, "RequestRouterConfig", None)
"""The setting of a router of one's own, which Ray has since 2.48; None before."""
_TARGET: Final = 16
"""Open requests per replica to which Ray scales a range of replicas: enough for an engine to write
several texts at once."""


def serve_app(
    models: Mapping[str, str | None],
    *,
    replicas: int | tuple[int, int] = 1,
    cpus: int = 4,
    backend: str | None = None,
    most_output: int | None = None,
    keys: tuple[str, ...] = (),
    name: str = "gptrs",
    by_prefix: bool | None = None,
) -> Application:
    """Return an application that speaks OpenAI's API; run it by `serve.run`.

    `models` maps names for clients to paths or names that `load_model` takes on each host. Each of
    the `replicas` has `cpus` CPUs, as many threads, and its own engine and KV cache; a range
    (least, most) follows the load. With `keys`, requests must send one of these API keys.

    `by_prefix` sends requests that share the beginning of a prompt, and those that continue a
    stored response, to the same replica, unless it is overloaded. None does so for several
    replicas if this version of Ray can; UsageError for True if it cannot.
    """
    least, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    if not 1 <= least <= most:
        raise UsageError(f"`replicas` is a number or a range of them, got {replicas}")
    if by_prefix and _ROUTER is None:
        raise UsageError(
            f"Ray {ray.__version__} cannot route by prefixes", hint="pip install 'ray[serve]>=2.48'"
        )
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": cpus},
        # Ray's default, 5, would keep the engine from writing many texts at once; its own limit
        # answers 429.
        "max_ongoing_requests": MOST_REQUESTS,
    }
    if least == most:
        options["num_replicas"] = least
    else:
        options["autoscaling_config"] = {
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": _TARGET,
        }
    given = (keys, models, backend, cpus, most_output)
    if by_prefix is False or _ROUTER is None or (by_prefix is None and most == 1):
        return cast("Application", _SERVE.deployment(name=name, **options)(_Models).bind(*given))
    router = _ROUTER(request_router_class="gptrs_ray.serving.router.PrefixRouter")
    behind = _SERVE.deployment(name=f"{name}-models", request_router_config=router, **options)
    front = _SERVE.deployment(
        name=name,
        # It only passes bytes on, and must find a place where replicas reserve all CPUs.
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=most * MOST_REQUESTS,
    )
    return cast("Application", front(_Door).bind(keys, behind(_Models).bind(*given)))


class _Written(Response):
    """A response that an application writes: Ray Serve calls what replicas return.

    Its own way, `serve.ingress`, takes applications that can be pickled, or, from some version on,
    a function that makes one.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer."""
        await self._app(scope, receive, send)


class _Door:
    """The replica that clients reach: it passes each request to one with the models."""

    def __init__(self, keys: tuple[str, ...], models: Any) -> None:
        self._app = door(models, keys)

    async def __call__(self, request: Request) -> Response:
        """Return the answer to a request."""
        return _Written(self._app)


class _Models:
    """A replica with the models, which answers what clients or a door ask."""

    # Models are loaded here: they cannot be pickled, and each host reads its own files.
    def __init__(self, keys: tuple[str, ...], *given: Any) -> None:
        self._served = _served(*given)
        replica = _SERVE.get_replica_context().replica_id.unique_id
        self._served.response_mark = mark_of(replica)
        self._app = new_app(self._served, Access(keys=keys))

    async def __call__(self, request: Request) -> Response:
        """Return the answer to a request that comes without a door."""
        return _Written(self._app)

    async def answer(self, asked: Asked) -> AsyncGenerator[Begin | bytes]:
        """Yield the status and headers of an answer, then its body."""
        async with contextlib.aclosing(answered(self._app, asked)) as parts:
            async for part in parts:
                yield part

    def check_health(self) -> None:
        """Raise if the engine has ended: Ray then starts another replica."""
        lost = self._served.lost()
        if lost is not None:
            raise RuntimeError(lost)

    def __del__(self) -> None:
        self._served.close()


def _served(
    models: Mapping[str, str | None],
    backend: str | None,
    threads: int,
    most_output: int | None,
) -> Served:
    loaded = {name: load_model(path, backend, threads) for name, path in models.items()}
    writers = {n: each for n, each in loaded.items() if not each.capabilities.isdisjoint(WRITING)}
    engine = Engine(writers) if writers else None
    return Served(loaded, engine, most_output)
