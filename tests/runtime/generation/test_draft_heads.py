"""Draft heads: what they compute, what they are given, and that texts stay the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fuzzing import tiny_gguf
from fuzzing.tiny_models import save_tiny_model
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import ModelError, UsageError
from gptrs.nn.ragged_step import own_pages, ragged_step
from gptrs_backend_ref.backend import create
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.generation.guessing.draft import HeadText
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from runtime.generation.tiny_lms import _LATENT, _LLAMA, VARIANTS, VOCABULARY
from support.guesses import guess_any_length

safetensors = pytest.importorskip("safetensors.numpy")

C = 40
_GLM = {**_LLAMA, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "n_shared_experts": 1, "partial_rotary_factor": 0.6, "use_qk_norm": True}  # fmt: skip
_ERNIE = {**_LLAMA, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24,
          "moe_num_shared_experts": 1}  # fmt: skip
_NEXT = {"enorm": (C,), "hnorm": (C,), "eh_proj": (C, 2 * C), "shared_head.norm": (C,),
         "shared_head.head": (VOCABULARY, C), "embed_tokens": (VOCABULARY, C)}  # fmt: skip
_HEAD = {"token_layernorm": (C,), "hidden_layernorm": (C,), "input_proj": (C, 2 * C),
         "final_layernorm": (C,)}  # fmt: skip
_QWEN = {"pre_fc_norm_embedding": (C,), "pre_fc_norm_hidden": (C,), "fc": (C, 2 * C), "norm": (C,)}
_DENSE = {name: each for name, each in VARIANTS["qwen3_next"][1].items() if "expert" not in name}
FAMILIES = {
    # kind, settings, scopes of the block and of the head, and its other weights: the norms of token
    # and state, what joins them, the last norm, words and table
    "deepseek_v3": (VARIANTS["deepseek_v3"][1], "model.layers.2.", "model.layers.2.", _NEXT),
    "glm4_moe": (_GLM, "model.layers.2.", "model.layers.2.", _NEXT),
    "glm4_moe_lite": ({**_LATENT, "n_routed_experts": 4}, "model.layers.2.", "model.layers.2.",
                      dict([*_NEXT.items()][:4])),
    "ernie4_5_moe": (_ERNIE, "model.mtp_block.0.", "model.",
                     {"mtp_emb_norm.0": (C,), "mtp_hidden_norm.0": (C,),
                      "mtp_linear_proj.0": (C, 2 * C)}),
    # The forms of MiMo and Qwen3-Next, beside models of kinds with the same blocks.
    "qwen2": (_LLAMA, "model.mtp_layers.0.", "model.mtp_layers.0.", _HEAD),
    "qwen3": (_LLAMA, "mtp.layers.0.", "mtp.", _QWEN),
    # Their own models keep states of texts.
    "qwen3_next": (VARIANTS["qwen3_next"][1], "mtp.layers.0.", "mtp.", _QWEN),
    "qwen3_5_text": (_DENSE, "mtp.layers.0.", "mtp.", _QWEN),
}  # fmt: skip
_STATES = ("qwen3_next", "qwen3_5_text")
STATE_FIRST, NORMED = ("qwen2",), ("qwen2", "qwen3", *_STATES)
"""The families that join the state before the token, and those that normalize what guides further
tokens."""


def drawn(shape, seed):
    center, spread = (1, 0.2) if len(shape) == 1 else (0, 0.3)
    return np.random.default_rng(seed).normal(center, spread, shape).astype(np.float32)


def save_with_head(folder: Path, kind: str, layer: int = 1) -> dict[str, np.ndarray]:
    """Save a model with a head, whose block is like its `layer`; return the weights."""
    settings, block, scope, others = FAMILIES[kind]
    weights = save_model(folder, kind, {**settings, "num_nextn_predict_layers": 1})
    like = f"model.layers.{layer}."
    for number, (name, weight) in enumerate(sorted(weights.items())):
        if name.startswith(like):
            weights[block + name.removeprefix(like)] = drawn(weight.shape, number)
    for number, (name, shape) in enumerate(others.items()):
        weights[f"{scope}{name}.weight"] = drawn(shape, 100 + number)
    write_archive(folder / "model.safetensors", weights)
    return weights


def save_model(folder: Path, kind: str, settings: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Save a model under the names that files have; return its weights."""
    save_tiny_model(folder, kind, create(), settings, partial(drawn, seed=11))
    found = safetensors.load_file(folder / "model.safetensors")
    found = {n if n.startswith("lm_head") else f"model.{n}": w for n, w in found.items()}
    write_archive(folder / "model.safetensors", found)
    return found


