"""How a model is loaded, and where it runs: each field is all that is known of one option.

The parameters of `load_model`, the options of all commands that load a model, the keys of the file
that `gptrs serve --config` reads, and the table in docs/formats.md follow from the fields.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

from msgspec import Meta
from msgspec.structs import replace

from gptrs.backend.process_limits import MOST_THREADS
from gptrs.backend.settings import Precision, ProcessGroup
from gptrs.plugins.manager import backend_of, get_backend
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.option_fields import PATH, Kind, Missing, Option, Options, option_fields

if TYPE_CHECKING:
    from gptrs.backend.contract import Backend
else:  # annotations must be readable without importing what runs models
    Backend = Any

LOADED_TYPES: Final = ("q8", "q4")
"""The types that weights can be quantized to when they are loaded."""
_CHECKED_LATER: Final[Kind] = ("", lambda value: True)
"""Values that the backend or the model refuses, with an error that names the valid ones."""
_Load = partial(
    Option,
    kind=_CHECKED_LATER,
    panel="For all commands that run programs",
    request=Missing("it belongs to the model, which is loaded before requests arrive"),
)
_Machine = partial(_Load, keyword=Missing("`gptrs.get_backend` takes it"))
_Together = partial(_Machine, panel="Several processes", further=True)


class MachineOptions(Options, frozen=True, kw_only=True):
    """Where programs run: a backend, its threads and devices, and cooperating processes.

    `backend` is a name, or one that `gptrs.get_backend` made, which has its other settings. None:
    the one in `GPTRS_BACKEND`, or the installed one of highest priority.
    """

    backend: (
        Annotated[
            str | Backend,
            Meta(description="Run on this backend."),
            _Load(metavar="NAME", parsed=str, variable="GPTRS_BACKEND", in_python=True),
        ]
        | None
    ) = None
    threads: (
        Annotated[
            int,
            Meta(ge=1, le=MOST_THREADS, description="Use N threads."),
            _Load(metavar="N", variable="GPTRS_NUM_THREADS", in_python=True),
        ]
        | None
    ) = None
    device: (
        Annotated[
            str,
            Meta(description="Run on this device, such as cpu or gpu:1."),
            _Machine(metavar="NAME"),
        ]
        | None
    ) = None
    mesh: (
        Annotated[
            str,
            Meta(description="Split a model over devices: data=2,tensor=4."),
            _Machine(metavar="AXIS=N"),
        ]
        | None
    ) = None
    backend_options: Annotated[
        Sequence[str],
        Meta(description="An option of the backend; repeatable."),
        _Machine(flag="--backend-option", metavar="NAME=VALUE", parsed=list[str]),
    ] = ()
    coordinator: (
        Annotated[
            str,
            Meta(
                description="Address where the processes of a --mesh meet; auto asks Slurm, Open"
                " MPI or Kubernetes."
            ),
            _Together(metavar="HOST:PORT"),
        ]
        | None
    ) = None
    processes: (
        Annotated[int, Meta(ge=1, description="Number of processes."), _Together(metavar="N")]
        | None
    ) = None
    process_id: (
        Annotated[
            int,
            Meta(ge=0, description="Index of this process; process 0 prints the result."),
            _Together(metavar="I"),
        ]
        | None
    ) = None

    def group(self, *, led: bool = False) -> ProcessGroup | None:
        """Return the group of processes, None for a single one; UsageError if options are missing.

        With `led`, only the first process receives requests.
        """
        return ProcessGroup.stated(self.coordinator, self.processes, self.process_id, led=led)

    def made_backend(self, *, led: bool = False) -> Backend:
        """Return the backend; where several processes meet, that waits for them.

        Raises what `get_backend` raises, and UsageError for settings beside a backend that exists.
        """
        if self.backend is None or isinstance(self.backend, str):
            return get_backend(
                self.backend,
                self.threads,
                device=self.device,
                options=self.backend_options,
                mesh=self.mesh,
                processes=self.group(led=led),
            )
        made = backend_of(self.backend, self.threads)
        rest = [name for name in option_fields(MachineOptions) if name != "backend"]
        self.refuse(f"the backend `{made.name}`, which exists,", rest)
        return made

    def given(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the options that do not have their defaults."""
        for name, field in option_fields(type(self)).items():
            value = getattr(self, name)
            if value != field.default:
                yield name, value

    def refuse(self, what: str, names: Container[str]) -> None:
        """Raise UsageError if one of the options `names` is given, which `what` does not take."""
        for name, value in self.given():
            if name in names:
                message = f"{what} takes no `{name}`, got {shown_value(value)}"
                raise option_fields(type(self))[name].error(message, hint="leave it out")

    def require_known(self) -> None:
        """Raise UsageError for a value that no backend takes, before one is made."""
        for name, value in self.given():
            choices = option_fields(type(self))[name].option.choices
            if choices and value not in choices:
                message = f"`{name}` cannot be {quoted(str(value))}"
                raise option_fields(type(self))[name].error(
                    message, hint=f"choose from {listed(choices)}"
                )

    def command_line(self) -> Iterator[str]:
        """Yield the words of a command line with the options that are given."""
        for name, value in self.given():
            values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            for each in values:
                yield from (str(option_fields(type(self))[name].flag), str(each))


class LoadOptions(MachineOptions, frozen=True, kw_only=True):
    """How a model is loaded; see `load_model`."""

    weight_budget: (
        Annotated[
            int | str,
            Meta(description="Limit the memory of the weights: 2GB, 512MiB, 50%, off."),
            _Load(metavar="SIZE", parsed=str, variable="GPTRS_WEIGHT_BUDGET", in_python=True),
        ]
        | None
    ) = None
    weights: (
        Annotated[
            str,
            Meta(description="Quantize the weights when they are loaded."),
            _Load(choices=LOADED_TYPES),
        ]
        | None
    ) = None
    precision: (
        Annotated[
            Precision,
            Meta(description="Arithmetic of products; int8 is for quantized weights."),
            _Load(choices=get_args(Precision), unset="the backend's own"),
        ]
        | None
    ) = None
    adapter: (
        Annotated[
            str | Path,
            Meta(description="Apply the LoRA adapter in this folder."),
            _Load(kind=PATH, metavar="DIR", parsed=Path, panel=""),
        ]
        | None
    ) = None

    def on(self, backend: Backend) -> LoadOptions:
        """Return these options for `backend`, which `made_backend` made."""
        made = {name: field.default for name, field in option_fields(MachineOptions).items()}
        return replace(self, **{**made, "backend": backend})
