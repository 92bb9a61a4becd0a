"""Errors for plugins that cannot be used, or fail in use."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from gptrs.errors import GptrsError, PluginError, lacks_memory
from gptrs.plugins.discovery import Plugin
from gptrs.plugins.state import PluginRecord, PluginState, described, label
from gptrs.quoting import did_you_mean, joined, one_line, quoted

_MOST_NAMES = 12
"""Most names that an error lists."""
_MOST_MISPLACED = 2
"""Most plugins in unknown groups that an error names."""


def refusal(record: PluginRecord) -> PluginError:
    """Return the error for an unusable plugin."""
    return PluginError(
        f"{described(record)} is {record.state}: {record.reason}",
        hint=record.hint,
    )


def contested(plugin: Plugin) -> PluginError:
    """Return the error for the contested name of `plugin`."""
    record = plugin.record
    names = sorted([plugin.qualified, *(rival.qualified for rival in plugin.rivals)])
    listed = joined([f"`{name}`" for name in names], "and")
    return PluginError(
        f"the {label(record.kind)} `{record.name}` comes from several packages: {listed}",
        hint=f"name one of them in full, or leave one out: `-p no:{names[0]}`",
    )


def failure(record: PluginRecord, what: str, error: BaseException) -> PluginError:
    """Return the error for a plugin when `what`, its factory or "`name`", raised `error`."""
    return PluginError(
        f"{described(record)} failed in {what}: {one_line(error)}",
        hint=f"report it to the authors of `{record.distribution}`; --debug shows the traceback",
    )


def no_such_plugin(
    kind: str, name: str, records: Iterable[PluginRecord], error: type[GptrsError]
) -> GptrsError:
    """Return the error for an unknown name; `records` are those of the kind, and misplaced ones.

    It tells of the misplaced ones of this name, and of those that seem to be of the kind.
    """
    records = list(records)
    known = list(dict.fromkeys(record.name for record in records if record.state.usable))
    listed = f"available: {', '.join(f'`{name}`' for name in known) or 'none'}"
    if len(known) > _MOST_NAMES:
        listed = f"`gptrs list {kind}s` shows the {len(known)} that are installed"
    # The kind of a model comes from its file: nobody mistyped it.
    guess = "" if kind == "model" else did_you_mean(name, known)
    torch = ", or run as an export of torch (docs/torch.md)" if kind == "model" else ""
    misplaced = [
        each
        for each in records
        if each.state is PluginState.MISPLACED
        and (each.name == name or f"`gptrs.{kind}s`" in str(each.hint))
    ]
    return error(
        f"there is no {label(kind)} {quoted(name)}",
        hint=f"{guess}{listed}; others come with the package that has them{torch}"
        + "".join(f"; {refusal(each)}" for each in misplaced[:_MOST_MISPLACED]),
    )


# Lack of memory while a plugin loads is reported as such: the plugin is not at fault.


@contextmanager
def memory_is_there(what: str) -> Generator[None]:
    """Scope in which errors caused by a lack of memory are raised as MemoryError.

    The next best backend would not find memory either, or hang: OpenBLAS waits for threads that it
    could not start.
    """
    try:
        yield
    except Exception as error:
        if not lacks_memory(error):
            raise
        raise MemoryError(f"no memory is left to load {what}") from error
