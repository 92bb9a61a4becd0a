"""`gptrs serve`: load models, and answer until told to stop."""

from __future__ import annotations

import ipaddress
import re
import signal
import socket
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from starlette.applications import Starlette

from gptrs.api import UsageError
from gptrs.api.backends import Backend, ProcessGroup
from gptrs.quoting import did_you_mean, listed, quoted
from gptrs_runtime.load import load
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.option_fields import OptionsOf, in_own_words, option_fields
from gptrs_runtime.serving.engine import MOST_REQUESTS, MOST_RUNNING, Engine
from gptrs_runtime.text_batches import parsed_bytes
from gptrs_serve.app import Access, new_app
from gptrs_serve.keys import KEY_VARIABLE, KeyRing, read_keys
from gptrs_serve.listening import (
    Opening,
    Wire,
    new_listener,
    new_unix_listener,
    run_app,
    run_opening,
)
from gptrs_serve.problems import LOCAL_HOSTS
from gptrs_serve.request_log import LogFormat, json_log
from gptrs_serve.residence import Residence
from gptrs_serve.served import (
    WRITING,
    Served,
    about_default,
    load_drafts,
    load_models,
    with_adapters,
)
from gptrs_serve.watched_runs import Interventions, Vectors, read_presets

_ORIGIN: Final = re.compile(
    r"\*|null|[a-z][a-z0-9+.-]*://([^\s/:@?#*\[\]]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
)
"""The origin of a page as browsers send it; `null` is that of a local file."""
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")

_Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]MODEL...",
        help="Models, and the names by which clients call them; default: the bundled one.",
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
        help=f"Answer only requests with one of these keys, one a line; also {KEY_VARIABLE}."
        " SIGHUP reads it again.",
    ),
]
_Cors = Annotated[
    list[str] | None,
    typer.Option(
        "--cors", metavar="ORIGIN", help="Accept requests from pages of this site; repeatable."
    ),
]
_FIELDS: Final = option_fields(LoadOptions)
_Loading = Annotated[
    dict[str, Any],
    OptionsOf(
        in_own_words(
            LoadOptions,
            _FIELDS["backend"].reworded("Backend to run the models on."),
            _FIELDS["threads"].reworded("Threads of the backend.", least=1),
            _FIELDS["device"].reworded("A device of the backend: gpu:1."),
            _FIELDS["mesh"].reworded("Split models: data=2,tensor=4."),
            _FIELDS["backend_options"].reworded("An option of the backend; repeatable."),
            _FIELDS["weights"].reworded(
                "Quantize the models at load: q8, q4.", metavar="TYPE", parsed=str
            ),
            _FIELDS["precision"].reworded(
                "Arithmetic of products: f32, bf16, int8.", metavar="TYPE", parsed=str
            ),
            _FIELDS["weight_budget"].reworded("Most memory for the weights of a model: 2GB, 50%."),
            _FIELDS["coordinator"].reworded(
                "Split models over the devices of processes that meet here; the first one serves."
                " auto asks Slurm, Open MPI or Kubernetes."
            ),
            _FIELDS["processes"].reworded("Number of processes."),
            _FIELDS["process_id"].reworded("Index of this process; process 0 serves."),
            without=["adapter"],  # adapters of a server have names, and an option of their own
        ),
        told=True,
    ),
]
_MostRunning = Annotated[
    int, typer.Option("--most-running", metavar="N", min=1, help="Most answers written at once.")
]
_MostRequests = Annotated[
    int,
    typer.Option(
        "--most-requests", metavar="N", min=1, help="Most open requests; beyond, clients get a 429."
    ),
]
_MostWait = Annotated[
    float,
    typer.Option(
        "--most-wait", metavar="SECONDS", min=0, help="Requests that wait longer get a 429."
    ),
]
_MostOutput = Annotated[
    int | None,
    typer.Option(
        "--most-output",
        metavar="N",
        min=1,
        help="Most tokens of an answer (default: the context).",
    ),
]
_CacheBudget = Annotated[
    str | None,
    typer.Option("--cache-budget", metavar="SIZE", help="Memory for the key/value cache: 2GB."),
]
_CacheDtype = Annotated[
    str | None,
    typer.Option(
        "--cache-dtype",
        metavar="DTYPE",
        help="Type of the cache: f32, bf16, f16, q8 (default: f32).",
    ),
]
_PromptLookup = Annotated[
    bool,
    typer.Option(
        "--prompt-lookup", help="Guess tokens that texts repeat: the same answers, sooner."
    ),
]
_Heads = Annotated[
    bool,
    typer.Option("--mtp", help="Guess tokens by the models' own heads for multi-token prediction."),
]
_Drafts = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="[NAME=]MODEL",
        help="Let a smaller model guess tokens for the model NAME, or the first; repeatable.",
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
        "--drain-seconds", metavar="N", min=0, help="Time to finish answers after SIGTERM."
    ),
]
_AllowHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST",
        help="Also answer for this host, as a proxy sends it; repeatable; *: any host.",
    ),
]
_Unix = Annotated[
    Path | None,
    typer.Option("--uds", metavar="PATH", help="Listen on a Unix socket, not on a port."),
]
_Certificate = Annotated[
    Path | None,
    typer.Option("--ssl-certfile", metavar="FILE", help="Serve HTTPS with this certificate."),
]
_PrivateKey = Annotated[
    Path | None, typer.Option("--ssl-keyfile", metavar="FILE", help="The key of the certificate.")
]
_RootPath = Annotated[
    str,
    typer.Option(
        "--root-path", metavar="/PATH", help="The path under which a proxy publishes the server."
    ),
]
_AccessLog = Annotated[bool, typer.Option("--access-log", help="Log a line for each request.")]
_LogFormat = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="Format of the log.")
]
_Admin = Annotated[
    bool,
    typer.Option(
        "--admin",
        help="Let clients load and unload models and adapters; with keys, those with admin=yes.",
    ),
]
_Interventions = Annotated[
    bool,
    typer.Option(
        "--interventions", help="Let clients read and steer hidden states: /v1/interventions."
    ),
]
_Steer = Annotated[
    list[str] | None,
    typer.Option(
        "--steer",
        metavar="NAME=FILE[:LAYER[:SCALE]]",
        help="A steering vector that requests name, with --interventions; repeatable.",
    ),
]
_MostBody = Annotated[
    str,
    typer.Option(
        "--most-body", metavar="SIZE", help="Most bytes of a request, including its images."
    ),
]


def _from_file(context: typer.Context, file: Path | None) -> Path | None:
    """Take the defaults of options from a TOML file."""
    if file is None:
        return None
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--config: `{file}` cannot be read: {problem}") from error
    names = {  # as on the command line, with `_` for `-`
        each.opts[0].lstrip("-").replace("-", "_"): each
        for each in context.command.params
        if each.name != "config"
    }
    # Defaults, not values: options given on the command line still win, and click checks both
    # alike.
    context.default_map = {}
    for name, value in found.items():
        option = names.get(name.replace("-", "_"))
        if option is None:
            known = sorted(each.replace("_", "-") for each in names)
            raise UsageError(
                f"--config: `{file}` has an unknown option `{name}`",
                hint=f"{did_you_mean(name, known)}options are {listed(known, 50)}",
            )
        many = bool(getattr(option, "multiple", False)) or option.nargs == -1
        if isinstance(value, dict) or isinstance(value, list) != many:
            wanted = "a list" if many else "one value"
            raise UsageError(f"--config: `{name}` in `{file}` must be {wanted}")
        context.default_map[str(option.name)] = value
    return file


_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file with options by name, and `models`; the command line wins.",
        callback=_from_file,
        is_eager=True,
    ),
]


