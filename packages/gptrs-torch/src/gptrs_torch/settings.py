"""The options of the compile backend: which backend of gptrs runs, and how."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, cast

from gptrs import dumping, get_backend
from gptrs.api import UsageError
from gptrs.api.backends import Backend, Precision

_WEIGHTS: Final = ("checked", "frozen")
_dumps = ExitStack()
_dumped: set[Path] = set()
atexit.register(_dumps.close)


@dataclass(frozen=True)
class Settings:
    """Options of `torch.compile(..., options={...})`.

    `backend` is the name of a backend of gptrs, None for the default one; `threads` and `precision`
    are its own (`GPTRS_NUM_THREADS` and f32 unless given); into the directory `dump` go all
    programs, see `gptrs.dumping`. `weights`: `checked` (None, too) or `frozen`, which promises that
    nobody changes them in ways that torch does not count, such as `.data`.
    """

    backend: str | None = None
    threads: int | None = None
    precision: Precision | None = None
    dump: str | None = None
    weights: str | None = "checked"

    @staticmethod
    def of(options: Mapping[str, object] | None) -> Settings:
        """Return checked options; UsageError for one that is unknown or of another type."""
        known = {field.name: field for field in fields(Settings)}
        kinds = {"threads": int}
        for name, value in (options or {}).items():
            if name not in known:
                raise UsageError(
                    f"the compile backend `gptrs` has no option `{name}`",
                    hint=f"its options are {', '.join(known)}",
                )
            kind = kinds.get(name, str)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise UsageError(
                    f"the option `{name}` takes a value of type `{kind.__name__}`, got `{value!r}`"
                )
            if name == "weights" and value not in (None, *_WEIGHTS):
                raise UsageError(f"the option `weights` takes `checked` or `frozen`, got `{value}`")
        return Settings(**cast("dict[str, str]", dict(options or {})))  # pyright: ignore[reportArgumentType]

    def engine(self) -> Backend:
        """Return the backend; starts the dump, if one is asked for, which ends with the process."""
        if self.dump is not None and Path(self.dump).absolute() not in _dumped:
            _dumped.add(Path(self.dump).absolute())
            _dumps.enter_context(dumping(self.dump))
        return get_backend(self.backend, self.threads).with_precision(self.precision)
