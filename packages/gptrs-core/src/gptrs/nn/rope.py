"""Rotary position embedding of the tokens of one step, for all layers of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

from msgspec import Struct

from gptrs import functionals as F
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.config_fields import ConfigFields, is_number
from gptrs.errors import ModelError, UsageError
from gptrs.ir import dtypes
from gptrs.nn.decoder_cache import row_texts
from gptrs.nn.ragged_step import RaggedStep

# Settings of rotary embeddings in config.json, in the format of transformers 5 and before.


THETA = 10000.0
"""The default base (Su et al. 2021)."""


class RopeSettings(Struct, frozen=True):
    """Base and scaling of rotary angles, and the growth of queries with their position.

    `theta` and `scaling` are as in `functionals.rotary_tables`. `context` is how many positions the
    scaling is made for. With `query_growth` b, `llama_4_scaling_beta` of Ministral 3, the query at
    position p is multiplied by `1 + b ln(1 + floor(p / query_period))`. `rotated` is the share of
    the components of a head that rotate, `partial_rotary_factor`.
    """

    theta: float
    scaling: F.RotaryScaling | None
    context: int
    query_growth: float = 0.0
    query_period: int = 1
    rotated: float = 1.0

    @property
    def short_context(self) -> int | None:
        """Length beyond which a text has other angles from its first token on (LongRoPE)."""
        scaling = self.scaling
        return scaling.original_max_position if isinstance(scaling, F.LongRopeScaling) else None

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many components of a head of `head_dim` rotate."""
        return int(head_dim * self.rotated)

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, object],
        kind: str,
        max_position: int,
        default: Mapping[str, object] | None = None,
        *,
        theta: float = THETA,
        rotated: float | None = None,
    ) -> RopeSettings:
        """Read `rope_parameters`, or `rope_scaling` and `rope_theta`; ModelError if unsupported.

        As in transformers, a non-empty `rope_scaling` overrides `rope_parameters`, and a
        `rope_theta` within either overrides the top-level one. `max_position` is
        `max_position_embeddings`. `default` stands for `rope_parameters` that are missing;
        `llama_4_scaling_beta` is supported where `default` has it. `theta` and `rotated` are
        defaults; None for `rotated` means that the kind rotates whole heads.
        """
        fields = _Rope(settings, kind, max_position, default or {}, rotated)
        beside = ConfigFields(settings, kind)
        theta = fields.number("rope_theta", beside.number("rope_theta", theta))
        if theta <= 1:
            raise ModelError(f"`rope_theta` of a `{kind}` model must be above 1, got {theta}")
        word = fields.choice(fields.type_name, SCALINGS, "default")
        try:
            scaling = SCALINGS[word](fields)
        except UsageError as error:
            raise ModelError(f"`{fields.source}` of a `{kind}` model: {error}") from error
        growth = fields.number("llama_4_scaling_beta", 0.0)
        period = fields.original_max_position if growth else 1
        context = _context(scaling, max_position)
        return cls(theta, scaling, context, growth, period, fields.rotated)


class _Rope:
    """The settings in `rope_parameters` or `rope_scaling`; errors name both levels of a setting."""

    def __init__(
        self,
        settings: Mapping[str, object],
        kind: str,
        max_position: int,
        default: Mapping[str, object],
        rotated: float | None,
    ) -> None:
        self.source, given = _given(settings, kind, default)
        self.max_position = max_position
        self.type_name = "rope_type" if "rope_type" in given else "type"
        self._beside = ConfigFields(settings, kind)
        self._fields = ConfigFields({f"{self.source}.{key}": given[key] for key in given}, kind)
        self._given = given
        # Its share is that of the frequencies of a whole head.
        proportional = given.get(self.type_name) == "proportional"
        self.rotated = 1.0 if rotated is None or proportional else self._rotated(rotated)
        supported: dict[str, object] = {"full_attention": None, "sliding_attention": None}
        if rotated is None and not proportional:
            self._beside.require("partial_rotary_factor", 1)
            supported["partial_rotary_factor"] = 1
        if "llama_4_scaling_beta" not in default:
            supported["llama_4_scaling_beta"] = None
        for name, value in supported.items():
            self._fields.require(f"{self.source}.{name}", value)

    def _rotated(self, default: float) -> float:
        name = "partial_rotary_factor"
        inside = self._given.get(name) is not None
        fields = self._fields if inside else self._beside
        setting = f"{self.source}.{name}" if inside else name
        share = fields.number(setting, default)
        if not 0 < share <= 1:
            raise fields.error(setting, "must be above 0 and at most 1")
        return share

    def factors(self, name: str) -> tuple[float, ...]:
        """Return a list of positive numbers."""
        found = self._given.get(name)
        values = cast("list[object]", found) if isinstance(found, list) else []
        numbers = [float(value) for value in values if is_number(value) and 0 < value < math.inf]
        if not numbers or len(numbers) != len(values):
            raise self._fields.error(f"{self.source}.{name}", "must be a list of positive numbers")
        return tuple(numbers)

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
    """Return the name and value of the effective setting."""
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


