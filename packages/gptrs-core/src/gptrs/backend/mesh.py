"""A mesh of devices; light, since settings of plugins name it."""

from __future__ import annotations

import math
from typing import Final

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted

MESH_AXES: Final = ("data", "tensor")
"""The axes that a mesh may have: copies of the model for parts of a batch, parts of its weights."""
MOST_DEVICES: Final = 65_536


@dataclass(frozen=True)
class Mesh:
    """Devices in a grid: the name and the size of each axis, the last one of nearest devices."""

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
