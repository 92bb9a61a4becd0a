"""A model says what it can do, and is held to it."""

from __future__ import annotations

import pytest

from gptrs.api import PluginError
from gptrs.plugins import capabilities
from gptrs.plugins.capabilities import PROTOCOLS, CausalLM, HiddenStates, capabilities_of


class Complete:
    capabilities = frozenset({"causal_lm", "acme.embeddings"})
    vocab_size = 3

    def __init__(self) -> None:
        self.context_length = 8

    def forward(self, tokens): ...

    def cache_specs(self): ...

    def new_buffers(self, pages, dtype=None): ...

    def step(self, step, buffers): ...


def test_claims_are_returned_and_unknown_ones_pass_unchecked():
    assert capabilities_of(Complete()) == {"causal_lm", "acme.embeddings"}


def test_without_a_claim_there_are_none():
    assert capabilities_of(object()) == frozenset()


def test_a_claim_without_the_members_is_refused():
    class Partial:
        capabilities = ("causal_lm",)
        vocab_size = 3

        def forward(self, tokens): ...

    with pytest.raises(PluginError) as caught:
        capabilities_of(Partial())
    assert str(caught.value) == (
        "`Partial` claims the capability `causal_lm` but lacks `context_length`,"
        " `cache_specs`, `new_buffers`, `step`; see `gptrs.plugins.capabilities.CausalLM`"
    )


@pytest.mark.parametrize("claimed", ["causal_lm", 3, None])
def test_a_claim_is_a_set_of_names(claimed):
    model = type("Model", (), {"capabilities": claimed})()
    with pytest.raises(PluginError, match=r"`Model.capabilities` must be a set of names"):
        capabilities_of(model)


def test_the_known_protocols():
    assert PROTOCOLS["causal_lm"] is CausalLM
    assert PROTOCOLS["hidden_states"] is HiddenStates
    stated = {
        kind
        for name, kind in vars(capabilities).items()
        if getattr(kind, "_is_protocol", False) and not name.startswith("_")
        if kind.__module__ == capabilities.__name__
    }
    # What a `CausalLM` may do besides is no capability of its own.
    assert {*PROTOCOLS.values(), capabilities.RepeatingLM} == stated
