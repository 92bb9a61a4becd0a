"""Descriptions of plugins: light frozen Structs that entry points name.

Importing a description imports no backend, model or command; `factory` names the callable that
does, and is imported on first use of the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast, dataclass_transform

from msgspec import Struct, field

from gptrs.backend.settings import SETTINGS
from gptrs.errors import PluginError

API_VERSION = "0.1"
"""The version, MAJOR.MINOR, of the names in `gptrs.api` and of the protocols behind them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_DIRECTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:(?!(.*/)?\.\.(/|$))[^/\\][^\\]*")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_RANGE = re.compile(r">= ?(\d{1,4})\.(\d{1,4}), ?< ?(\d{1,4})\.(\d{1,4})")
_API = re.compile(rf"{_VERSION.pattern}|{_RANGE.pattern}")
_API_FORM = 'a version such as "0.1" or a range such as ">=0.1,<0.3"'
_RESERVED = ("", "portable", "benchmark")
"""Names that no implementation of a functional can have, since they are policies."""


def is_compatible(api: str, version: str | None = None) -> bool:
    """Return whether a plugin that states `api` works with an API `version`, by default this one.

    ">=0.1,<0.3" is a range. "1.4" is the version that a plugin was written for: the majors must be
    equal and the minor no newer. While the major is 0, every minor may break plugins, so both must
    be equal: "0.1" means ">=0.1,<0.2", "1.4" means ">=1.4,<2.0".
    """
    ends = _ends(api)
    ours = _VERSION.fullmatch(version or API_VERSION)
    if ends is None or ours is None:
        return False
    first, beyond = ends
    return first <= (int(ours[1]), int(ours[2])) < beyond


