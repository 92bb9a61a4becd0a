"""Models of the Llama family with what their config.json tells of: causal or not, and a head."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.api import Params
from gptrs_models import llama, rotary_encoder
from gptrs_models.llama import Llama
from gptrs_models.rotary_encoder import RotaryEncoder


def load(settings: Mapping[str, object], params: Params) -> Llama | RotaryEncoder:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    if settings.get("use_bidirectional_attention") is True:
        return rotary_encoder.load(settings, params)
    return llama.load(settings, params)
