"""Settings of a backend: threads, device, mesh and its own options; and device descriptions.
Imports little, since plugin settings import it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import UsageError
from gptrs.quoting import quoted

Setting = Literal["device", "options", "mesh", "processes"]
"""A setting; threads are not listed, since every backend takes them."""
SETTINGS: tuple[Setting, ...] = get_args(Setting)
Precision = Literal["f32", "bf16", "int8"]
"""The precision of a model's products: `f32` widens weights and keeps activations; `bf16` rounds
both sides of products with a matrix to bf16, as `gptrs.optimizer.passes.arithmetic_folding` says in
PTIR, and may round those of convolutions; `int8` rounds activations multiplied with quantized
weights to 8 bits, in groups of at most 32. In all precisions, sums and everything outside these
products are exact or f32."""


LAUNCHED: Final = "auto"
"""The value of `coordinator` for processes started by a launcher that knows the address."""
_LAUNCHERS: Final[Mapping[str, str]] = {
    "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_RANK",
    "SLURM_STEP_NODELIST": "SLURM_PROCID",
    "KUBERNETES_SERVICE_HOST": "JOB_COMPLETION_INDEX",
}
"""For each launcher, a variable that it sets, and the variables with the process number. The first
launcher whose variable is set wins.
"""


MESH_AXES: Final = ("data", "tensor")
"""The axes of a mesh: `data` splits batches over copies of the model, `tensor` splits its
weights."""
MOST_DEVICES: Final = 65_536


class Mesh(Struct, frozen=True):
    """A grid of devices: name and size of each axis; neighbours on the last axis are closest."""

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(self.axes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Return the mesh of `data=2,tensor=4`; UsageError for other names, sizes or forms."""
        axes: list[tuple[str, int]] = []
        for part in text.split(","):
            name, _, number = (word.strip() for word in part.partition("="))
            size = int(number) if number.isdecimal() and len(number) < 6 else 0
            if name not in MESH_AXES or size < 1 or name in dict(axes):
                raise UsageError(
                    f"a mesh is written `data=2,tensor=4`, got {quoted(text)}",
                    hint="`tensor` splits weights, `data` batches; each once, 1 or more devices",
                )
            axes.append((name, size))
        mesh = cls(tuple(axes))
        if mesh.size > MOST_DEVICES:
            raise UsageError(f"a mesh of {mesh.size} devices is above {MOST_DEVICES}")
        return mesh


class ProcessGroup(Struct, frozen=True):
    """Processes on one or more hosts that run the same program: this is `number` of `count`.

    They meet at `coordinator`, HOST:PORT of the first. With `auto`, a launcher started them and
    tells the backend the address and the number of processes: `count` is None. UsageError for
    inconsistent numbers.

    All run the same steps in the same order; with `led`, only the first receives requests, and the
    backends of the others `follow`.
    """

    coordinator: str
    count: int | None
    number: int
    led: bool = False

    @classmethod
    def stated(
        cls,
        coordinator: str | None,
        count: int | None,
        number: int | None,
        *,
        led: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> ProcessGroup | None:
        """Return the processes of `--coordinator`, `--processes` and `--process-id`.

        None for a single process; UsageError if only some of the options are given.
        """
        if (coordinator, count, number) == (None, None, None):
            return None
        if coordinator == LAUNCHED:
            if (count, number) != (None, None):
                raise UsageError(
                    "`--coordinator auto` takes no `--processes` and no `--process-id`",
                    hint="leave them out: the launcher provides them",
                )
            return replace(cls.launched(environment), led=led)
        if coordinator is None or count is None or number is None:
            raise UsageError(
                "several processes need `--coordinator`, `--processes` and `--process-id`",
                hint="the first two are the same for all of them; or `--coordinator auto` alone,"
                " under Slurm, Open MPI and Kubernetes; docs/distributed.md",
            )
        return cls(coordinator, count, number, led)

    @classmethod
    def launched(cls, environment: Mapping[str, str]) -> ProcessGroup:
        """Return the processes of a step of Slurm, of Open MPI, or of an indexed Kubernetes job.

        UsageError if `environment`, the variables of this process, has none.
        """
        names = [number for mark, number in _LAUNCHERS.items() if environment.get(mark)]
        number = environment.get(names[0], "") if names else ""
        if not number.isdecimal():
            lacking = f": `{names[0]}` is not set to a number" if names else ""
            raise UsageError(
                f"no launcher has numbered this process{lacking}",
                hint="`auto` is for `srun`, Open MPI's `mpirun` and indexed jobs of Kubernetes;"
                " elsewhere name a coordinator; docs/distributed.md",
            )
        return cls(LAUNCHED, None, int(number))

    def __post_init__(self) -> None:
        if self.coordinator == LAUNCHED and self.count is None:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"a coordinator is HOST:PORT, got {quoted(self.coordinator)}")
        if self.count is None or not 0 <= self.number < self.count:
            raise UsageError(
                f"there is no process {self.number} of {self.count}",
                hint="they are numbered from 0, and all have the same coordinator and number",
            )

    def __str__(self) -> str:
        if self.count is None:
            return f"{self.number} of those that a launcher started"
        return f"{self.number} of {self.count} at {self.coordinator}"


class BackendSettings(Struct, frozen=True):
    """The settings of a new backend, passed to factories that declare `takes`.

    `device` is a name that the backend defines, such as `gpu:1`; `options` are backend-specific
    pairs of name and value; `mesh` describes the devices, of all `processes` together, over which
    weights and batches are split. The backend chooses where fields are None or empty. A backend
    raises UsageError for a setting that it cannot honor, with the alternatives.
    """

    threads: int | None = None
    device: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    mesh: Mesh | None = None
    processes: ProcessGroup | None = None

    def given(self) -> dict[Setting, str]:
        """Return the settings that are set, except threads, with their values as text."""
        found: dict[Setting, str] = {}
        if self.device is not None:
            found["device"] = self.device
        if self.options:
            found["options"] = ", ".join(f"{name}={value}" for name, value in self.options)
        if self.mesh is not None:
            found["mesh"] = str(self.mesh)
        if self.processes is not None:
            found["processes"] = str(self.processes)
        return found

    def require_taken(self, backend: str, takes: Sequence[str]) -> None:
        """Raise UsageError for a setting that is not in `takes`, which `backend` would ignore."""
        for name, value in self.given().items():
            if name not in takes:
                raise UsageError(
                    f"backend `{backend}` takes no {name}, got {quoted(value)}",
                    hint="leave it out, or name a backend that does: `gptrs list backends` says"
                    " which; docs/devices.md",
                )


class DeviceInfo(Struct, frozen=True):
    """A device of a backend: its `name` as users type it, a description, and its memory in bytes.

    `used` says whether the backend runs on it. `memory` is None if unknown.
    """

    name: str
    kind: str
    memory: int | None = None
    used: bool = False


def parsed_options(given: Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return options in the order of their names; UsageError for text that is not NAME=VALUE."""
    if isinstance(given, Mapping):
        return tuple(sorted(given.items()))
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"a backend option is NAME=VALUE, got {quoted(text)}")
        pairs[name] = value
    return tuple(sorted(pairs.items()))