def rms(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def head_logits(head, tokens, guides):
    """Run a head over a whole text; return the last logits and the next guide."""
    tokens = np.array([tokens], np.int64)
    table = own_pages(1, tokens.shape[1])
    buffers = head.new_buffers([table.size])
    return head.guided_step(ragged_step(tokens, [0], [table]), guides, buffers)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_head_is_its_block_on_token_and_state(kind, tmp_path):
    """A model of one layer, the block of the head, whose table has what the head feeds it."""
    layer = 0 if kind == "ernie4_5_moe" else 1
    weights = save_with_head(tmp_path / "model", kind, layer)
    settings, block, scope, others = FAMILIES[kind]
    model = load_model(tmp_path / "model", "ref")
    head = model.draft_head()
    assert head is not None
    text = [5, 9, 2, 60, 33, 7, 7, 80]
    states = list(model.hidden_states(np.array([text])).values())[-1][0]
    names = [f"{scope}{name}.weight" for name in others]
    own = weights[names[5]] if len(names) > 5 else weights["model.embed_tokens.weight"]
    epsilon = 1e-6 if kind in ("deepseek_v3", *NORMED) else 1e-5
    added = kind in _STATES  # norms multiply by 1 + weight
    given = states[:-1]
    halves = [rms(own[text[1:]], added + weights[names[0]], epsilon),
              rms(given, added + weights[names[1]], epsilon)]  # fmt: skip
    halves = halves[::-1] if kind in STATE_FIRST else halves
    inputs = np.concatenate(halves, 1) @ weights[names[2]].T

    table = np.zeros((VOCABULARY, C), np.float32)
    table[: len(inputs)] = inputs
    one = {"model.embed_tokens.weight": table}
    for name, weight in weights.items():
        if name.startswith(block):
            one["model.layers.0." + name.removeprefix(block)] = weight
    norm = weights[names[3]] if len(names) > 3 else np.ones(C, np.float32)
    words = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    one["model.norm.weight"] = norm
    one["lm_head.weight"] = weights[names[4]] if len(names) > 4 else words
    (tmp_path / "one").mkdir()
    write_archive(tmp_path / "one" / "model.safetensors", one)
    # ERNIE's head is dense, the others are like the last layer.
    first = {"first_k_dense_replace": 0, "moe_layer_start_index": 1}
    first |= {"layer_types": ["full_attention"]} if added else {}
    config = {"model_type": kind, **settings, **first, "num_hidden_layers": 1}
    (tmp_path / "one" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    single = load_model(tmp_path / "one", "ref")
    expected = single.forward(np.arange(len(inputs))[None])[0]
    logits, guide = head_logits(head, text[1:], given)
    if len(names) > 3:
        np.testing.assert_allclose(logits[0], expected[-1], rtol=2e-4, atol=2e-4)
        last = guide[0] if kind in NORMED else rms(guide[0], norm, epsilon)
        np.testing.assert_allclose(
            last @ one["lm_head.weight"].T, expected[-1], rtol=2e-4, atol=2e-4
        )
    else:  # no norm before the words
        before = rms(guide[0], norm, epsilon)
        np.testing.assert_allclose(before @ words.T, expected[-1], rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(logits[0], guide[0] @ words.T, rtol=2e-4, atol=2e-4)


def rotated(x, theta=1e4):
    """Rotate heads [T, H, D] by their positions, halves as pairs (Llama)."""
    half = x.shape[2] // 2
    angles = np.arange(len(x))[:, None] / theta ** (np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 2)


def attended(x, weights, scope, heads=4, kv=2, width=10):
    """Causal attention of Llama over vectors [T, C]."""
    q, k, v = (x @ weights[f"{scope}{name}_proj.weight"].T for name in "qkv")
    q, k = (rotated(each.reshape(len(x), -1, width)) for each in (q, k))
    k, v = (np.repeat(each.reshape(len(x), kv, width), heads // kv, 1) for each in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(width)
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hts,shd->thd", scores / scores.sum(-1, keepdims=True), v)
    return mixed.reshape(len(x), -1) @ weights[f"{scope}o_proj.weight"].T


def mlp(x, weights, scope):
    gate, up = (x @ weights[f"{scope}{name}_proj.weight"].T for name in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ weights[f"{scope}down_proj.weight"].T


_MLP = {"gate_proj": (56, C), "up_proj": (56, C), "down_proj": (C, 56)}


def save_eagle(folder: Path, third: bool, **others: object) -> dict[str, np.ndarray]:
    """Save a draft head of EAGLE, or EAGLE-3 with a part of the vocabulary; return its weights."""
    inputs, layer = (2 * C, "midlayer") if third else (C, "layers.0")
    shapes = {"self_attn.q_proj": (40, inputs), "self_attn.k_proj": (20, inputs),
              "self_attn.v_proj": (20, inputs), "self_attn.o_proj": (C, 40),
              **{f"mlp.{name}": shape for name, shape in _MLP.items()},
              "post_attention_layernorm": (C,)}  # fmt: skip
    if third:
        shapes |= {"input_layernorm": (C,), "hidden_norm": (C,)}
    named = {f"{layer}.{name}.weight": shape for name, shape in shapes.items()}
    named["fc.weight"] = (C, 3 * C if third else 2 * C)
    named |= {"norm.weight": (C,), "lm_head.weight": (50, C)} if third else {}
    weights = {name: drawn(shape, 200 + n) for n, (name, shape) in enumerate(named.items())}
    folder.mkdir()
    known = np.sort(np.random.default_rng(2).choice(VOCABULARY, 50, replace=False))
    more = {"d2t": known - np.arange(50)} if third else {}
    write_archive(folder / "model.safetensors", {**weights, **more})
    config = {**_LLAMA, "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 50,
              "architectures": ["LlamaForCausalLMEagle"], **others}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return weights


@pytest.mark.parametrize(("third", "first"), [(False, False), (True, False), (True, True)])
def test_eagle_reads_along(third, first, tmp_path, caplog):
    own = save_model(tmp_path / "model", "llama", {**_LLAMA, "num_hidden_layers": 4})
    weights = save_eagle(tmp_path / "eagle", third, norm_before_residual=first)
    model, draft = (load_model(tmp_path / name, "ref") for name in ("model", "eagle"))
    assert not caplog.records
    head = draft.head_for(model)
    text = [5, 9, 2, 60, 33, 7, 7, 80]
    states = [each[0] for each in model.hidden_states(np.array([text])).values()]
    token = own["model.embed_tokens.weight"][text[1:]]
    if not third:
        given = states[-1][:-1]
        x = np.concatenate([token, given], 1) @ weights["fc.weight"].T
        x = x + attended(x, weights, "layers.0.self_attn.")
        x = x + mlp(rms(x, weights["layers.0.post_attention_layernorm.weight"], 1e-6), weights,
                    "layers.0.mlp.")  # fmt: skip
        expected = x @ own["lm_head.weight"].T
    else:
        # Before the third block, the middle one, the third last: after blocks 1, 1 and 0.
        given = np.concatenate([states[2], states[2], states[1]], 1)[:-1]
        guide = given @ weights["fc.weight"].T
        halves = [rms(token, weights["midlayer.input_layernorm.weight"], 1e-6),
                  rms(guide, weights["midlayer.hidden_norm.weight"], 1e-6)]  # fmt: skip
        x = (halves[1] if first else guide) + attended(
            np.concatenate(halves, 1), weights, "midlayer.self_attn."
        )
        x = x + mlp(rms(x, weights["midlayer.post_attention_layernorm.weight"], 1e-6), weights,
                    "midlayer.mlp.")  # fmt: skip
        known = np.sort(np.random.default_rng(2).choice(VOCABULARY, 50, replace=False))
        expected = np.full((len(x), VOCABULARY), -np.inf)
        expected[:, known] = rms(x, weights["norm.weight"], 1e-6) @ weights["lm_head.weight"].T
    logits, found = head_logits(head, text[1:], head.guides(given))
    np.testing.assert_allclose(logits[0], expected[-1], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found[0], x[-1], rtol=2e-4, atol=2e-4)
    other = save_model(tmp_path / "other", "llama", {**_LLAMA, "hidden_size": 48})
    assert other
    with pytest.raises(ModelError, match="for a model of 97 tokens and width 40, this one has 97"):
        draft.head_for(load_model(tmp_path / "other", "ref"))


@pytest.fixture
def any_length(monkeypatch):
    """Guesses of any length, whether they pay or not; what heads are given is noted."""
    guess_any_length(monkeypatch, 11)
    given = []
    first_row = HeadText.first_row

    def noted(text):
        found = first_row(text)
        if found is not None:
            row = found[0]
            given.append((text._base + row.text.length, list(row.tokens), row.guides.copy()))
        return found

    monkeypatch.setattr(HeadText, "first_row", noted)
    return given


@pytest.mark.long
@pytest.mark.parametrize("kind", ["glm4_moe", "qwen3_next"])
def test_texts_are_those_without_heads(kind, tmp_path, any_length):
    """On numba, with heads of both sorts, in company, and with states that prompts left out.

    Also of a model whose own states must survive wrong guesses.
    """
    save_with_head(tmp_path / "model", kind)
    save_eagle(tmp_path / "eagle", third=False)
    save_eagle(tmp_path / "eagle3", third=True)
    model, *drafts = (
        load_model(tmp_path / name, "numba", 1) for name in ("model", "eagle", "eagle3")
    )
    fields = {"max_tokens": 24, "logprobs": 2, "ignore_eos": True, "seed": 5, "temperature": 0.05}
    prompts = [[*range(5, 45)], [*range(5, 40), 3], [8, 9]]
    plain = [generate(model, prompt, **fields) for prompt in prompts]
    ways = [{"mtp": True}, {"mtp": True, "prompt_lookup": True}, *({"draft": d} for d in drafts)]
    for more in ways:
        made = generate(model, prompts[0], **fields, **more)
        assert (made.token_ids, made.logprobs) == (plain[0].token_ids, plain[0].logprobs)
        assert made.guesses.proposed > 10
        whole = [*prompts[0], *made.token_ids]
        if "draft" not in more:
            states = list(model.hidden_states(np.array([whole])).values())[-1][0]
            for start, tokens, guides in any_length:
                assert whole[start + 1 : start + 1 + len(tokens)] == tokens
                close = states[start : start + len(tokens)]
                np.testing.assert_allclose(guides, close, rtol=1e-4, atol=1e-4)
        assert any_length
        any_length.clear()
    with Engine(model, mtp=True) as engine:
        streams = [engine.submit(prompt, **fields, answers=2) for prompt in prompts]
        found = [stream.result()[0] for stream in streams]
    for made, same in zip(found, plain, strict=True):
        assert (made.token_ids, made.logprobs) == (same.token_ids, same.logprobs)
    assert sum(made.guesses.proposed for made in found) > 30


def test_a_head_that_knows_guesses_all(tmp_path, any_length):
    """Layers that add nothing: the next token follows from the last one, for model and head."""
    weights = save_with_head(tmp_path / "model", "glm4_moe")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[:] = 0
    joined = np.concatenate([np.eye(C), np.zeros((C, C))], 1).astype(np.float32)
    scope = FAMILIES["glm4_moe"][2]
    alike = {"eh_proj": joined, "embed_tokens": weights["model.embed_tokens.weight"],
             "shared_head.head": weights["lm_head.weight"], "enorm": weights["model.norm.weight"],
             "shared_head.norm": np.ones(C, np.float32)}  # fmt: skip
    weights |= {f"{scope}{name}.weight": weight for name, weight in alike.items()}
    write_archive(tmp_path / "model" / "model.safetensors", weights)
    model = load_model(tmp_path / "model", "ref")
    plain, made = (
        generate(model, [5, 6], max_tokens=40, temperature=0.0, ignore_eos=True, mtp=mtp)
        for mtp in (False, True)
    )
    assert made.token_ids == plain.token_ids
    assert made.guesses.accepted == made.guesses.proposed > 20


def gguf_of(weights: Mapping[str, np.ndarray], path: Path, shared: bool) -> Path:
    """Write a GLM-4.5 with a head as llama.cpp names it; `shared`: its table and words are the
    model's."""
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp", "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm", "eh_proj": "nextn.eh_proj", "embed_tokens": "nextn.embed_tokens",
        "shared_head.norm": "nextn.shared_head_norm", "shared_head.head": "nextn.shared_head_head",
    }  # fmt: skip
    for part in ("gate", "up", "down"):
        names[f"mlp.{part}_proj"] = f"ffn_{part}"
        names[f"mlp.shared_experts.{part}_proj"] = f"ffn_{part}_shexp"
    tensors, experts = {}, {}
    for name, weight in weights.items():
        parts = name.split(".")
        inner = ".".join(parts[3:-1])
        if parts[1] != "layers":
            found = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
            tensors[found.get(name.removesuffix(".weight"), "output") + ".weight"] = weight
        elif parts[4:5] == ["experts"]:
            stem = f"blk.{parts[2]}.ffn_{parts[6].removesuffix('_proj')}_exps.weight"
            experts.setdefault(stem, {})[int(parts[5])] = weight
        elif name.endswith("e_score_correction_bias"):
            tensors[f"blk.{parts[2]}.exp_probs_b.bias"] = weight
        elif not (shared and inner in ("embed_tokens", "shared_head.head")):
            tensors[f"blk.{parts[2]}.{names[inner]}.{parts[-1]}"] = weight
    tensors |= {stem: np.stack([by[n] for n in sorted(by)]) for stem, by in experts.items()}
    settings = {
        "block_count": 3, "nextn_predict_layers": 1, "context_length": 256,
        "embedding_length": C, "feed_forward_length": 56, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.key_length": 10, "attention.value_length": 10,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 6,
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24,
        "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
    }  # fmt: skip
    named = {f"glm4moe.{key}": value for key, value in settings.items()}
    stored = {
        name: (tiny_gguf.NUMBERS["F32"], x.shape, np.float32(x).tobytes())
        for name, x in tensors.items()
    }
    path.write_bytes(tiny_gguf.gguf({"general.architecture": "glm4moe", **named}, stored))
    return path


@pytest.mark.parametrize("shared", [False, True])
def test_a_head_in_a_gguf_file_is_that_of_the_folder(shared, tmp_path, any_length, caplog):
    weights = save_with_head(tmp_path / "model", "glm4_moe")
    file = gguf_of(weights, tmp_path / "x.gguf", shared)
    if shared:
        own = ("layers.2.embed_tokens.weight", "layers.2.shared_head.head.weight")
        kept = {name: weight for name, weight in weights.items() if not name.endswith(own)}
        write_archive(tmp_path / "model" / "model.safetensors", kept)
    folder, read = load_model(tmp_path / "model", "ref"), load_model(file, "ref")
    assert not caplog.records
    assert read.config["num_hidden_layers"] == 2
    fields = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
    plain, same = (generate(each, [5, 6, 7, 8], **fields) for each in (folder, read))
    assert (same.token_ids, same.logprobs) == (plain.token_ids, plain.logprobs)
    found = generate(read, [5, 6, 7, 8], **fields, mtp=True)
    assert found.token_ids == plain.token_ids
    assert found.guesses.proposed > 5
    guides = np.float32(np.random.default_rng(4).normal(size=(3, C)))
    one, other = (head_logits(each.draft_head(), [4, 2, 9], guides) for each in (folder, read))
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_has_no_head_says_so(tmp_path):
    save_model(tmp_path / "model", "llama", _LLAMA)
    save_eagle(tmp_path / "eagle", third=False)
    model, draft = (load_model(tmp_path / name, "ref") for name in ("model", "eagle"))
    with pytest.raises(UsageError, match="has no head for multi-token prediction"):
        generate(model, [5], mtp=True)
    with pytest.raises(UsageError, match="both guess every token"):
        generate(model, [5], mtp=True, draft=draft)
    with pytest.raises(ModelError, match="cannot generate text"):
        generate(draft, [5])
