"""The command of a row in the table of tasks: its options, its run, and its output."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec import UNSET, structs

from gptrs.errors import UsageError
from gptrs.lazy_module import lazy_module
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, AdapterOption, ModelOption, Settings, model_shown
from gptrs_cli.options.text_input import TextInput, TextOptions, parse_integers, parse_numbers
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.option_fields import (
    NUMBERS,
    TOKENS,
    OptionField,
    Options,
    OptionsOf,
    option_fields,
)
from gptrs_runtime.results import RunTimings
from gptrs_runtime.verbs import Verb

if TYPE_CHECKING:
    from gptrs_cli import loading
    from gptrs_observe.profile import Profile
    from gptrs_runtime.loaded_model import LoadedModel
    from gptrs_runtime.tokenization.encoded_text import TextLength
else:
    loading = lazy_module("gptrs_cli.loading")

_GROUPS: Final[dict[str, type[TextOptions | TextInput]]] = {
    "texts": TextOptions,
    "documents": TextOptions,
    "text": TextInput,
}
"""Fields that several options can give."""
_INSTEAD: Final = {
    "texts": ("images", "`--image` and texts", "run the command twice"),
    "text": ("tokens", "a text and `--tokens`", "give one"),
}
"""Alternative fields: their name in errors, and the hint."""
_READ: Final[dict[object, Callable[[str, str], object]]] = {
    TOKENS: parse_integers,
    NUMBERS: parse_numbers,
}
"""Parsers of option values that are written as one text, by kind."""


class VerbRun:
    """A task on a model: the request and, after `work`, the result."""

    def __init__(
        self, verb: Verb, asked: Any, path: Path | None, settings: Settings, adapter: Path | None
    ) -> None:
        self.verb, self.asked, self.path, self.settings = verb, asked, path, settings
        self._adapter = adapter
        self.seconds = 0.0
        self._lengths: list[TextLength] = []
        self.model: LoadedModel
        self.found: Any = None

    @property
    def count(self) -> int:
        """The number of given images or texts."""
        names = ("images", "texts", "documents")
        return next(len(given) for name in names if (given := getattr(self.asked, name, ())))

    def load(self, needs: Callable[[LoadedModel], object] | None = None) -> None:
        """Load the model; `needs` (default: the verb's) refuses unsuitable ones."""
        with Waiting(f"loading {model_shown(self.path)}"):
            self.model = loading.loaded_model(self.path, self.settings, self._adapter)
            if needs is None:
                getattr(self.model, self.verb.needs)()
            else:
                needs(self.model)

    def work(self, progress: object, function: Callable[..., Any] | None = None) -> None:
        """Run and time the function of the verb, or another one with the same parameters."""
        started = time.perf_counter()
        asked = structs.asdict(self.asked)
        self.found = self.verb.run(
            self.model, asked, function, lengths=self._lengths.extend, progress=progress
        )
        self.seconds = time.perf_counter() - started

    def print_json(self, profile: Profile | None, **more: object) -> None:
        """Print the result as JSON, with the fields in `more`."""
        cut = [number for number, length in enumerate(self._lengths) if length.is_cut]
        told = {
            "model": self.model.name,
            "kind": self.model.kind,
            "backend": self.model.backend.name,
            "adapter": loading.adapter_of(self.model),
            "truncated": cut or UNSET,
            "timings": RunTimings(
                load_s=self.model.load_seconds, **{f"{self.verb.name}_s": self.seconds}
            ),
            "profile": loading.profile_of(profile),
        }
        print_result(self.verb.result_of(self.asked, self.found, **{**told, **more}))

    def print_table(self, told: str | None = None, more: str = "") -> None:
        """Print the table of the verb, and a line about the work and its time."""
        assert self.verb.table is not None
        columns, *rows = self.verb.table(self.asked, self.found)
        print_table([str(each) for each in columns], [[*map(_cell, row)] for row in rows])
        if told is None:
            assert self.verb.told is not None
            told = self.verb.told(self.asked, self.found)
        note_below(
            f"{told} in {self.seconds:.3f} s, backend {self.model.backend.name}, loaded in"
            f" {self.model.load_seconds:.2f} s{more}"
        )


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def verb_command(verb: Verb, body: Callable[[VerbRun], None]) -> Callable[..., None]:
    """Return the command function of a verb; `body` runs the task and prints the result."""
    request = verb.request()
    fields = option_fields(request)

    def command(
        *, settings: Settings, model: Path | None = None, adapter: Path | None = None, **given: Any
    ) -> None:
        asked: dict[str, Any] = {}
        # Texts come last: other options decide whether they are read.
        for name in sorted(given, key=_GROUPS.__contains__):
            asked |= _values(fields[name], given[name], asked)
        body(VerbRun(verb, request(**asked), model, settings, adapter))

    command.__doc__ = f"{verb.summary}\n\n{verb.more}"
    parameters = [*_parameters(verb, fields)]
    command.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        sorted(parameters, key=lambda each: each.name not in ("text", "sound"))  # as arguments
    )
    return command_options(*(MODEL if verb.needs else ()))(command)


def _parameters(verb: Verb, fields: Mapping[str, OptionField]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command in the order of the help."""
    kind, own = inspect.Parameter, inspect.Parameter.KEYWORD_ONLY
    if verb.model is None:
        yield kind("model", own, annotation=ModelOption, default=None)
    else:
        declared = typer.Option("--model", metavar="MODEL", help=verb.model)
        yield kind("model", own, annotation=Annotated[Path, declared])
    for name, field in fields.items():
        if name in _GROUPS:
            yield kind(name, own, annotation=_GROUPS[name])
        elif nested := _nested(field):
            given = OptionsOf(option_fields(nested))
            yield kind(name, own, annotation=Annotated[dict[str, Any], given])
        elif field.flag is not None:
            given = OptionsOf({name: field}, told=True)
            yield kind(name, own, annotation=Annotated[dict[str, Any], given])
    if verb.adapted:
        yield kind("adapter", own, annotation=AdapterOption, default=None)
    yield kind("settings", own, annotation=Settings)


def _nested(field: OptionField) -> type[Options] | None:
    """Return the Struct that replaces a field by its own fields on the command line."""
    return field.type if isinstance(field.type, type) and issubclass(field.type, Options) else None


def _values(field: OptionField, given: Any, others: dict[str, Any]) -> dict[str, Any]:
    """Return the value of a field from its options; no entry if none is given."""
    if isinstance(given, TextOptions | TextInput):
        if not field.required:
            other, both, hint = _INSTEAD[field.name]
            if other in others:
                if given.is_given:
                    raise UsageError(f"{both} exclude each other", hint=hint)
                return {}
        return {field.name: given.read()}
    nested = _nested(field)
    known = {field.name: field} if nested is None else option_fields(nested)
    values: dict[str, Any] = {}
    for name, value in given.items():
        read = _READ.get(known[name].kind)
        values[name] = value if read is None else read(value, known[name].flag or "")
    if nested is None:
        return values
    return {field.name: nested(**values)} if values else {}
