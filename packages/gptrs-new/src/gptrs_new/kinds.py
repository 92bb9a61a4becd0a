"""The kinds of plugins that can be made, and the names in a package of one."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from enum import StrEnum

from gptrs.api import UsageError

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_LONGEST = 40


class Kind(StrEnum):
    """A kind of plugin; there is a folder of templates of its name."""

    BACKEND = "backend"
    MODEL = "model"
    FUNCTIONAL = "functional"
    COMMAND = "command"
    IMPORTER = "importer"
    EXPORTER = "exporter"
    TRACE_SINK = "trace-sink"

    @property
    def extension_point(self) -> str:
        """The kind as `gptrs list plugins` has it."""
        return self.replace("-", "_")


@dataclass(frozen=True)
class Names:
    """The names in a package; UsageError for a plugin name that no package can be called by."""

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST:
            raise UsageError(
                f"`{self.name[:_LONGEST]}` cannot be the name of a plugin",
                hint="begin with a lower-case letter; then come such letters, digits, `-` and `_`",
            )
        if keyword.iskeyword(self.module) or self.module in sys.stdlib_module_names:
            raise UsageError(f"`{self.name}` is a name of Python itself", hint="take another one")

    @property
    def module(self) -> str:
        """The package that is imported, such as `gptrs_backend_acme`."""
        return self.distribution.replace("-", "_")

    @property
    def distribution(self) -> str:
        """The distribution that is installed, such as `gptrs-backend-acme`."""
        return f"gptrs-{self.kind}-{self.name.replace('_', '-')}"

    @property
    def class_name(self) -> str:
        """The stem of classes, such as `Acme`."""
        return "".join(part.capitalize() for part in re.split(r"[-_]", self.name))

    @property
    def suffix(self) -> str:
        """The suffix of the files of an importer or exporter, such as `.acme`."""
        return f".{re.sub('[-_]', '', self.name)}"

    @property
    def plugin(self) -> str:
        """The name that users type; an implementation is that of a functional."""
        return f"silu.{self.name}" if self.kind is Kind.FUNCTIONAL else self.name
