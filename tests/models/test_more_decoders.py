"""Decoders that came after those of `test_llama_kinds` agree with transformers."""

from __future__ import annotations

from functools import partial

import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs_models.llama_kinds import read_config
from models.llama_support import assert_close, edit_config, save_llama, some_tokens
from models.models_support import assert_greedy, torch_logits
from models.more_decoders import CASES, COMPILED_CASES

pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("torch", reason="parity needs torch")

GREEDY = gptrs.Sampling(temperature=0)


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens(tmp_path, backend_name, name):
    if backend_name != "ref" and name not in COMPILED_CASES:
        pytest.skip("their kernels are those of older kinds")
    kind, settings = CASES[name]
    folder = save_llama(tmp_path / "m", kind, **settings)
    model = gptrs.load_model(folder, backend=backend_name)
    tokens = some_tokens(2, 30)
    assert_close(model.forward(tokens), torch_logits(folder, tokens))
    if " " in name:
        return
    prompt = tokens[0, :9].tolist()
    ours = gptrs.generate(model, prompt, max_tokens=24, sampling=GREEDY, ignore_eos=True)
    assert_greedy(partial(torch_logits, folder), prompt, ours.token_ids, 24)


def test_the_words_and_names_of_older_files_of_granite(tmp_path):
    kind, settings = CASES["granitemoehybrid"]
    folder = save_llama(tmp_path / "m", kind, **settings)
    tokens = some_tokens(1, 20)
    wanted = torch_logits(folder, tokens)
    edit_config(folder, layer_types=["mamba", "attention", "mamba"], position_embedding_type="nope")
    assert_close(gptrs.load_model(folder, backend="ref").forward(tokens), wanted)


def test_numbers_of_experts_that_stand_in_a_list():
    lists = {"num_experts": [4] * 2, "moe_topk": [2] * 2}
    config = read_config({"model_type": "hunyuan_v1_moe", **lists})
    assert config.experts is not None
    assert (config.experts.count, config.experts.chosen) == (4, 2)
    with pytest.raises(ModelError, match="must be the same for all layers"):
        read_config({"model_type": "hunyuan_v1_moe", "num_experts": [4, 8], "moe_topk": 2})


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "phimoe", "num_experts_per_tok": 3}, "`num_experts_per_tok`"),
        ({"model_type": "ernie4_5_moe", "use_bias": True}, "`use_bias`"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba"]}, "for each of 32 layers"),
        ({"model_type": "granitemoehybrid", "mamba_n_heads": 7}, "must divide 8192"),
        ({"model_type": "glm4_moe_lite", "mlp_layer_types": ["dense"]}, "one word for each of"),
        ({"model_type": "dots1"}, "`n_routed_experts`"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings, said):
    with pytest.raises(ModelError, match=said):
        read_config(settings)
