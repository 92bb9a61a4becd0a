"""Which layer of a model a kernel belongs to, by the names of the weights that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WEIGHT = re.compile(r"(?:derived_)*p\d+_(?P<path>.+)|(?:derived_)+(?P<derived>.+)")
_NUMBERED = re.compile(r".*?(?:^|_)\d+(?=_|$)")
_TENSOR = re.compile(r"_(?:weight|bias)$")


def layer_of(names: Iterable[str]) -> str:
    """Return the layer of the first weight among the names of inputs, "" if there is none.

    Weights are called `pNUMBER_PATH`: of `p20_transformer_h_5_attn_c_attn_weight` it is
    `transformer.h.5`, of `p2_transformer_wte_weight` `transformer_wte`.
    """
    for name in names:
        weight = _WEIGHT.fullmatch(name)
        if weight is not None:
            path = weight["path"] or weight["derived"]
            numbered = _NUMBERED.match(path)
            return _TENSOR.sub("", path) if numbered is None else numbered[0].replace("_", ".")
    return ""
