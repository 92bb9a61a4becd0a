"""Layers as operators of their own, so that torch does not take them apart before conversion.

`gptrs::lstm` is `aten::lstm.input` under a name that torch neither unrolls step by step nor, as it
does with `linear`, flattens. Where no converter takes one, it runs as torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch import fx

_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_WEIGHTS: Final = 2
"""The position of a recurrent layer's weights; for packed sequences, that of the state."""
_LINEAR: Final = "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
_SCHEMA: Final = (
    "{}(Tensor input, {} hx, Tensor[] params, bool has_biases, int num_layers, float dropout,"
    " bool train, bool bidirectional, bool batch_first) -> (Tensor, {})"
)
_AUTOCAST: Final = cast("Any", torch.amp.autocast_mode)._enter_autocast
_library: Any = torch.library.Library("gptrs", "DEF")


def rules() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of recurrent layers into the operators that stand for them."""
    return {getattr(torch.ops.aten, kind).input: partial(_kept, kind) for kind in _RECURRENT}


def keep_layers(module: fx.GraphModule) -> None:
    """Replace layers in a graph of Dynamo by the operators that stand for them.

    Layers on packed sequences stay, and all where autocast picks the types of layers by name.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    if torch.is_autocast_enabled("cpu") or any(node.target is _AUTOCAST for node in nodes):
        return
    kinds: dict[object, str] = {getattr(torch, kind): kind for kind in _RECURRENT}
    for node in nodes:
        kind = kinds.get(node.target)
        if node.target is torch.nn.functional.linear:
            node.target = torch.ops.gptrs.linear.default
        elif kind is not None and isinstance(node.args[_WEIGHTS], (list, tuple)):
            node.target = getattr(torch.ops.gptrs, kind).default
    module.recompile()


def _kept(kind: str, *arguments: object) -> object:
    return getattr(torch.ops.gptrs, kind)(*arguments)


def _run(kind: str, *arguments: object) -> object:
    return getattr(torch, kind)(*arguments)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
    return torch.nn.functional.linear(x, weight, bias)


def _shapes(
    x: torch.Tensor,
    state: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return outputs and last states without elements."""
    del params, has_biases, num_layers, dropout, train, batch_first
    states = [state] if isinstance(state, torch.Tensor) else list(state)
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    made = x.new_empty([*x.shape[:-1], width])
    return (made, *(torch.empty_like(each) for each in states))


def _define(kind: str, schema: str, run: Callable[..., object], shapes: Callable[..., Any]) -> None:
    _library.define(schema)
    _library.impl(kind, run, "CompositeExplicitAutograd")
    cast("Any", torch.library).register_fake(f"gptrs::{kind}", shapes, lib=_library)


_define("linear", _LINEAR, _linear, _linear)
for _kind in _RECURRENT:
    _types = ("Tensor[]", "Tensor, Tensor") if _kind == "lstm" else ("Tensor", "Tensor")
    _define(_kind, _SCHEMA.format(_kind, *_types), partial(_run, _kind), _shapes)
