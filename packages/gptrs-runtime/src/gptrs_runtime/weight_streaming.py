"""The memory budget of a model's weights: from the caller, the environment, or config.json."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from gptrs.capture.parameter import PIN_BELOW, PREFETCH, Streaming
from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.param_source import ParamSource
from gptrs.errors import CheckpointError, GptrsError, ModelError, UsageError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.byte_sizes import parsed_bytes, shown_bytes

if TYPE_CHECKING:
    from gptrs.capture.streaming import mru_streamer
    from gptrs.capture.streaming.mru_streamer import MruStreamer
else:
    mru_streamer = lazy_module("gptrs.capture.streaming.mru_streamer")

VARIABLE = "GPTRS_WEIGHT_BUDGET"
_KEY = "`runtime.weight_streaming`"
_SETTINGS = ("budget", "prefetch", "pin_below")
_OFF = "off"
_logger = logging.getLogger("gptrs")


def weight_streamer(
    config: Mapping[str, object], origin: str, budget: int | str | None, weights: ParamSource
) -> MruStreamer | None:
    """Return the streamer that keeps `weights` within a budget; None without one, or if all fit.

    `budget` comes before the variable `GPTRS_WEIGHT_BUDGET`, and that before
    `runtime.weight_streaming` of config.json, `{"budget": .., "prefetch": .., "pin_below": ..}`. It
    is a number of bytes, a text such as `2GB`, `512MiB` or `50%` (of the weights), or `off`.
    `origin` names the config in errors. ModelError for a malformed setting in it, UsageError for
    one from elsewhere.
    """
    where = f"{_KEY} of {quoted(origin, 200)}"
    fields = Fields(_in_config(config, where), f"in {where}")
    prefetch = fields.integer("prefetch", PREFETCH, minimum=0)
    pin_below = fields.integer("pin_below", PIN_BELOW, minimum=0)
    environment = os.environ.get(VARIABLE, "").strip()
    if budget is not None:
        stated, error = budget, _refusal(UsageError, "`weight_budget`")
    elif environment:
        stated, error = environment, _refusal(UsageError, f"`{VARIABLE}`")
    else:
        stated, error = fields.get("budget"), _refusal(ModelError, f"`budget` in {where}")
    if stated is None or stated == _OFF:
        return None
    total = _total_bytes(weights)
    return _streamer(Streaming(_bytes(stated, total, error), prefetch, pin_below), total)


def _streamer(streaming: Streaming, total: int) -> MruStreamer | None:
    most = streaming.budget
    if most >= total:
        _logger.info("weight streaming is off: all weights, %s, fit", shown_bytes(total))
        return None
    _logger.info(
        "weight streaming is on: %s of weights pass through %s of memory, a step reads up to %s",
        shown_bytes(total),
        shown_bytes(most),
        shown_bytes(min(total, total - most + 2 * streaming.share)),
    )
    return mru_streamer.MruStreamer(streaming)


def _in_config(config: Mapping[str, object], where: str) -> Mapping[str, object]:
    runtime = config.get("runtime")
    # A malformed `runtime` is reported where the overrides of functionals are read.
    stated = (
        cast("dict[str, object]", runtime).get("weight_streaming")
        if isinstance(runtime, dict)
        else None
    )
    if stated is None:
        return {}
    if not isinstance(stated, dict):
        raise ModelError(f"{where} must be an object, found {shown_value(stated)}")
    settings = cast("dict[str, object]", stated)
    for name in settings:
        if name not in _SETTINGS:
            known = ", ".join(f"`{known}`" for known in _SETTINGS)
            raise ModelError(f"{where} has no setting {quoted(name)}", hint=f"it takes {known}")
    return settings


def _refusal(kind: Callable[..., GptrsError], what: str) -> Callable[[object], GptrsError]:
    def refusal(value: object) -> GptrsError:
        return kind(
            f"{what} must be a size above 0 or a share of the weights, found {shown_value(value)}",
            hint="give bytes, a size such as `2GB` or `512MiB`, a share such as `50%`, or `off`",
        )

    return refusal


def _bytes(stated: object, total: int, error: Callable[[object], GptrsError]) -> int:
    found = parsed_bytes(stated, total)
    if found is None:
        raise error(stated)
    return found


def _total_bytes(weights: ParamSource) -> int:
    total = 0
    for name in weights.names():
        with contextlib.suppress(CheckpointError):  # of no known dtype: no model reads it
            total += weights.type_of(name).nbytes
    return total