def _longrope(rope: _Rope) -> F.RotaryScaling:
    original = rope.original_max_position
    return F.LongRopeScaling(
        rope.factors("long_factor"),
        rope.factors("short_factor"),
        rope.number("factor", rope.max_position / original),
        original,
        rope.optional("attention_factor"),
    )


def _proportional(rope: _Rope) -> F.RotaryScaling:
    return F.ProportionalScaling(
        rope.number("partial_rotary_factor", 1.0), rope.number("factor", 1.0)
    )


SCALINGS: dict[str, Callable[[_Rope], F.RotaryScaling | None]] = {
    "default": lambda _: None,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
}
"""Readers of the scaling of each `rope_type`."""


def _context(scaling: F.RotaryScaling | None, max_position: int) -> int:
    """Return the context of a scaling: a multiple of `max_position_embeddings`, or of YaRN's
    original one."""
    if isinstance(scaling, F.LinearScaling | F.DynamicScaling):
        return int(max_position * scaling.factor)
    if isinstance(scaling, F.YarnScaling):
        return max(max_position, int(scaling.original_max_position * scaling.factor))
    return max_position


class Rope(Struct, frozen=True):
    """Rotates queries and keys by angles that grow with the position: `rope(query)`.

    `cos` and `sin` are [N, R / 2] for the first R of D components. `query_factor` [N, 1, 1], if
    there is one, is multiplied with rotated queries. `interleaved` is as in `F.rotary`.
    """

    cos: Tensor
    sin: Tensor
    query_factor: Tensor | None
    interleaved: bool = False

    @classmethod
    def at(
        cls,
        settings: RopeSettings,
        head_dim: int,
        step: RaggedStep[Tensor],
        interleaved: bool = False,
    ) -> Rope:
        """Return the rotation of the tokens of a step, for heads of `head_dim`.

        The frequencies of `DynamicScaling` and `LongRopeScaling` depend on the length of a text
        after the step, while cached keys keep the frequencies of their own step. So with the
        former, results beyond `max_position_embeddings` depend on how tokens were grouped into
        steps, as in transformers; with the latter, the text is read again, see `short_context`.
        """
        dynamic = isinstance(settings.scaling, F.DynamicScaling | F.LongRopeScaling)
        lengths = _row_lengths(step) if dynamic else None
        cos, sin = F.rotary_tables(
            step.positions,
            settings.rotary_dim(head_dim),
            settings.theta,
            settings.scaling,
            lengths,
        )
        growth = _query_factor(settings, step.positions) if settings.query_growth else None
        return cls(cos, sin, growth, interleaved)

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries [N, H, D] or keys [N, K, D]."""
        rows = F.reshape(x, (1, *x.shape))
        rotated = F.rotary(rows, self.cos, self.sin, self.interleaved, heads_axis=2)
        return F.reshape(rotated, x.shape)


def _row_lengths(step: RaggedStep[Tensor]) -> Tensor:
    """Return the length of the text of each row after the step: si32 [N]."""
    return F.take(step.lengths, row_texts(step))


def _query_factor(settings: RopeSettings, positions: Tensor) -> Tensor:
    """`1 + growth * ln(1 + floor(position / period))` (Llama 4, Ministral 3), [N, 1, 1]."""
    periods = F.cast(positions // settings.query_period, dtypes.f32)
    factor = F.log1p(periods) * settings.query_growth + 1.0
    return F.reshape(factor, (positions.shape[0], 1, 1))
