"""The routes that load and unload models; they need `--admin` and an admin key."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gptrs_serve.bodies import LoadAdapterBody, LoadBody, UnloadAdapterBody, UnloadBody
from gptrs_serve.keys import Key
from gptrs_serve.problems import KEY, RequestError
from gptrs_serve.residence import Residence
from gptrs_serve.served import Served

CHANGES: Final = (LoadBody, UnloadBody, LoadAdapterBody, UnloadAdapterBody)
"""Bodies that may name models which are not loaded."""


def residence_of(request: Request, served: Served) -> Residence:
    """Return the `Residence`; RequestError if it is off, or the key is not an admin key."""
    if served.residence is None:
        raise RequestError(
            "this server does not load or unload models: start it with `--admin`",
            status=403,
            code="no_admin",
        )
    if not may_change(request, served):
        raise RequestError(
            "this key may not load or unload models: its line needs `admin=yes`",
            status=403,
            code="no_admin",
        )
    return served.residence


async def loaded(request: Request, body: LoadBody, served: Served) -> Response:
    """Load a model, and answer once it is loaded."""
    residence = residence_of(request, served)
    name, separator, source = body.model.partition("=")
    if not name or (separator and not source):
        raise RequestError("write [NAME=]MODEL, with a path or id", param="model")
    if not separator and name not in {*residence.unloaded, *served.models}:
        # The name that a model given without one on the command line gets.
        name, source = Path(name).stem, name
    # A client that hangs up does not end the work, which others may wait for.
    await asyncio.shield(residence.load(name, source or None))
    return JSONResponse({"success": True, "model": name})


async def adapted(request: Request, body: LoadAdapterBody, served: Served) -> Response:
    """Load an adapter; the answer is that of vLLM."""
    work = residence_of(request, served).adapt(body.lora_name, body.lora_path, body.base_model_name)
    await asyncio.shield(work)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unloaded(
    request: Request, name: str, served: Served, *, is_adapter: bool = False
) -> Response:
    """Unload a model or an adapter, and answer once its memory is free."""
    residence = residence_of(request, served)
    model = served.models.get(name)
    if is_adapter and model is not None and model.base is None:
        raise RequestError(f"`{name}` is not an adapter: `/models/unload` unloads models")
    await asyncio.shield(residence.unload(name, forget=is_adapter))
    if is_adapter:
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")
    return JSONResponse({"success": True, "model": name})


def may_change(request: Request, served: Served) -> bool:
    """Return whether a request may load and unload models."""
    key: Key | None = request.scope.get(KEY)
    # Without keys everyone is an admin; `--admin` without keys is refused on open addresses.
    return served.residence is not None and (key is None or key.is_admin)


_later: set[asyncio.Task[None]] = set()


def unload_later(name: str, served: Served) -> None:
    """Unload a model once its requests have ended, including the one that asks for it."""

    async def unload() -> None:
        assert served.residence is not None  # the request may change the models
        with suppress(RequestError):  # another one has unloaded it, or has given it an adapter
            await served.residence.unload(name)

    task = asyncio.create_task(unload())
    _later.add(task)  # the event loop alone would not keep it
    task.add_done_callback(_later.discard)
