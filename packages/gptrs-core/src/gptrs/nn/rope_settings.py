"""Settings of rotary embeddings in config.json, in the format of transformers 5 and before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from gptrs import functionals as F
from gptrs.checkpoint.config_fields import ConfigFields
from gptrs.errors import ModelError, UsageError

THETA = 10000.0
"""The base where config.json has none (Su et al. 2021)."""


@dataclass(frozen=True)
class RopeSettings:
    """Base and scaling of the rotary angles, and the growth of queries with their position.

    `theta` and `scaling` are those of `functionals.rotary_tables`. `context` is how many positions
    the scaling is made for. With `query_growth` b, `llama_4_scaling_beta` of Ministral 3, the query
    at position p is multiplied by `1 + b ln(1 + floor(p / query_period))`.
    """

    theta: float
    scaling: F.RotaryScaling | None
    context: int
    query_growth: float = 0.0
    query_period: int = 1

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, object],
        kind: str,
        max_position: int,
        default: Mapping[str, object] | None = None,
    ) -> RopeSettings:
        """Read `rope_parameters`, or `rope_scaling` and `rope_theta`; ModelError if unsupported.

        As in transformers a `rope_scaling` that is not empty goes before `rope_parameters`, and a
        `rope_theta` within either goes before the one beside it. `max_position` is
        `max_position_embeddings`. `default` stands for `rope_parameters` that are missing;
        `llama_4_scaling_beta` is supported where `default` has it.
        """
        fields = _Rope(settings, kind, max_position, default or {})
        theta = fields.number(
            "rope_theta", ConfigFields(settings, kind).number("rope_theta", THETA)
        )
        if theta <= 1:
            raise ModelError(f"`rope_theta` of a `{kind}` model must be above 1, got {theta}")
        word = fields.choice(fields.type_name, SCALINGS, "default")
        try:
            scaling = SCALINGS[word](fields)
        except UsageError as error:
            raise ModelError(f"`{fields.source}` of a `{kind}` model: {error}") from error
        growth = fields.number("llama_4_scaling_beta", 0.0)
        period = fields.original_max_position if growth else 1
        return cls(theta, scaling, _context(scaling, max_position), growth, period)


class _Rope:
    """The settings in `rope_parameters` or `rope_scaling`; errors name both levels of a setting."""

    def __init__(
        self,
        settings: Mapping[str, object],
        kind: str,
        max_position: int,
        default: Mapping[str, object],
    ) -> None:
        self.source, given = _given(settings, kind, default)
        self.max_position = max_position
        self.type_name = "rope_type" if "rope_type" in given else "type"
        self._beside = ConfigFields(settings, kind)
        self._fields = ConfigFields({f"{self.source}.{key}": given[key] for key in given}, kind)
        self._given = given
        self._beside.require("partial_rotary_factor", 1)
        supported = {"partial_rotary_factor": 1, "full_attention": None, "sliding_attention": None}
        if "llama_4_scaling_beta" not in default:
            supported["llama_4_scaling_beta"] = None
        for name, value in supported.items():
            self._fields.require(f"{self.source}.{name}", value)

    @property
    def original_max_position(self) -> int:
        """How many positions the model was trained on before it was scaled."""
        name = "original_max_position_embeddings"
        inside = self._fields.integer(f"{self.source}.{name}", self.max_position)
        return self._beside.integer(name, inside)

    def number(self, name: str, default: float | None = None) -> float:
        return self._fields.number(f"{self.source}.{name}", default)

    def optional(self, name: str) -> float | None:
        return None if self._given.get(name) is None else self.number(name)

    def boolean(self, name: str, default: bool) -> bool:
        return self._fields.boolean(f"{self.source}.{name}", default)

    def choice(self, name: str, choices: Mapping[str, object], default: str) -> str:
        return self._fields.choice(f"{self.source}.{name}", choices, default)


def _given(
    settings: Mapping[str, object], kind: str, default: Mapping[str, object]
) -> tuple[str, Mapping[str, object]]:
    """Return the name and the value of the setting that counts."""
    for name in ("rope_scaling", "rope_parameters"):
        value = settings.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ModelError(f"`{name}` of a `{kind}` model must be an object, got {value!r:.60}")
        if value:
            return name, cast("Mapping[str, object]", value)
    return "rope_parameters", default


def _linear(rope: _Rope) -> F.RotaryScaling:
    return F.LinearScaling(rope.number("factor"))


def _dynamic(rope: _Rope) -> F.RotaryScaling:
    return F.DynamicScaling(rope.number("factor"), rope.max_position)


def _yarn(rope: _Rope) -> F.RotaryScaling:
    original = rope.original_max_position
    return F.YarnScaling(
        factor=rope.number("factor", rope.max_position / original),
        original_max_position=original,
        # 0 stands for the default, as in transformers.
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        attention_factor=rope.optional("attention_factor"),
        mscale=rope.optional("mscale"),
        mscale_all_dim=rope.optional("mscale_all_dim"),
        truncate=rope.boolean("truncate", True),
    )


def _llama3(rope: _Rope) -> F.RotaryScaling:
    return F.Llama3Scaling(
        rope.number("factor"),
        rope.number("low_freq_factor"),
        rope.number("high_freq_factor"),
        rope.original_max_position,
    )


SCALINGS: dict[str, Callable[[_Rope], F.RotaryScaling | None]] = {
    "default": lambda _: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
"""Readers of the scaling of each `rope_type`."""


def _context(scaling: F.RotaryScaling | None, max_position: int) -> int:
    """Where the scaling multiplies `max_position_embeddings`, or what YaRN started from."""
    if isinstance(scaling, F.LinearScaling | F.DynamicScaling):
        return int(max_position * scaling.factor)
    if isinstance(scaling, F.YarnScaling):
        return max(max_position, int(scaling.original_max_position * scaling.factor))
    return max_position