def _ends(api: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the first version that fits, and the first after it that does not."""
    stated = _RANGE.fullmatch(api)
    if stated is not None:
        numbers = [int(number) for number in stated.groups()]
        return (numbers[0], numbers[1]), (numbers[2], numbers[3])
    written = _VERSION.fullmatch(api)
    if written is None:
        return None
    major, minor = int(written[1]), int(written[2])
    return (major, minor), ((0, minor + 1) if major == 0 else (major + 1, 0))


# For type checkers, which do not see that subclasses of a frozen Struct are frozen.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class PluginDescription(Struct, frozen=True, kw_only=True):
    """The fields of every plugin; the constructor raises PluginError for malformed ones.

    `name` is typed by users and equals the name of the entry point. `summary` is one line for
    lists. `api` is the API version that the plugin was written for, or a range of versions, as a
    literal: the constant `API_VERSION` would always match the installed gptrs. `is_compatible` has
    the rule.
    """

    name: str
    summary: str
    api: str

    def __post_init__(self) -> None:
        _require_match(self, "name", self.name, _NAME, "letters, digits, `.`, `_` and `-`")
        _require_match(self, "api", self.api, _API, _API_FORM)
        first, beyond = _ends(self.api) or ((0, 0), (0, 0))
        if first >= beyond:
            raise _malformed(self, "api", "a range with a version in it", self.api)
        _require_match(self, "summary", self.summary, re.compile(r"[^\r\n]+"), "one line of text")


class FactoryPlugin(PluginDescription, kw_only=True):
    """A plugin whose work begins with a call; `factory` is "module:callable"."""

    factory: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_match(self, "factory", self.factory, _REFERENCE, '"module:callable"')


class BackendPlugin(FactoryPlugin, kw_only=True):
    """An execution engine; `factory(threads: int | None) -> gptrs.api.backends.Backend`.

    `threads` is None if the user left the number to the backend. The available backend with the
    highest `priority` is the default; ties are broken by name. If `takes` lists settings besides
    threads, it is `factory(gptrs.api.backends.BackendSettings)`.
    """

    priority: int
    takes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_integer(self.priority):
            raise _malformed(self, "priority", "an integer", self.priority)
        found = cast("object", self.takes)
        given = cast("tuple[object, ...]", found) if isinstance(found, tuple) else (None,)
        if any(name not in SETTINGS for name in given):
            names = " ".join(SETTINGS)
            raise _malformed(self, "takes", f"a tuple of names of {names}", self.takes)


class ModelPlugin(FactoryPlugin, kw_only=True):
    """A kind of model; `name` is the `model_type` of config.json.

    `factory(config: Mapping[str, object], params: gptrs.api.models.Params)` returns the model, an
    object with the class attribute `capabilities` (see `gptrs.plugins.capabilities`). `relatives`
    are other `model_type`s with a similar architecture that may lack a plugin: their error names
    this kind as a starting point.

    `gguf` maps `general.architecture` of GGUF files to "module:object" of a `GgufArchitecture` of
    `gptrs.api.models`, imported when such a file is read or written. `timm` maps wildcards of
    timm's names, such as "resnet*", to "module:object" of a `TimmFamily`, imported for a folder
    with such a name. `mlx` maps MLX's names of an expert's matrices (`gate_proj`, `up_proj`,
    `down_proj`) to the kind's, if they differ. `turned`: linear layers are stored as [inputs,
    outputs], as in the `Conv1D` of transformers. `tokenizer` is the class of transformers that
    tokenizers of the kind have unless their files name one.
    """

    relatives: tuple[str, ...] = ()
    gguf: Mapping[str, str] = field(default_factory=dict[str, str])
    timm: Mapping[str, str] = field(default_factory=dict[str, str])
    mlx: Mapping[str, str] = field(default_factory=dict[str, str])
    turned: bool = False
    tokenizer: str | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.factory))

    def __post_init__(self) -> None:
        super().__post_init__()
        found = cast("object", self.relatives)
        if not isinstance(found, tuple):
            raise _malformed(self, "relatives", "a tuple of names", found)
        for name in cast("tuple[object, ...]", found):
            _require_match(self, "relatives", name, _NAME, "a tuple of names")
        of_formats = 'a mapping of words to "module:object"'
        _require_mapping(self, "gguf", self.gguf, _REFERENCE, of_formats)
        _require_mapping(self, "timm", self.timm, _REFERENCE, of_formats)
        _require_mapping(self, "mlx", self.mlx, _NAME, "a mapping of names to names")
        if not isinstance(cast("object", self.turned), bool):
            raise _malformed(self, "turned", "a bool", self.turned)
        if self.tokenizer is not None:
            _require_match(self, "tokenizer", self.tokenizer, _NAME, "the name of a class")


class FunctionalPlugin(FactoryPlugin, kw_only=True):
    """An implementation of the functional called `functional`.

    Users choose it by `name`. A package with several functionals under one name calls its plugins
    `gelu.fast`, `softmax.fast`, and users still write `gelu=fast`. `factory` is the implementation
    itself, with the parameters and the meaning of the functional. `declines`, also
    "module:callable", gets the arguments of a call and returns None, or the reason why the
    implementation refuses them; without it, the implementation takes all calls.
    """

    functional: str
    declines: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_match(self, "functional", self.functional, _NAME, "the name of a functional")
        if self.declines is not None:
            _require_match(self, "declines", self.declines, _REFERENCE, '"module:callable"')
        if self.implementation in _RESERVED:
            raise _malformed(self, "name", "another word than a policy has", self.name)

    @property
    def implementation(self) -> str:
        """The name for users, without the functional as a prefix."""
        return self.name.removeprefix(f"{self.functional}.")


class CommandPlugin(FactoryPlugin, kw_only=True):
    """A command `gptrs NAME`; `factory` is a function for typer, or a `typer.Typer` application.

    It is imported when the command runs or prints its help; `summary` appears in the list of
    commands. Built-in commands are described in the same way, in `gptrs_cli.plugin`; no other
    distribution can take their names.
    """


class TraceSinkPlugin(FactoryPlugin, kw_only=True):
    """A listener to programs; `factory() -> gptrs.api.programs.ExecutionTraceSink`.

    It is created only if `GPTRS_TRACE_SINKS` or `--trace-sink` names it.
    """


class FormatPlugin(FactoryPlugin, kw_only=True):
    """A plugin for files of another format; `suffixes` are those of the files, `.xyz`."""

    suffixes: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        found = cast("object", self.suffixes)
        if found == () or not isinstance(found, tuple):
            raise _malformed(self, "suffixes", "a tuple of suffixes such as `.xyz`", found)
        for suffix in cast("tuple[object, ...]", found):
            _require_match(self, "suffixes", suffix, _SUFFIX, "a tuple of suffixes such as `.xyz`")


class ImporterPlugin(FormatPlugin, kw_only=True):
    """A reader of models in files of another format.

    `factory(path: Path, backend: gptrs.api.backends.Backend)` returns a
    `gptrs.api.importers.ImportedModel` that runs on `backend`. `contents`, also "module:callable",
    gets a path and returns the `gptrs.api.importers.FileContents` of a file that need not be
    runnable, for `gptrs inspect`. `reference` is a third one, for `gptrs validate`: it gets a path
    and returns the name of the program that defines the format, and a function that runs the file
    with it: arrays by name in and out. `language_model` is a fourth one: it gets the path of a file
    in the folder of a language model, beside its settings and its tokenizer, and returns a
    `gptrs.api.importers.LanguageModelFile`.
    """

    contents: str | None = None
    reference: str | None = None
    language_model: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("contents", "reference", "language_model"):
            found: object = getattr(self, name)
            if found is not None:
                _require_match(self, name, found, _REFERENCE, '"module:callable"')


class ExporterPlugin(FormatPlugin, kw_only=True):
    """A writer of programs and models in files of another format.

    `factory(model: gptrs.api.importers.OutgoingModel, path: Path)` writes `path`, and further files
    beside it if necessary, atomically, and returns all their paths.
    """


ALL_KINDS = "*"
"""Stands for every kind of model in `ReferencePlugin.kinds`."""


class ReferencePlugin(FactoryPlugin, kw_only=True):
    """Another implementation of models, with which they are compared and measured.

    `kinds` are the kinds of models that it takes, the `model_type`s of config.json, or ("*",) for
    all. `factory(model: gptrs.api.models.ReferencedModel)` returns a
    `gptrs.api.models.Reference`, or a function from inputs (tokens [B, T], images [B, C, H, W]) to
    the output. Of several for a kind, one that names it comes first, then the highest `priority`.
    """

    kinds: tuple[str, ...]
    priority: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        found = cast("object", self.kinds)
        if found == () or not isinstance(found, tuple):
            raise _malformed(self, "kinds", "a tuple of kinds of models", found)
        for kind in cast("tuple[object, ...]", found):
            if kind != ALL_KINDS:
                _require_match(self, "kinds", kind, _NAME, "a tuple of kinds of models")
        if not _is_integer(self.priority):
            raise _malformed(self, "priority", "an integer", self.priority)

    def takes(self, kind: str) -> bool:
        """Return whether it is for models of a kind."""
        return kind in self.kinds or ALL_KINDS in self.kinds


class DemoModelPlugin(PluginDescription, kw_only=True):
    """A model directory inside a package; `path` is "package:relative/dir"."""

    path: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_match(self, "path", self.path, _DIRECTORY, '"package:relative/dir"')


def _require_mapping(
    plugin: PluginDescription, field: str, value: object, form: re.Pattern[str], need: str
) -> None:
    """PluginError unless the keys of a field are words and its values of a form."""
    if not isinstance(value, Mapping):
        raise _malformed(plugin, field, need, value)
    for word, each in cast("Mapping[object, object]", value).items():
        _require_match(plugin, field, word, re.compile(r"\S+"), need)
        _require_match(plugin, field, each, form, need)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_match(
    plugin: PluginDescription, field: str, value: object, form: re.Pattern[str], need: str
) -> None:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise _malformed(plugin, field, need, value)


def _malformed(plugin: PluginDescription, field: str, need: str, value: object) -> PluginError:
    return PluginError(f"`{type(plugin).__name__}.{field}` must be {need}, got {value!r:.80}")
