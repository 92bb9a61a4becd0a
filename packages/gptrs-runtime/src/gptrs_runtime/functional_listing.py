"""Lists functionals, their implementations, and the one that a call would use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from gptrs import functionals as functionals  # registers the functionals
from gptrs.capture.events import ImplementationChoice
from gptrs.errors import PluginError
from gptrs.functionals.dispatch import benchmark_policy
from gptrs.functionals.dispatch.active_overrides import ACTIVE, Choice, entered
from gptrs.functionals.dispatch.examples import pattern_names
from gptrs.functionals.dispatch.override_policy import BENCHMARK
from gptrs.functionals.dispatch.registry import PORTABLE, functional_names, implementation_names
from gptrs.functionals.matching import Variant, pattern
from gptrs.ir.printer import print_program
from gptrs.ir.program import Function, Program
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import manager
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs_runtime.forward import model_choices


class ListedImplementation(Struct, frozen=True):
    """An implementation by name; `plugin` provides it, None for one in gptrs itself."""

    name: str
    plugin: PluginRecord | None

    @property
    def state(self) -> PluginState:
        """The state of its plugin; `loaded` for our own."""
        return self.plugin.state if self.plugin else PluginState.LOADED


class ListedFunctional(Struct, frozen=True):
    """A functional, its active policy, the policy's origin, and all implementations.

    `because` is "portable" by default, else "config", "environment", "--override" or "scope".
    `choices` are the decisions of `benchmark` so far, on any backend.
    """

    name: str
    active: str
    because: str
    implementations: tuple[ListedImplementation, ...]
    choices: tuple[ImplementationChoice, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether the policy is `benchmark`."""
        return self.active.startswith(BENCHMARK)


def list_functionals(
    config: Mapping[str, object] | None = None, origin: str = ""
) -> list[ListedFunctional]:
    """Return all functionals by name, as a call here would compute them.

    With the `config` of a model, named `origin` in errors, as that model would compute them. Raises
    the same errors for overrides as loading the model.
    """
    _find_misnamed()
    with entered(model_choices(config or {}, origin)):
        active = ACTIVE.get()
    made = benchmark_policy.choices()
    return [_listed(name, active.get(name), made) for name in functional_names()]


def _find_misnamed() -> None:
    """Mark plugins for unknown functionals as broken, as descriptions alone do not show."""
    for plugin in manager().descriptions(FunctionalPlugin):
        if plugin.functional not in functional_names():
            error = PluginError(
                f"there is no functional `{plugin.functional}`",
                hint="`gptrs list functionals` shows all of them",
            )
            manager().broken(FunctionalPlugin, plugin.name, error)


def _listed(
    name: str, choice: Choice | None, made: Sequence[ImplementationChoice]
) -> ListedFunctional:
    plugins = _plugins_of(name)
    in_code = [known for known in implementation_names(name) if known not in plugins]
    return ListedFunctional(
        name=name,
        active=str(choice.policy) if choice else PORTABLE,
        because=str(choice.origin) if choice else PORTABLE,
        implementations=tuple(
            ListedImplementation(known, plugins.get(known)) for known in [*in_code, *plugins]
        ),
        choices=tuple(each for each in made if each.functional == name),
    )


def _plugins_of(functional: str) -> dict[str, PluginRecord]:
    """Return the readable plugins that implement a functional, by implementation."""
    found: dict[str, PluginRecord] = {}
    for record, plugin in manager().described(FunctionalPlugin):
        if plugin is not None and plugin.functional == functional:
            found.setdefault(plugin.implementation, record)
        elif plugin is None and record.name.startswith(f"{functional}."):
            found.setdefault(record.name.removeprefix(f"{functional}."), record)
    return found


# The functions recognized in programs, and the forms of their calls.


class ListedVariant(Struct, frozen=True):
    """One form of calls in programs."""

    operands: tuple[str, ...]
    fixed: dict[str, Any]
    """Arguments that are the same in all such calls."""
    read: dict[str, str]
    """The other arguments, and the ops they are read from."""
    ops: tuple[str, ...]
    """The ops of such a call."""
    example: str
    """An example, as a program."""


class ListedPattern(Struct, frozen=True):
    """A function by name, with the forms of its calls."""

    name: str
    variants: tuple[ListedVariant, ...]


def list_patterns() -> list[ListedPattern]:
    """Return all patterns by name."""
    return [
        ListedPattern(name, tuple(map(_listed_pattern, pattern(name).variants)))
        for name in pattern_names()
    ]


def _listed_pattern(variant: Variant) -> ListedVariant:
    region = variant.template.region
    return ListedVariant(
        variant.operands,
        {name: _plain(value) for name, value in variant.constants.items()},
        {name: reader.instruction.op.name for name, reader in variant.readers.items()},
        tuple(made.op.name for made in region.instructions),
        print_program(Program((Function("main", region),))),
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
