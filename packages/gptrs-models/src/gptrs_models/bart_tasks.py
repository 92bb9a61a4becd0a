"""BART and its relatives with what `architectures` of config.json tells of: texts, or classes."""

from __future__ import annotations

from collections.abc import Mapping

from gptrs.api.models import Params
from gptrs_models.bart import Bart, read_config
from gptrs_models.bart_classifier import BartClassifier
from gptrs_models.encoder_heads import architectures, require_no_head


def load(settings: Mapping[str, object], params: Params) -> Bart | BartClassifier:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = read_config(settings)
    if architectures(settings)[:1] == ["BartForSequenceClassification"]:
        return BartClassifier(config, settings, params)
    require_no_head(settings)
    return Bart(config, params)
