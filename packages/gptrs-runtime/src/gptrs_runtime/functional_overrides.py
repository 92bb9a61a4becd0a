"""Overrides of functionals that come from outside of Python: config, environment, command line."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from gptrs.errors import ModelError, UsageError
from gptrs.functionals.dispatch.active_overrides import Choice, Origin, entered
from gptrs.functionals.dispatch.override_policy import parse_choices
from gptrs.functionals.dispatch.override_scope import resolved
from gptrs.quoting import quoted, shown_value

VARIABLE = "GPTRS_OVERRIDES"
_KEY = "`runtime.functional_overrides`"


def model_choices(config: Mapping[str, object], origin: str) -> dict[str, Choice]:
    """Return the overrides for a model with this config.json: its own, below the environment's.

    `origin` says in errors where the config is from. ModelError when its overrides are malformed
    or name what does not exist, UsageError when those in `GPTRS_OVERRIDES` do.
    """
    try:
        own = resolved(_in_config(config), Origin.CONFIG)
    except UsageError as error:
        raise ModelError(
            f"{_KEY} of {quoted(origin, 200)}: {error.message}", hint=error.hint
        ) from error
    return {**own, **resolved(environment_overrides(), Origin.ENVIRONMENT)}


def _in_config(config: Mapping[str, object]) -> dict[str, str]:
    settings = config.get("runtime")
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UsageError(f"`runtime` must be an object, found {shown_value(settings)}")
    stated = cast("dict[str, object]", settings).get("functional_overrides")
    if stated is None:
        return {}
    if not isinstance(stated, dict):
        raise UsageError(
            f"it must be an object of policies by functional, found {shown_value(stated)}"
        )
    # A policy that is no text is refused where policies are read.
    return cast("dict[str, str]", stated)


def environment_overrides() -> dict[str, str]:
    """Return the policies in `GPTRS_OVERRIDES`, a comma list of `FUNCTIONAL=POLICY`."""
    parts = os.environ.get(VARIABLE, "").split(",")
    return parse_choices([part for part in parts if part.strip()], f"`{VARIABLE}`")


@contextmanager
def command_line_overrides(items: Sequence[str]) -> Generator[None]:
    """Scope of the overrides given as `--override FUNCTIONAL=POLICY`.

    Raises as `gptrs.overrides` does; UsageError for an item of another form.
    """
    with entered(resolved(parse_choices(items, "`--override`"), Origin.COMMAND_LINE)):
        yield
