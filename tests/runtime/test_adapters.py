"""LoRA adapters of PEFT: merged with a model, beside it, several of them, on quantized weights."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.checkpoint.adapter_config import LowRankAdapter, adapter_config
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir import dtypes
from gptrs.nn import CausalLMModule
from gptrs_runtime.generation.batch import generate_several
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.generation.text_cache import model_identity
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.engine import Engine
from runtime.generation.tiny_lms import save_tiny_lm

TOKENS = np.array([[5, 9, 2, 41, 7, 7, 30, 12]])
LLAMA = ("model.layers.{}.self_attn.q_proj", "model.layers.{}.mlp.down_proj")
GPT2 = ("transformer.h.{}.attn.c_attn",)
SIZES = {
    "q_proj": (40, 40), "down_proj": (56, 40), "c_attn": (40, 120),
}  # fmt: skip
"""Inputs and outputs in the tiny models."""


def save_adapter(folder, modules, seed=1, rank=4, sizes=SIZES, **settings):
    """Write an adapter of random factors for two layers, as PEFT does."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for module in (m.format(n) for m in modules for n in range(2)):
        inputs, outputs = sizes[module.rpartition(".")[2]]
        for factor, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            name = f"base_model.model.{module}.lora_{factor}.weight"
            tensors[name] = rng.normal(0, 0.2, shape).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    named = {"target_modules": sorted({m.rpartition(".")[2] for m in modules})}
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "bias": "none", **named, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def merged_by_hand(model, adapter, target, scale):
    """Save the model with W + scale * B A, by the definition."""
    weights = load_file(model / "model.safetensors")
    factors = load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in factors if "lora_A" in name]:
        change = scale * factors[name.replace("lora_A", "lora_B")] @ factors[name]
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        own = next(w for w in (module, module.partition(".")[2]) if f"{w}.weight" in weights)
        weights[f"{own}.weight"] += change.T if "c_attn" in module else change
    target.mkdir()
    save_file(weights, target / "model.safetensors")
    (target / "config.json").write_bytes((model / "config.json").read_bytes())
    return target


