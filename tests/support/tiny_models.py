"""Models of transformers with few, random weights, saved as a user's would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def tiny(
    folder: Path,
    made: str,
    config: Any,
    *,
    seed: int,
    redrawn: tuple[float, float] | None = None,
    dtype: str = "float32",
    max_shard_size: str = "5GB",
) -> Any:
    """Save the class `made` of transformers with a config, an object or settings; return the model.

    transformers starts biases at 0 and norms at 1, which would hide mistakes: they are moved.
    `redrawn`, the deviation of all parameters and the mean of vectors, draws every one anew.
    """
    torch = pytest.importorskip("torch", reason="parity needs torch")
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    kind = getattr(transformers, made)
    if isinstance(config, dict):
        config = kind.config_class(**config)
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if redrawn is not None:
                deviation, mean = redrawn
                parameter.copy_(
                    torch.randn_like(parameter) * deviation + (parameter.ndim == 1) * mean
                )
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, each in [*model.named_buffers(), *model.named_parameters()]:
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                each.add_(torch.randn_like(each) * 0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    return model