def serve(
    models: _Models = None,
    *,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    api_key_file: _KeyFile = None,
    cors: _Cors = None,
    loading: _Loading,
    most_running: _MostRunning = MOST_RUNNING,
    most_requests: _MostRequests = MOST_REQUESTS,
    most_wait: _MostWait = 120.0,
    most_output: _MostOutput = None,
    cache_budget: _CacheBudget = None,
    cache_dtype: _CacheDtype = None,
    prompt_lookup: _PromptLookup = False,
    mtp: _Heads = False,
    draft: _Drafts = None,
    adapter: _Adapters = None,
    drain_seconds: _DrainSeconds = 30,
    allow_host: _AllowHosts = None,
    uds: _Unix = None,
    ssl_certfile: _Certificate = None,
    ssl_keyfile: _PrivateKey = None,
    root_path: _RootPath = "",
    access_log: _AccessLog = False,
    log_format: _LogFormat = "text",
    most_body: _MostBody = "4MB",
    admin: _Admin = False,
    interventions: _Interventions = False,
    steer: _Steer = None,
    config: _Config = None,
) -> None:
    """Answer the clients of OpenAI, Anthropic and Ollama.

    The server has the routes of their APIs, /v1/rerank, /v1/classify, /v1/tag, /completion,
    /infill, /tokenize, /detokenize, /health, /ready, /metrics, /openapi.json, and a chat page at /.
    """
    options = LoadOptions(**loading)
    options.require_known()
    group = options.group(led=True)
    if group is not None and group.number:
        return _follow(options.made_backend(led=True), group)  # before any socket or key file
    presets = _presets(steer or [], interventions=interventions)
    limits = _limits(most_running, most_requests, most_wait)
    cache = {"cache_budget": cache_budget, "cache_dtype": cache_dtype}
    ring = KeyRing(read_keys(api_key_file), partial(read_keys, api_key_file))
    access = Access(
        keys=ring,
        hosts=_hosts(host, allow_host or [], is_unix=uds is not None),
        origins=_origins(cors or []),
        most_body_bytes=_body_bytes(most_body),
        logs=access_log,
    )
    wire = _wire(ssl_certfile, ssl_keyfile, root_path, uds, ring.reload)
    with (
        json_log() if _log_format(log_format) == "json" else nullcontext(),
        new_listener(host, port) if uds is None else new_unix_listener(uds) as listener,
    ):
        is_open = uds is None and not _is_local(host) and not ring
        _require_guarded(admin=admin, is_open=is_open)

        def opened() -> tuple[Starlette, Served]:
            runs_on = options.made_backend(led=True) if group is None else _leading(options)
            loads = partial(load, options=options.on(runs_on))
            loaded = with_adapters(load_models(models or ["demo"], loads), adapter or [])
            made_engine = partial(Engine, prompt_lookup=prompt_lookup, mtp=mtp, **limits, **cache)
            engine = _engine(made_engine, loaded, draft or [], runs_on)
            served = Served(loaded, engine, most_output, most_requests)
            served.residence = Residence(served, loads, drain_seconds) if admin else None
            served.interventions = _interventions(served, presets)
            _tell(listener, loaded, wire, is_open=is_open)
            if not models:  # behind the address, which scripts read from the first line
                print(about_default(loaded["demo"]), file=sys.stderr, flush=True)
            return new_app(served, access), served

        if group is None:
            run_opening(Opening(opened), listener, drain_seconds, wire)
        else:
            # Processes that follow connect to the first while it loads: in the main thread.
            app, served = opened()
            run_app(app, listener, drain_seconds, served.lost, wire)


def _require_guarded(*, admin: bool, is_open: bool) -> None:
    if admin and is_open:
        raise UsageError("--admin would let the network change the models: add API keys")


def _presets(steer: Sequence[str], *, interventions: bool) -> dict[str, Vectors] | None:
    """Return the steering vectors by name, None if interventions are off."""
    if steer and not interventions:
        raise UsageError("--steer has vectors for --interventions, which is off")
    return read_presets(steer) if interventions else None


