"""Batches of texts padded on the left: language models of transformers under torch.compile.

Rows of padding may attend to nothing, and what they give must not reach the text beside them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")
transformers = pytest.importorskip("transformers", reason="these tests compile its models")

pytestmark = pytest.mark.long
SMALL: Final = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
ALTERNATING: Final = {"num_hidden_layers": 2, "sliding_window": 3, "head_dim": 8}
KINDS: Final[dict[str, Mapping[str, object]]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 3},
    "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32},
    "GPTNeoX": {"rotary_pct": 0.5},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Bloom": {"n_head": 4, "n_layer": 1},
    "Falcon": {"new_decoder_architecture": False, "alibi": False},
    "GPTBigCode": {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32},
    "Gemma2": ALTERNATING,
    "Gemma3": {**ALTERNATING, "layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": {"rope_parameters": None, "original_max_position_embeddings": 32},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma": {"head_dim": 8},
    "Phi": {"partial_rotary_factor": 0.5},
    "StableLm": {},
    "Olmo2": {},
    "Cohere": {},
    "Starcoder2": {"sliding_window": 3},
    "Granite": {},
    "GPTJ": {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "rotary_dim": 4},
    "CodeGen": {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 32, "rotary_dim": 4},
    "Mpt": {"d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 32},
}
"""Kinds of language models, and what their configurations have besides `SMALL`."""
IDS: Final = [[0, 0, 0, 0, 5, 6, 7], [0, 0, 3, 9, 8, 7, 6], [1, 12, 13, 14, 15, 16, 17]]
WITHOUT_SDPA: Final = frozenset({"Bloom", "Gemma2", "Mpt"})
"""Kinds that transformers has by its plain attention alone."""
FIRST: Final = ("Llama", "Mistral", "GPT2", "Bloom", "Gemma2")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def model_of(kind: str, attention: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")
    made = config(**{**SMALL, **KINDS[kind]}, attn_implementation=attention)
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(
        made
    ).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def compare(kind: str, attention: str, runs_on: str) -> None:
    model = model_of(kind, attention)
    ids = torch.tensor(IDS)
    given = {"input_ids": ids, "attention_mask": (ids > 0).long(), "use_cache": False}
    fast = torch.compile(model, backend="gptrs", options={"backend": runs_on})
    with torch.inference_mode():
        expected, found = model(**given).logits, fast(**given).logits
    assert not expected[:, -1].isnan().any()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize(
    "kind",
    [*FIRST, *(pytest.param(k, marks=pytest.mark.exhaustive) for k in KINDS if k not in FIRST)],
)
def test_a_left_padded_batch_gives_what_torch_gives(kind: str) -> None:
    compare(kind, "eager" if kind in WITHOUT_SDPA else "sdpa", "ref")


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_so_it_does_on_numba(kind: str) -> None:
    compare(kind, "sdpa", "numba")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Llama", "Gemma3"])
def test_so_it_does_by_the_plain_attention_of_transformers(kind: str) -> None:
    compare(kind, "eager", "ref")
