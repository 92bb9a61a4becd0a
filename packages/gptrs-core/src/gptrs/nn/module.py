"""The base of layers and models: an object whose tensors can be listed by dotted name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from gptrs.capture.tensor import Tensor


class Module:
    """A layer or model. Its attributes are weights (`Tensor`), modules, and lists of modules.

    Attribute names are those of the checkpoint, so that a path in Python is a name in the file.
    """

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Yield all weights below this module with their dotted names, in order of definition."""
        for name, value in vars(self).items():
            yield from _walk(f"{prefix}{name}", value)


def _walk(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Module):
        yield from value.named_tensors(f"{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _walk(f"{name}.{index}", item)
