"""The options of token choice: penalties, temperature, and truncations of the distribution."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from gptrs_runtime.option_fields import Option, Options

_Choice = partial(Option, panel="How tokens are chosen")
_Penalty = partial(Option, metavar="X", panel="Penalties", further=True)
_Cut = partial(
    Option,
    metavar="P",
    panel="Other cuts of the distribution",
    further=True,
    samples=True,
)
_OF_OPENAI: Final = Meta(ge=-2, le=2)


class Sampling(Options, frozen=True):
    """Settings of penalties and of token choice.

    Temperature 0 is greedy and ignores truncations.

    The penalties come first. `repetition_penalty` divides the positive logits of all tokens seen so
    far, the prompt included, and multiplies the negative ones (Keskar et al. 2019). Of tokens that
    were generated, `frequency_penalty` is subtracted once for each time, `presence_penalty` once
    (OpenAI). Logits are then divided by the temperature. `top_k` keeps the k most likely tokens,
    `top_p` the fewest most likely ones of those whose probabilities reach p (Holtzman et al. 2019);
    0 is only the likeliest; `min_p` those at least p times as likely as the likeliest (Nguyen et
    al. 2024). `typical_p` keeps those whose surprise is nearest to the entropy, until they reach p
    (Meister et al. 2022), `epsilon_cutoff` those of at least that probability, `eta_cutoff` e those
    of at least `min(e, sqrt(e) * exp(-entropy))` (Hewitt et al. 2022). With a `seed`, any integer,
    the same logits give the same tokens. UsageError for values out of range.
    """

    temperature: Annotated[
        float,
        Meta(ge=0, description="Sample; below 1: more certain, 0: greedy."),
        _Choice(
            metavar="X",
            variable="GPTRS_TEMPERATURE",
            request=Meta(ge=0, le=2),
            setting="temperature",
            samples=True,
            also=("temp",),
        ),
    ] = 1.0
    top_k: (
        Annotated[
            int,
            Meta(ge=1, description="Sample among the K likeliest tokens; 0: all."),
            _Choice(
                metavar="K",
                variable="GPTRS_TOP_K",
                request=Meta(ge=-1),
                setting="top_k",
                off=0,
                samples=True,
            ),
        ]
        | None
    ) = None
    top_p: (
        Annotated[
            float,
            Meta(
                ge=0, le=1, description="Sample among the likeliest tokens of total probability P."
            ),
            _Choice(
                metavar="P",
                variable="GPTRS_TOP_P",
                request=Meta(ge=0, le=1),
                setting="top_p",
                off=1,
                samples=True,
            ),
        ]
        | None
    ) = None
    seed: (
        Annotated[
            int,
            Meta(description="Make sampling repeatable."),
            _Choice(metavar="N", variable="GPTRS_SEED", request=Meta()),
        ]
        | None
    ) = None
    min_p: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1,
                description="Drop tokens below P times the probability of the likeliest.",
            ),
            _Choice(
                metavar="P",
                variable="GPTRS_MIN_P",
                request=Meta(ge=0, le=1),
                setting="min_p",
                off=0,
                samples=True,
            ),
        ]
        | None
    ) = None
    repetition_penalty: Annotated[
        float,
        Meta(
            gt=0,
            description="Above 1: make tokens less likely that occurred before, also in the"
            " prompt.",
        ),
        _Penalty(
            called="the repetition penalty",
            variable="GPTRS_REPETITION_PENALTY",
            request=Meta(gt=0),
            setting="repetition_penalty",
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Meta(description="Subtract X from the logits of tokens that were generated before."),
        _Penalty(
            called="the presence penalty",
            variable="GPTRS_PRESENCE_PENALTY",
            request=_OF_OPENAI,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Meta(description="Subtract X from the logit of a token for each time it was generated."),
        _Penalty(
            called="the frequency penalty",
            variable="GPTRS_FREQUENCY_PENALTY",
            request=_OF_OPENAI,
        ),
    ] = 0.0
    typical_p: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=1,
                description="Sample among tokens of typical surprise, of total probability P;"
                " 1: all.",
            ),
            _Cut(
                request=Meta(gt=0, le=1),
                setting="typical_p",
                off=1,
            ),
        ]
        | None
    ) = None
    epsilon_cutoff: (
        Annotated[
            float,
            Meta(gt=0, le=1, description="Keep tokens with a probability of at least P; 0: all."),
            _Cut(
                request=Meta(ge=0, le=1),
                setting="epsilon_cutoff",
                off=0,
            ),
        ]
        | None
    ) = None
    eta_cutoff: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=1,
                description="Like the epsilon cutoff, with a lower P where the model is unsure;"
                " 0: all.",
            ),
            _Cut(
                request=Meta(ge=0, le=1),
                setting="eta_cutoff",
                off=0,
            ),
        ]
        | None
    ) = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0