@pytest.mark.parametrize(
    ("kind", "modules", "settings", "scale"),
    [
        ("llama", LLAMA, {}, 2.0),
        ("gpt2", GPT2, {"use_rslora": True}, 4.0),
    ],
)
@pytest.mark.parametrize("on", ["ref", "numba"])
def test_merged_and_added_are_w_plus_ba(on, kind, modules, settings, scale, tmp_path):
    base = save_tiny_lm(tmp_path / "base", kind, dtypes.f32)
    adapter = save_adapter(tmp_path / "adapter", modules, **settings)
    by_hand = merged_by_hand(base, adapter, tmp_path / "by hand", scale)
    expected = load_model(by_hand, on).forward(TOKENS)
    plain = load_model(base, on)
    before = plain.forward(TOKENS)
    assert np.abs(expected - before).max() > 0.5
    for made in (load_model(base, on, adapter=adapter), plain.with_adapter(adapter)):
        np.testing.assert_allclose(made.forward(TOKENS), expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(plain.forward(TOKENS), before)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_peft_computes_the_same(tmp_path):
    """As PEFT saves it, with its defaults for GPT-2, and a pattern of ranks and alphas."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=40, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "base")
    lora = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, init_lora_weights=False, target_modules="all-linear",
        rank_pattern={"layers.1.mlp.up_proj": 8}, alpha_pattern={"layers.1.mlp.up_proj": 3},
    )  # fmt: skip
    adapted = peft.get_peft_model(theirs, lora)
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        expected = adapted(torch.tensor(TOKENS)).logits.numpy()
    for backend in ("ref", "numba"):
        made = load_model(tmp_path / "base", backend, adapter=tmp_path / "adapter")
        np.testing.assert_allclose(made.forward(TOKENS), expected, rtol=2e-4, atol=2e-4)


def test_quantized_weights_get_the_product_beside_them(tmp_path):
    wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # rows of whole groups
    base = save_tiny_lm(tmp_path / "base", "llama", dtypes.f32, **wide)
    sizes = {"q_proj": (64, 64), "down_proj": (96, 64)}
    adapter = save_adapter(tmp_path / "adapter", LLAMA, sizes=sizes)
    by_hand = merged_by_hand(base, adapter, tmp_path / "by hand", 2.0)
    expected = load_model(by_hand, "numba").forward(TOKENS)
    made = load_model(base, "numba", weights="q8", precision="f32", adapter=adapter)
    found = made.forward(TOKENS)
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    same = load_model(base, "ref", weights="q8", adapter=adapter).forward(TOKENS)
    np.testing.assert_allclose(found, same, atol=1e-3)
    far = load_model(base, "numba").forward(TOKENS)
    assert np.abs(far - expected).max() > 0.3 * np.abs(expected).max()


def test_an_engine_has_several_adapters_and_never_mixes_their_prompts(tmp_path):
    base = load_model(save_tiny_lm(tmp_path / "base", "llama", dtypes.f32), "numba", 1)
    paths = [save_adapter(tmp_path / f"{n}", LLAMA, seed=n) for n in (1, 2)]
    models = {"base": base} | {p.name: base.with_adapter(p, p.name) for p in paths}
    assert len({model_identity(model) for model in models.values()}) == 3
    prompt = [3 + n % 40 for n in range(70)]
    fields = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    alone = {}
    for path in paths:
        fresh = load_model(tmp_path / "base", "numba", 1).with_adapter(path)
        alone[path.name] = generate(fresh, prompt, **fields)
    alone["base"] = generate(load_model(tmp_path / "base", "numba", 1), prompt, **fields)
    assert len({made.token_ids for made in alone.values()}) == 3
    streams = {}
    with Engine(models) as engine:
        for _ in range(2):  # the second finds the prompt of the first in its own cache
            streams = {name: engine.submit(prompt, model=name, **fields) for name in models}
            for name, stream in streams.items():
                (made,) = stream.result()
                assert (made.token_ids, made.logprobs) == (
                    alone[name].token_ids, alone[name].logprobs,
                )  # fmt: skip
        assert all(stream.cached_tokens == len(prompt) - 1 for stream in streams.values())


class Steps:
    """Counts the steps of an engine that more than one adapter takes part in."""

    def __init__(self, monkeypatch):
        self.mixed = 0
        run = CausalLMModule.adapted_step

        def counted(model, step, adapters, buffers):
            self.mixed += len(set(adapters.tolist())) > 1
            return run(model, step, adapters, buffers)

        monkeypatch.setattr(CausalLMModule, "adapted_step", counted)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "modules"), [("llama", LLAMA), ("gpt2", GPT2)])
@pytest.mark.parametrize("guessed", [False, True])
def test_adapters_of_one_model_share_steps_and_answer_as_alone(
    kind, modules, guessed, tmp_path, monkeypatch
):
    """Of other ranks, among texts of the base and of other layers, with several answers."""
    monkeypatch.setenv("GPTRS_NUMBA_AMX", "0")  # it rounds the products of many rows otherwise
    base = load_model(save_tiny_lm(tmp_path / "base", kind, dtypes.f32), "numba", 1)
    one = base.with_adapter(save_adapter(tmp_path / "one", modules), "one")
    two = base.with_adapter(save_adapter(tmp_path / "two", modules, seed=2, rank=3), "two")
    other = base.with_adapter(save_adapter(tmp_path / "other", modules[:1], seed=3), "other")
    models = {"two": two, "base": base, "one": one, "again": one, "other": other}
    rng = np.random.default_rng(0)
    asked = [(name, rng.integers(3, 40, length).tolist())
             for length in (1, 70, 33, 5) for name in models]  # fmt: skip
    fields = {"max_tokens": 10, "seed": 3, "temperature": 0.8, "ignore_eos": True, "logprobs": 2}
    steps = Steps(monkeypatch)
    with Engine(models, token_budget=128, prompt_lookup=guessed) as engine:
        tried = steps.mixed
        streams = [engine.submit(p, model=name, answers=2, **fields) for name, p in asked]
        found = [stream.result() for stream in streams]
        assert engine.state().pages_held == 0
    assert tried == 1
    assert steps.mixed > 5
    for (name, prompt), texts in zip(asked, found, strict=True):
        alone = generate_several(models[name], prompt, 2, **fields)
        for text, expected in zip(texts, alone, strict=True):
            assert (text.token_ids, text.logprobs) == (expected.token_ids, expected.logprobs)


def test_ref_runs_adapters_together_too(tmp_path, monkeypatch):
    base = load_model(save_tiny_lm(tmp_path / "base", "llama", dtypes.f32), "ref")
    models = {f"{n}": base.with_adapter(save_adapter(tmp_path / f"{n}", LLAMA, seed=n))
              for n in (1, 2)}  # fmt: skip
    steps = Steps(monkeypatch)
    with Engine(models) as engine:
        streams = {n: engine.submit([3, 4, 5], model=n, max_tokens=4, temperature=0)
                   for n in models}  # fmt: skip
        for name, stream in streams.items():
            (text,) = stream.result()
            alone = generate(models[name], [3, 4, 5], max_tokens=4, temperature=0)
            assert text.token_ids == alone.token_ids
    assert steps.mixed > 1


def test_a_model_that_cannot_tell_rows_apart_takes_steps_for_each_adapter(
    tmp_path, monkeypatch, caplog
):
    def refuses(*_):
        raise ModelError("no rows")

    monkeypatch.setattr(CausalLMModule, "adapted_step", refuses)
    base = load_model(save_tiny_lm(tmp_path / "base", "llama", dtypes.f32), "ref")
    models = {name: base.with_adapter(save_adapter(tmp_path / name, LLAMA)) for name in "ab"}
    with Engine({"base": base, **models}) as engine:
        for name in models:
            (text,) = engine.submit([3, 4], model=name, max_tokens=3, temperature=0).result()
            alone = generate(models[name], [3, 4], max_tokens=3, temperature=0)
            assert text.token_ids == alone.token_ids
    assert "take separate steps: no rows" in caplog.text


NAMES = ("", "q", "a.q", "aq", "layers.1.up_proj", "layers.12.up_proj", "model.layers.1.q_proj")


@pytest.mark.parametrize(
    "key",
    [
        "q", "^q", "q$", "layers.1.*", r"layers\.\d+\..*", r".*\.1\..*(q|up)_proj$", "(?:a.|b)q",
        r"[^a]+", "l?ayers.[0-1]2?.up_proj", "^model.*", "(model.|)layers.1.(q|up)_proj", r"\w*q",
    ],
)  # fmt: skip
def test_keys_of_patterns_match_as_expressions_do(key):
    settings = {"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": {key: 2}}
    config = adapter_config(settings, "a")
    for name in NAMES:
        matches = re.match(rf"(.*\.)?({key})$", name) is not None
        assert (config.factor(name, 1) == 2) == matches, name


def test_no_key_of_a_pattern_takes_long():
    keys = {"a?" * 200 + "a" * 99: 1, "(a|a)" * 99: 1, ".*" * 249 + "b": 1}
    settings = {"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": keys}
    assert adapter_config(settings, "a").factor("a" * 98, 1) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_bias": True}, "`lora_bias` is set"),
        ({"peft_type": "IA3"}, "`peft_type` is `'IA3'`"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the model itself"),
        ({"lora_alpha": "x"}, "`lora_alpha` must be a number, found `'x'`"),
        ({"alpha_pattern": {"q": 1, "k": True}}, "`alpha_pattern.k` must be a number, found"),
        *(
            ({"alpha_pattern": {key: 1}}, "has the expression")
            for key in ("(a+)+", "(a", "a{9}", "(a|(b))", "(?=a)", "[z-a]", "a" * 501)
        ),
        ({"kasa_config": {"beta": 1}}, "`kasa_config` is set"),
        ({"layers_pattern": "h"}, "set `layers_to_transform`, too"),
        ({"target_modules": ".*q_proj", "layers_to_transform": [0]}, "is for a list of modules"),
        ({"layers_to_transform": [0], "layers_pattern": "(?=h)"}, "`layers_pattern` has the exp"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings, message, tmp_path):
    base = save_tiny_lm(tmp_path / "base", "llama", dtypes.f32)
    adapter = save_adapter(tmp_path / "adapter", LLAMA, **settings)
    with pytest.raises(ModelError) as error:
        load_model(base, "ref", adapter=adapter)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"use_dora": True},
            "lacks the magnitude of `model.*`, which `use_dora` needs",
        ),
        ({"modules_to_save": ["lm_head"]}, "lacks the modules of `modules_to_save`"),
    ],
)
def test_an_adapter_without_what_its_settings_say_is_refused(settings, message, tmp_path):
    base = save_tiny_lm(tmp_path / "base", "llama", dtypes.f32)
    adapter = save_adapter(tmp_path / "adapter", LLAMA, **settings)
    with pytest.raises(CheckpointError, match=message):
        load_model(base, "ref", adapter=adapter)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"target_modules": ["q_proj", "down_proj"]}, "qd qd"),
        ({"target_modules": ["q_proj"]}, "q q"),
        ({"target_modules": ["model.layers.1.mlp.down_proj", "v_proj"]}, " d"),
        ({"target_modules": ["layers.0.self_attn.q_proj"]}, "q "),
        ({"target_modules": r"model\.layers\.\d+\.self_attn\.q_proj"}, "q q"),
        ({"target_modules": r".*\b(q|k)_proj"}, "qd qd"),  # not read, and all is taken
        ({"target_modules": "all-linear", "exclude_modules": ["q_proj"]}, "d d"),
        ({"exclude_modules": r".*layers\.1.*"}, "qd "),
        ({"target_modules": ["q_proj", "down_proj"], "layers_to_transform": 1}, " qd"),
        (
            {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "layers"},
            "q ",
        ),
        (
            {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "l.*s"},
            "q ",
        ),
    ],
)
def test_settings_choose_among_the_modules_of_a_file(settings, expected, tmp_path, caplog):
    adapter = LowRankAdapter(save_adapter(tmp_path / "adapter", LLAMA, **settings))
    layers = expected.split(" ")
    wanted = {
        name.format(n)
        for n, letters in enumerate(layers)
        for letter, name in zip("qd", LLAMA, strict=True)
        if letter in letters
    }
    assert set(adapter.modules) == wanted
    assert ("leaves out" in caplog.text) == (len(wanted) < 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["v_proj"]}, "means none of the modules in"),
        ({"target_modules": "q_proj"}, "means none of the modules in"),
        ({"target_modules": ""}, "means none of the modules in"),
        ({"r": 8}, "another rank than its factors have: 4"),
        ({"rank_pattern": {"q_proj": 8}}, "another rank than its factors have: 4"),
    ],
)
def test_settings_that_contradict_a_file_are_refused(settings, message, tmp_path):
    folder = save_adapter(tmp_path / "adapter", LLAMA, **settings)
    with pytest.raises((ModelError, CheckpointError), match=message):
        LowRankAdapter(folder)


def test_without_target_modules_all_of_the_file_is_used_with_a_note(tmp_path, caplog):
    named = LowRankAdapter(save_adapter(tmp_path / "named", LLAMA))
    assert not caplog.text
    every = LowRankAdapter(save_adapter(tmp_path / "every", LLAMA, target_modules=None))
    assert "has no `target_modules`: all modules in" in caplog.text
    assert every.digest == named.digest


def test_without_use_dora_magnitudes_are_skipped_with_a_note(tmp_path, caplog):
    folder = save_adapter(tmp_path / "adapter", LLAMA)
    plain = LowRankAdapter(folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"
    save_file({**tensors, name: np.ones(40, np.float32)}, file)
    assert not caplog.text
    assert LowRankAdapter(folder).digest == plain.digest
    assert "has no `use_dora`: the magnitudes in" in caplog.text


@pytest.mark.parametrize("name", ["target_modules", "exclude_modules"])
def test_an_expression_of_modules_that_is_not_read_is_told(name, tmp_path, caplog):
    LowRankAdapter(save_adapter(tmp_path / "a", LLAMA, **{name: r"(?!.*down).*"}))
    assert f"in `{name}` by an expression that is not supported" in caplog.text
    caplog.clear()
    LowRankAdapter(save_adapter(tmp_path / "b", LLAMA, **{name: r".*\.q_proj"}))
    assert "is not supported" not in caplog.text


def test_unknown_settings_are_told(tmp_path, caplog):
    LowRankAdapter(save_adapter(tmp_path / "a", LLAMA, inference_mode=True, new_flag=False))
    assert not caplog.text
    LowRankAdapter(save_adapter(tmp_path / "b", LLAMA, new_flag=True))
    assert "has unknown settings, which are ignored: `new_flag`" in caplog.text


def test_adapters_of_other_models_are_refused(tmp_path):
    model = load_model(save_tiny_lm(tmp_path / "base", "llama", dtypes.f32), "ref")
    with pytest.raises(ModelError, match="are not linear layers, tables or tensors of `base`"):
        model.with_adapter(save_adapter(tmp_path / "gpt2", GPT2))
    with pytest.raises(ModelError, match=r"it has no adapter_config\.json"):
        model.with_adapter(tmp_path / "base")
    odd = save_adapter(tmp_path / "odd", LLAMA)
    tensors = load_file(odd / "adapter_model.safetensors")
    name = next(name for name in tensors if "q_proj.lora_A" in name)
    save_file({**tensors, name: tensors[name][:, :30].copy()}, odd / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="from 30 to 40 values"):
        model.with_adapter(odd)
    save_file({**tensors, name: tensors[name][:2].copy()}, odd / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="needs factors A"):
        model.with_adapter(odd)
    save_file({**tensors, "base_model.model.x.lora_C.weight": np.ones((2, 2), np.float32)},
              odd / "adapter_model.safetensors")  # fmt: skip
    with pytest.raises(ModelError, match="neither factors of linear layers or tables nor whole"):
        model.with_adapter(odd)
    adapted = model.with_adapter(save_adapter(tmp_path / "a", LLAMA))
    with pytest.raises(ModelError, match="an adapter already"):
        adapted.with_adapter(tmp_path / "a")
