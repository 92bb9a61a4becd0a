"""`gptrs serve`: load models, and answer until told to stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gptrs.api import UsageError
from gptrs.api.backends import Backend, ProcessGroup
from gptrs.plugins.manager import get_backend
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.engine import MOST_REQUESTS, MOST_RUNNING, Engine
from gptrs_serve.app import Access, new_app, new_listener, run_app
from gptrs_serve.problems import LOCAL_HOSTS
from gptrs_serve.served import Served, load_drafts, load_models, with_adapters

KEY_VARIABLE: Final = "GPTRS_SERVE_API_KEY"
_ORIGIN: Final = re.compile(
    r"\*|null|[a-z][a-z0-9+.-]*://([^\s/:@?#*\[\]]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
)
"""The origin of a page as browsers send it; `null` is that of a local file."""
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


_Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]MODEL...",
        help="Models and the names that clients call them by; the bundled one without any.",
    ),
]
_Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="0.0.0.0 is open to the network.")
]
_Port = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help=f"Answer those alone who send one of these keys, one a line; also {KEY_VARIABLE}.",
    ),
]
_Cors = Annotated[
    list[str] | None,
    typer.Option("--cors", metavar="ORIGIN", help="Let pages of this site ask; repeatable."),
]
_Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Run the models on it.")
]
_Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Threads of the backend.")
]
_Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="A device of the backend: gpu:1.")
]
_Mesh = Annotated[
    str | None, typer.Option("--mesh", metavar="AXIS=N", help="Split models: data=2,tensor=4.")
]
_BackendOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--backend-option", metavar="NAME=VALUE", help="An option of the backend; repeatable."
    ),
]
_Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="TYPE", help="Quantize the models at load: q8, q4."),
]
_Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="TYPE", help="Of products: f32, bf16, int8."),
]
_WeightBudget = Annotated[
    str | None,
    typer.Option(
        "--weight-budget", metavar="SIZE", help="Most memory for the weights of a model: 2GB, 50%."
    ),
]
_Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        help="Split models over the devices of processes that meet here; the first one serves."
        " auto asks Slurm, Open MPI or Kubernetes.",
    ),
]
_Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, help="How many there are.")
]
_ProcessId = Annotated[
    int | None,
    typer.Option("--process-id", metavar="I", min=0, help="Which of them this is; 0 serves."),
]
_MostRunning = Annotated[
    int, typer.Option("--most-running", metavar="N", min=1, help="Answers written at once.")
]
_MostRequests = Annotated[
    int, typer.Option("--most-requests", metavar="N", min=1, help="Beyond them clients get a 429.")
]
_MostWait = Annotated[
    float,
    typer.Option(
        "--most-wait", metavar="SECONDS", min=0, help="Requests that wait longer get a 429."
    ),
]
_MostOutput = Annotated[
    int, typer.Option("--most-output", metavar="N", min=1, help="Tokens of an answer.")
]
_CacheBudget = Annotated[
    str | None,
    typer.Option("--cache-budget", metavar="SIZE", help="Memory of the key/value cache: 2GB."),
]
_CacheDtype = Annotated[
    str | None,
    typer.Option(
        "--cache-dtype", metavar="DTYPE", help="Its elements: f32, bf16, f16, q8 (default f32)."
    ),
]
_PromptLookup = Annotated[
    bool,
    typer.Option(
        "--prompt-lookup", help="Guess ahead what texts repeat: the same answers, sooner."
    ),
]
_Drafts = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="[NAME=]MODEL",
        help="Have a smaller model guess ahead for the model NAME, or the first; repeatable.",
    ),
]
_Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="[MODEL:]NAME=DIR",
        help="Serve MODEL, or the first, with a LoRA adapter under a name of its own; repeatable.",
    ),
]
_DrainSeconds = Annotated[
    int,
    typer.Option(
        "--drain-seconds", metavar="N", min=0, help="Time that answers have after SIGTERM."
    ),
]


def serve(
    models: _Models = None,
    *,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    api_key_file: _KeyFile = None,
    cors: _Cors = None,
    backend: _Backend = None,
    threads: _Threads = None,
    device: _Device = None,
    mesh: _Mesh = None,
    backend_option: _BackendOptions = None,
    weights: _Weights = None,
    precision: _Precision = None,
    weight_budget: _WeightBudget = None,
    coordinator: _Coordinator = None,
    processes: _Processes = None,
    process_id: _ProcessId = None,
    most_running: _MostRunning = MOST_RUNNING,
    most_requests: _MostRequests = MOST_REQUESTS,
    most_wait: _MostWait = 120.0,
    most_output: _MostOutput = 2048,
    cache_budget: _CacheBudget = None,
    cache_dtype: _CacheDtype = None,
    prompt_lookup: _PromptLookup = False,
    draft: _Drafts = None,
    adapter: _Adapters = None,
    drain_seconds: _DrainSeconds = 30,
) -> None:
    """Answer the clients of OpenAI's API.

    There are /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank, /v1/classify,
    /v1/tag, /v1/models, /tokenize, /detokenize, /health, /ready, /metrics, and a chat page at /.
    """
    group = ProcessGroup.stated(coordinator, processes, process_id, led=True)
    made = _backend(backend, threads, device, mesh, backend_option, group)
    if group is not None and group.number:
        return _follow(made(), group)
    limits = _limits(most_running, most_requests, most_wait)
    cache = {"cache_budget": cache_budget, "cache_dtype": cache_dtype}
    load = partial(_loaded, models, adapter, weights, precision, weight_budget)
    access = _access(host, api_key_file, cors)
    with new_listener(host, port) as listener:
        runs_on = made() if group is None else _leading(made)
        loaded = load(runs_on)
        made_engine = partial(Engine, prompt_lookup=prompt_lookup, **limits, **cache)
        engine = _engine(made_engine, loaded, draft or [], runs_on)
        served = Served(loaded, engine, most_output, most_requests)
        _tell(listener, loaded, is_open=host not in _LOCAL and not access.keys)
        run_app(new_app(served, access), listener, drain_seconds, served.lost)


def _limits(most_running: int, most_requests: int, most_wait: float) -> dict[str, Any]:
    """Return the limits of the engine."""
    return {
        "most_running": most_running,
        "most_requests": most_requests,
        "most_wait": most_wait or None,
        "token_budget": max(256, 2 * most_running),
    }


def _backend(
    name: str | None,
    threads: int | None,
    device: str | None,
    mesh: str | None,
    options: Sequence[str] | None,
    processes: ProcessGroup | None,
) -> Callable[[], Backend]:
    """Return what makes the backend: where several processes meet, that waits for them."""
    return partial(
        get_backend,
        name,
        threads,
        device=device,
        options=options or [],
        mesh=mesh,
        processes=processes,
    )


def _access(host: str, api_key_file: Path | None, origins: Sequence[str] | None) -> Access:
    """Return who may ask; UsageError for a file without keys, and for what is no origin."""
    hosts = LOCAL_HOSTS if host in _LOCAL else ()
    sites = [origin.lower() for origin in origins or ()]  # as browsers send them
    for site in sites:
        if not _ORIGIN.fullmatch(site):
            raise UsageError(
                f"--cors: `{site}` is no origin",
                hint="write https://HOST[:PORT], without a path, or * for the pages of all sites",
            )
    return Access(keys=_keys(api_key_file), hosts=hosts, origins=sites)


def _engine(
    made: Callable[..., Engine],
    loaded: Mapping[str, LoadedModel],
    drafts: Sequence[str],
    backend: Backend,
) -> Engine | None:
    """Return the engine of the models that write texts, None without any."""
    writers = {name: m for name, m in loaded.items() if "causal_lm" in m.capabilities}
    guessing = load_drafts(drafts, list(writers), backend)
    return made(writers, drafts=guessing) if writers else None


def _loaded(
    models: Sequence[str] | None,
    adapters: Sequence[str] | None,
    weights: str | None,
    precision: str | None,
    weight_budget: str | None,
    backend: Backend,
) -> dict[str, LoadedModel]:
    """Load the models and their adapters, all in one way."""
    load = partial(
        load_model,
        backend=backend,
        weight_budget=weight_budget,
        weights=weights,
        precision=precision,  # pyright: ignore[reportArgumentType]
    )
    return with_adapters(load_models(models or ["demo"], load), adapters or [])


def _leading(made: Callable[[], Backend]) -> Backend:
    """Return the backend of the first process, with which the others end."""
    backend = made()
    # The server hands a signal on when it has ended; whoever follows hears of an exit.
    signal.signal(signal.SIGTERM, _exit)
    return backend


def _exit(number: int, _: object) -> None:
    raise typer.Exit(128 + number)


def _follow(backend: Backend, group: ProcessGroup) -> None:
    """Do what the first process does, until it ends."""
    if not backend.follows:
        raise UsageError(f"backend `{backend.name}` cannot follow the first of several processes")
    print(f"process {group.number} follows the first one, which serves", file=sys.stderr)
    backend.follow()


def _tell(listener: socket.socket, names: Iterable[str], *, is_open: bool) -> None:
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    print(f"serving {', '.join(names)} at http://{shown}:{port}", file=sys.stderr, flush=True)
    if is_open:
        print("warning: anyone who reaches this address may ask: no API key", file=sys.stderr)


def _keys(file: Path | None) -> list[str]:
    """Return the keys of the variable and of `file`; UsageError for a file without any."""
    keys = [key for key in [os.environ.get(KEY_VARIABLE, "").strip()] if key]
    if file is None:
        return keys
    try:
        lines = file.read_text("utf-8").splitlines()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--api-key-file: `{file}` cannot be read: {problem}") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError(f"--api-key-file: `{file}` has no key", hint="write one on each line")
    if mode & stat.S_IROTH:
        note = f"warning: every user of this machine can read `{file}`: chmod o-r {file}"
        print(note, file=sys.stderr)
    return [*keys, *found]
