"""Packages: rendered from templates, and written atomically."""

from __future__ import annotations

import errno
import inspect
import json
import keyword
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import FunctionType
from typing import cast

import jinja2
from msgspec import Struct

from gptrs import functionals
from gptrs.api import API_VERSION, UsageError
from gptrs.api.programs import DType
from gptrs.functionals.dispatch.registry import functional_names, implementation_names

# The kinds of plugins with templates, and the names in a package.


_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_LONGEST = 40
_COLUMNS = 100


class Kind(StrEnum):
    """A kind of plugin; a folder of templates has its name."""

    BACKEND = "backend"
    MODEL = "model"
    FUNCTIONAL = "functional"
    COMMAND = "command"
    IMPORTER = "importer"
    EXPORTER = "exporter"
    TRACE_SINK = "trace-sink"
    REFERENCE = "reference"

    @property
    def extension_point(self) -> str:
        """The kind in `gptrs list plugins`."""
        return self.replace("-", "_")


class Names(Struct, frozen=True):
    """The names in a package; UsageError for a plugin name that cannot be used in them, and for a
    functional that does not exist."""

    kind: Kind
    name: str
    composites: bool = False
    """Whether a backend also computes whole functionals."""
    functional: str = "silu"
    """The functional that an implementation computes."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST:
            raise UsageError(
                f"`{self.name[:_LONGEST]}` cannot be the name of a plugin",
                hint="use lower-case letters, digits, `-` and `_`, and begin with a letter",
            )
        if keyword.iskeyword(self.module) or self.module in sys.stdlib_module_names:
            raise UsageError(f"`{self.name}` is a name of Python itself", hint="take another one")
        if self.composites and self.kind is not Kind.BACKEND:
            raise UsageError(
                f"a {self.kind} computes no composites", hint="`--with-composites` is for backends"
            )
        implementation_names(self.functional)  # an error for an unknown one

    @classmethod
    def of(cls, kind: Kind, name: str, composites: bool) -> Names:
        """Return the names for what users type; `gelu.fast` is an implementation of `gelu`."""
        before, dot, after = name.rpartition(".")
        if kind is Kind.FUNCTIONAL and dot:
            return cls(kind, after, composites, before)
        if kind is Kind.FUNCTIONAL and name in functional_names():
            raise UsageError(
                f"`{name}` is a functional",
                hint=f"another implementation of it has a name, too: `{name}.fast`",
            )
        return cls(kind, name, composites)

    @property
    def module(self) -> str:
        """The import name, such as `gptrs_backend_acme`."""
        return self.distribution.replace("-", "_")

    @property
    def distribution(self) -> str:
        """The distribution, such as `gptrs-backend-acme`."""
        stem = self.name if self.functional == "silu" else f"{self.functional}-{self.name}"
        return f"gptrs-{self.kind}-{stem.replace('_', '-')}"

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
        """The name that users type; an implementation has the functional as a prefix."""
        return f"{self.functional}.{self.name}" if self.kind is Kind.FUNCTIONAL else self.name

    def head(self, name: str) -> str:
        """Return the first lines of a function with the parameters of the functional."""
        return _wrapped(f"def {name}(", [_bare(each) for each in self._parameters()], "):", "")

    @property
    def call(self) -> str:
        """The functional called with its parameters, which returns its result."""
        forms = {
            inspect.Parameter.VAR_POSITIONAL: "*{0}",
            inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
        }
        given = [forms.get(each.kind, "{0}").format(each.name) for each in self._parameters()]
        return _wrapped(f"return F.{self.functional}(", given, ")", "    ")

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(getattr(functionals, self.functional)).parameters.values())


def _bare(parameter: inspect.Parameter) -> str:
    """Return a parameter as code, without its annotation."""
    default = parameter.default
    if default is inspect.Parameter.empty:
        return str(parameter.replace(annotation=default))
    return f"{parameter.name}={_code(default)}"


def _code(value: object) -> str:
    """Return a default as code."""
    if isinstance(value, DType):
        return f"dtypes.{value.name}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, FunctionType):
        return f"F.{value.__name__}"
    if isinstance(value, tuple):
        words = [_code(each) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(words)}{',' * (len(words) == 1)})"
    return repr(value)


def _wrapped(before: str, words: list[str], after: str, indent: str) -> str:
    """Return code as ruff formats it."""
    joined = ", ".join(words)
    if len(indent + before + joined + after) <= _COLUMNS:
        return f"{before}{joined}{after}"
    lines = [joined] if len(indent) + 4 + len(joined) <= _COLUMNS else [f"{w}," for w in words]
    return "\n".join([before, *(f"{indent}    {line}" for line in lines), f"{indent}{after}"])


_SHARED = "shared"
_SUFFIX = ".jinja"


def rendered(names: Names) -> dict[str, str]:
    """Return the files of a package by relative path; without templates that render to nothing."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gptrs_new"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the templates are code
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    major, minor = map(int, API_VERSION.split("."))
    values = {
        "names": names,
        "kind": names.kind.value,
        "api": API_VERSION,
        "core": f"gptrs-core>={API_VERSION},<{major}.{minor + 1}",
    }
    files: dict[str, str] = {}
    for folder in (_SHARED, names.kind.value):
        for template in environment.list_templates(filter_func=_is_in(folder)):
            path = template.removeprefix(f"{folder}/").removesuffix(_SUFFIX)
            path = path.replace("MODULE", names.module).replace("dot-", ".")
            text = environment.get_template(template).render(values)
            if text or path.endswith("__init__.py"):
                files[path] = text
    return files


def write_package(names: Names, parent: Path) -> list[Path]:
    """Write the package below `parent`, and return its files; UsageError if that is impossible."""
    folder = parent / names.distribution
    if os.path.lexists(folder):
        raise _taken(folder)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{names.distribution}-", dir=parent))
    except OSError as error:
        raise UsageError(f"`{parent}` cannot be written: {error.strerror}") from error
    try:
        for path, text in rendered(names).items():
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        staged.chmod(0o755)
        _renamed(staged, folder)
    except OSError as error:
        raise UsageError(f"`{folder}` cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _renamed(staged: Path, folder: Path) -> None:
    try:
        staged.rename(folder)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another process was first
            raise _taken(folder) from error
        raise


def _taken(folder: Path) -> UsageError:
    return UsageError(
        f"`{folder}` exists already", hint="take another name, or --into another folder"
    )


def _is_in(folder: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(f"{folder}/") and name.endswith(_SUFFIX)