def _interventions(served: Served, presets: dict[str, Vectors] | None) -> Interventions | None:
    if presets is None:
        return None
    made = Interventions(served.ledger, presets)
    made.require_presets(list(served.models.values()))
    return made


def _limits(most_running: int, most_requests: int, most_wait: float) -> dict[str, Any]:
    """Return the limits of the engine."""
    return {
        "most_running": most_running,
        "most_requests": most_requests,
        "most_wait": most_wait or None,
        # At least two tokens a text and step, so prompts go on while all others decode.
        "token_budget": max(256, 2 * most_running),
    }


def _is_local(host: str) -> bool:
    """Return whether an address is one of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(host: str, allowed: Sequence[str], *, is_unix: bool) -> Sequence[str]:
    """Return the hosts that requests may name, none for any; UsageError for another word."""
    for name in allowed:
        if name != "*" and not _HOST.fullmatch(name.lower()):
            raise UsageError(
                f"--allow-host: `{name}` is not a host",
                hint="write api.example.com, without a scheme, port or path, or * for any",
            )
    # Pages of other sites reach a local port by a DNS name that resolves to 127.0.0.1 (DNS
    # rebinding), but no Unix socket.
    if "*" in allowed or is_unix:
        return ()
    if _is_local(host) or allowed:
        own = f"[{host}]" if ":" in host else host
        return [*LOCAL_HOSTS, own, *(name.lower() for name in allowed)]
    return ()


def _origins(given: Sequence[str]) -> Sequence[str]:
    """Return the sites whose pages may ask; UsageError for another word."""
    sites = [origin.lower() for origin in given]  # as browsers send them
    for site in sites:
        if not _ORIGIN.fullmatch(site):
            raise UsageError(
                f"--cors: `{site}` is not an origin",
                hint="write https://HOST[:PORT], without a path, or * for the pages of all sites",
            )
    return sites


def _body_bytes(size: str) -> int:
    found = parsed_bytes(size, None)
    if found is None:
        raise UsageError(f"--most-body: {quoted(size)} is not a size", hint="write it as `20MB`")
    return found


def _log_format(given: str) -> LogFormat:
    if given not in ("text", "json"):
        raise UsageError(f"--log-format: {quoted(given)} is neither text nor json")
    return given


def _wire(
    certificate: Path | None,
    key: Path | None,
    root_path: str,
    uds: Path | None,
    hang_up: Callable[[], None],
) -> Wire:
    if (certificate is None) != (key is None):
        raise UsageError("--ssl-certfile and --ssl-keyfile go together")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise UsageError(
            f"--root-path: {quoted(root_path)} is not a path",
            hint="write /PATH, without / at its end",
        )
    return Wire(certificate, key, root_path, uds, hang_up)


def _engine(
    made: Callable[..., Engine],
    loaded: Mapping[str, LoadedModel],
    drafts: Sequence[str],
    backend: Backend,
) -> Engine | None:
    """Return the engine of the models that write texts, None without any."""
    writers = {name: m for name, m in loaded.items() if not m.capabilities.isdisjoint(WRITING)}
    guessing = load_drafts(drafts, list(writers), backend)
    return made(writers, drafts=guessing) if writers else None


def _leading(options: LoadOptions) -> Backend:
    """Return the backend of the first process, with which the others end."""
    backend = options.made_backend(led=True)
    # The server hands a signal on when it has ended; the processes that follow hear of an exit.
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


def _tell(listener: socket.socket, names: Iterable[str], wire: Wire, *, is_open: bool) -> None:
    if listener.family == socket.AF_INET or listener.family == socket.AF_INET6:
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        scheme = "http" if wire.certificate is None else "https"
        where = f"{scheme}://{shown}:{port}"
    else:
        where = f"unix:{listener.getsockname()}"
    print(f"serving {', '.join(names)} at {where}", file=sys.stderr, flush=True)
    if is_open:
        print("warning: anyone who reaches this address may ask: no API key", file=sys.stderr)
