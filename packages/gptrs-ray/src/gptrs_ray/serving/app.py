"""The server of gptrs-serve as an application of Ray Serve."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

import ray
from ray import serve
from ray.serve import Application, config

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
    given = (models, backend, cpus, most_output)
    if by_prefix is False or _ROUTER is None or (by_prefix is None and most == 1):
        # Models are loaded in the replica: they cannot be pickled, and each host reads its own
        # files.
        plain = _SERVE.deployment(name=name, **options)
        app = _SERVE.ingress(lambda: new_app(_served(*given), Access(keys=keys)))
        return cast("Application", plain(app(_Replica)).bind())
    router = _ROUTER(request_router_class="gptrs_ray.serving.router.PrefixRouter")
    behind = f"{name}-models"
    reading = _SERVE.deployment(name=behind, request_router_config=router, **options)(_Models)
    front = _SERVE.deployment(
        name=name,
        # It only passes bytes on, and must find a place where replicas reserve all CPUs.
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=most * MOST_REQUESTS,
    )
    app = _SERVE.ingress(lambda: door(lambda: _SERVE.get_deployment_handle(behind), keys))
    return cast("Application", front(app(_Door)).bind(reading.bind(keys, *given)))


class _Replica:
    """A replica of Ray Serve: all requests go to the application."""


class _Door:
    """A replica before others, all requests to which go to the application."""

    def __init__(self, models: object) -> None:
        """Keep the deployment of the models beside this one."""


class _Models:
    """A replica with the models, which answers what a door passes on."""

    def __init__(self, keys: tuple[str, ...], *given: Any) -> None:
        self._served = _served(*given)
        replica = _SERVE.get_replica_context().replica_id.unique_id
        self._served.response_mark = mark_of(replica)
        self._app = new_app(self._served, Access(keys=keys))

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
