"""`gptrs.Hooks`: modules are read and replaced by name, compiled once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

import gptrs
from gptrs import functionals as F
from gptrs.capture.events import CompileStart, ExecutionTraceSink, tracing
from gptrs.errors import ExecutionError, ModelError, UsageError
from gptrs.ir import dtypes
from gptrs_observe.attribution import TraceRequest, logit_lens, traced_values
from gptrs_observe.hooks import Hooks, module_names
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_resnet import save_tiny_resnet

TOKENS = np.array([[5, 9, 2, 7], [1, 2, 3, 4]])


class _Compilations(ExecutionTraceSink):
    def __init__(self) -> None:
        self.origins: list[str] = []

    @override
    def before_program(self, event: CompileStart) -> None:
        self.origins.append(event.origin)


def test_modules_have_the_names_of_the_tree(model):
    names = module_names(model)
    assert names[:4] == ["wte", "wpe", "h.0", "h.0.ln_1"]
    assert "h.1.mlp.c_fc" in names


def test_what_is_read_is_what_the_model_computes(model):
    plain, states = model.forward(TOKENS), model.hidden_states(TOKENS)
    hooks = Hooks(model, ["h.*", "h.0.mlp.c_*"])
    with hooks:
        logits = model.forward(TOKENS)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        hooks["h.0"].reshape(states["layer.0"].shape), states["layer.0"], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(hooks.inputs["h.1"], hooks.outputs["h.0"], rtol=1e-5, atol=1e-6)
    assert hooks["h.0.mlp.c_fc"].shape[0] == TOKENS.size


def test_it_is_compiled_once_and_values_are_those_of_the_last_call(model):
    hooks, compilations = Hooks(model, ["h.0"]), _Compilations()
    with hooks:
        model.forward(TOKENS)
        first = hooks["h.0"]
        with tracing(compilations):
            model.forward(TOKENS[:, ::-1].copy())
    second = hooks["h.0"]
    assert compilations.origins == []
    assert not np.array_equal(first, second)
    with tracing(compilations), hooks:
        model.forward(TOKENS)
    assert compilations.origins == []
    np.testing.assert_array_equal(hooks["h.0"], first)


def test_without_hooks_nothing_is_compiled_anew(model):
    model.forward(TOKENS)
    with Hooks(model, ["h.1"]):
        model.forward(TOKENS)
    compilations = _Compilations()
    with tracing(compilations):
        model.forward(TOKENS)
    assert compilations.origins == []


def test_a_function_replaces_the_output(model):
    hooks = Hooks(model, ["h.1.mlp"], replace={"h.1.mlp": lambda x: x * 0.0})
    with hooks:
        changed = model.forward(TOKENS)
    assert np.abs(changed - model.forward(TOKENS)).max() > 1e-4
    assert not hooks["h.1.mlp"].any()


def test_an_array_replaces_the_first_rows_and_can_be_exchanged(model):
    """Activation patching: what layer 0 made of other tokens, put in its place."""
    source = Hooks(model, ["h.0"])
    with source:
        wanted = model.forward(TOKENS[::-1].copy())
    patched = Hooks(model, replace={"h.0": np.zeros_like(source["h.0"])})
    with patched:
        zeros = model.forward(TOKENS)
    patched.put("h.0", source["h.0"])
    compilations = _Compilations()
    with tracing(compilations), patched:
        found = model.forward(TOKENS)
    assert compilations.origins == []
    assert np.abs(zeros - wanted).max() > 1e-4
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_fewer_rows_leave_the_others(model):
    hooks = Hooks(model, ["h.0"], replace={"h.0": np.zeros((2, 32), np.float32)})
    with hooks:
        model.forward(TOKENS)
    rows = hooks["h.0"]
    assert not rows[:2].any()
    assert rows[2:].any()


@pytest.mark.parametrize(
    ("read", "replace", "message"),
    [
        (["h.9"], {}, "no module is called `h.9`"),
        ([], {"nothing": lambda x: x}, "no module is called `nothing`"),
        ([], {"h.0": np.zeros((2, 5), np.float32)}, "the output of `h.0` is"),
        ([], {"h.0": lambda x: F.sum(x)}, "the output of `h.0` is"),
        ([], {"h.*": lambda x: x}, "`h.\\*` is not one input or output"),
        ([], {"blocks.0.attn.hook_pattern": np.zeros((4, 8, 8), np.float32)}, "is not one input"),
        ([], {"blocks.0.attn.hook_pattern": lambda x: x[0]}, "the attention of `h.0.attn` is"),
    ],
)
def test_what_cannot_be_is_refused(model, read, replace, message):
    with pytest.raises(UsageError, match=message), Hooks(model, read, replace):
        model.forward(TOKENS)


def test_an_array_of_another_type_is_refused(model):
    hooks = Hooks(model, replace={"h.0": np.zeros((2, 32), np.float32)})
    with pytest.raises(UsageError, match="is replaced by"):
        hooks.put("h.0", np.zeros((3, 32), np.float32))
    with pytest.raises(UsageError, match="no array replaces"):
        hooks.put("h.1", np.zeros((3, 32), np.float32))


def test_hook_points_are_names_of_the_same_values(model, directory, tmp_path):
    """TransformerLens' and nnsight's names, whatever the weights are, and the format."""
    quantized = gptrs.load_model(directory, backend="ref", weights="q8")
    gptrs.quantize(directory, tmp_path / "tiny.gguf", "f32")
    file = gptrs.load_model(tmp_path / "tiny.gguf", backend="ref")
    for each in (model, quantized, file):
        names = ["h.*", "h.*.attn", "h.*.c_proj", "h.0.mlp", "w?e", "blocks.1.attn.hook_pattern"]
        names += [
            "h.0.ln_1",
            "ln_f",
            "h.0.ln_2",
            "h.1.mlp.c_fc",
            "blocks.*.hook_resid_mid",
            "blocks.0.attn.hook_?",
        ]
        hooks = Hooks(each, names)
        with hooks:
            each.forward(TOKENS[:1])
        same = {
            "hook_embed": "wte.output",
            "blocks.0.hook_resid_pre": "h.0.input",
            "blocks.1.hook_resid_pre": "h.0.output",
            "blocks.1.hook_resid_post": "transformer.h.1.output",
            "blocks.1.hook_attn_out": "h.1.attn",
            "blocks.0.hook_mlp_out": "transformer.h.0.mlp",
            "blocks.1.attn.hook_pattern": "h.1.attn.attention",
            "blocks.1.attn.hook_z": "h.1.attn.c_proj.input",
            "blocks.0.mlp.hook_post": "h.0.mlp.c_proj.input",
            "hook_pos_embed": "wpe",
            "blocks.0.hook_resid_mid": "h.0.ln_2.input",
            "blocks.0.ln1.hook_normalized": "h.0.ln_1",
            "blocks.0.ln2.hook_normalized": "h.0.ln_2",
            "ln_final.hook_normalized": "ln_f",
            "blocks.1.mlp.hook_pre": "h.1.mlp.c_fc",
            "blocks.1.hook_resid_mid": "h.1.hook_resid_mid.output",  # as `values` calls it
        }
        for point, name in same.items():
            np.testing.assert_array_equal(hooks[point], hooks[name], err_msg=point)
        assert hooks["blocks.1.attn.hook_pattern"].shape == (4, 4, 4)
        parts = np.split(hooks["h.0.attn.c_attn"], 3, axis=-1)
        for part, point in zip(parts, ("hook_q", "hook_k", "hook_v"), strict=True):
            found = hooks[f"blocks.0.attn.{point}"]
            assert found.shape == (4, 4, 8)  # tokens, heads, width of a head
            np.testing.assert_array_equal(found.reshape(4, 32), part)


@pytest.mark.parametrize("variant", ["llama", "deepseek_v3"])
def test_queries_and_keys_after_the_rotation(tmp_path, variant):
    model = gptrs.load_model(save_tiny_lm(tmp_path / variant, variant, dtypes.f32), backend="ref")
    hooks = Hooks(model, ["blocks.0.attn.hook_*"])
    with hooks:
        model.forward(TOKENS[:1])
    rotated, plain = hooks["blocks.0.attn.hook_rot_q"], hooks["blocks.0.attn.hook_q"]
    plain = plain[..., -rotated.shape[-1] :]  # latent attention rotates the last part
    np.testing.assert_allclose(
        *(np.linalg.norm(each, axis=-1) for each in (rotated, plain)), rtol=1e-4
    )
    np.testing.assert_allclose(rotated[0], plain[0], rtol=1e-5)  # position 0
    assert np.abs(rotated[1:] - plain[1:]).max() > 1e-3
    key = hooks["blocks.0.attn.hook_rot_k"]
    assert key.shape[0] == TOKENS.shape[1]
    logits = model.forward(TOKENS[:1])
    with Hooks(model, replace={"blocks.0.attn.hook_rot_k": lambda x: x * 0.0}):
        assert np.abs(model.forward(TOKENS[:1]) - logits).max() > 0


def test_a_value_that_was_not_read_and_rows_to_add_say_what_to_do(model):
    hooks = Hooks(model, ["h.0"])
    with pytest.raises(KeyError, match="was not computed; run the model"):
        hooks["h.0"]
    with pytest.raises(KeyError, match="is not among `read`"):
        hooks["h.1"]
    rows = Hooks(model, add={"h.0": np.zeros((4, 31), np.float32)})
    with pytest.raises(UsageError, match="or the first rows of such a value"), rows:
        model.forward(TOKENS)


def test_added_vectors_steer_inputs_and_outputs_and_can_be_exchanged(model):
    vector = np.linspace(-1, 1, 32, dtype=np.float32)
    runs: list[np.ndarray] = []
    plain = Hooks(model, ["h.0.output"])
    with plain:
        model.forward(TOKENS)
    steered = Hooks(
        model,
        ["blocks.*.hook_resid_*"],
        add={"h.0": vector},
        after=lambda: runs.append(steered["h.0"]),
    )
    with steered:
        after_output = model.forward(TOKENS)
    np.testing.assert_allclose(steered["h.0"], plain["h.0"] + vector, rtol=1e-5, atol=1e-6)
    entering = Hooks(model, add={"blocks.1.hook_resid_pre": vector})
    with entering:
        np.testing.assert_allclose(model.forward(TOKENS), after_output, rtol=1e-5, atol=1e-6)
    steered.put("h.0", np.zeros(32, np.float32))
    compilations = _Compilations()
    with tracing(compilations), steered:
        model.forward(TOKENS)
    assert compilations.origins == []
    np.testing.assert_allclose(runs[1], plain["h.0"], rtol=1e-5, atol=1e-6)
    assert len(runs) == 2


def test_added_rows_patch_every_site_of_a_sweep_by_one_program(model):
    sites = ["h.0.attn", "h.0", "blocks.1.attn.hook_q"]
    clean, corrupt = TOKENS[:1], TOKENS[1:]
    read = Hooks(model, sites)
    with read:
        model.forward(clean)
        good = {site: read[site] for site in sites}
        model.forward(corrupt)
        bad = {site: read[site] for site in sites}
    nothing = {site: np.zeros_like(rows) for site, rows in bad.items()}
    sweep, compilations = Hooks(model, add=nothing), _Compilations()
    plain = model.forward(corrupt)
    with sweep:
        np.testing.assert_allclose(model.forward(corrupt), plain, rtol=1e-5, atol=1e-6)
    for site in sites:
        patched = bad[site].copy()
        patched[2] = good[site][2]
        with Hooks(model, replace={site: patched}):
            expected = model.forward(corrupt)
        sweep.put(site, patched - bad[site])
        with sweep, tracing(compilations):
            found = model.forward(corrupt)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        sweep.put(site, nothing[site])
    assert compilations.origins == []


def test_a_steered_generation_leaves_no_keys_and_values_for_others(model):
    """And none of theirs are used: hooks read each token of a prompt that is known already."""
    prompt = list(range(40))
    plain = gptrs.generate(model, prompt, max_tokens=8, temperature=0).token_ids
    rows: list[int] = []
    vector = np.random.default_rng(0).normal(size=32).astype(np.float32) * 10
    hooks = Hooks(model, ["h.1"], add={"h.0": vector}, after=lambda: rows.append(len(hooks["h.1"])))
    with hooks:
        steered = gptrs.generate(model, prompt, max_tokens=8, temperature=0).token_ids
    assert steered != plain
    assert sum(rows) == 47  # the last token is never read
    assert gptrs.generate(model, prompt, max_tokens=8, temperature=0).token_ids == plain


def test_attention_is_causal_within_each_text_and_sums_to_one(model):
    values = traced_values(model, TOKENS, TraceRequest(attention=True))
    weights = values["h.0.attn.attention"]
    assert weights.shape == (2, 4, 4, 4)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
    assert not np.triu(weights, 1).any()
    alone = traced_values(model, TOKENS[1:], TraceRequest(attention=True))["h.0.attn.attention"]
    np.testing.assert_allclose(weights[1:], alone, rtol=1e-4, atol=1e-6)


def test_attention_weights_are_edited_in_whole_texts(model):
    """A head that sees nothing gives nothing, as one whose output is taken away."""
    name, plain = "blocks.1.attn.hook_pattern", model.forward(TOKENS)
    keep = np.float32([1, 0, 1, 1])
    edited = Hooks(model, [name], {name: lambda weights: weights * keep.reshape(4, 1, 1)})
    with edited:
        found = model.forward(TOKENS)
    cut = Hooks(model, replace={"blocks.1.attn.hook_z": lambda z: z * np.repeat(keep, 8)})
    with cut:
        wanted = model.forward(TOKENS)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert np.abs(found - plain).max() > 1e-5
    assert not edited[name][1].any()
    assert edited[name][0].any()
    # A step whose texts began before has no weights of what they saw there.
    with edited, pytest.raises(ExecutionError, match="nan"):
        gptrs.generate(model, [5, 9, 2], max_tokens=2, temperature=0)


def test_only_blocks_with_a_sum_in_the_middle_have_a_name_for_it(tmp_path):
    for kind, has_it in (("llama", True), ("gpt_neox", False)):
        model = gptrs.load_model(save_tiny_lm(tmp_path / kind, kind, dtypes.f32), backend="ref")
        names = ["blocks.0.hook_resid_pre", "blocks.0.hook_attn_out", "blocks.0.attn.hook_q"]
        if not has_it:
            with pytest.raises(UsageError, match="no module is called"):
                Hooks(model, ["blocks.0.hook_resid_mid"])
            continue
        hooks = Hooks(model, [*names, "blocks.0.hook_resid_mid", "layers.0.self_attn.q_proj"])
        with hooks:
            model.forward(TOKENS)
        pre, out, query = (hooks[name] for name in names)
        np.testing.assert_allclose(hooks["blocks.0.hook_resid_mid"], pre + out, rtol=1e-5)
        flat = hooks["layers.0.self_attn.q_proj"]
        np.testing.assert_array_equal(query.reshape(flat.shape), flat)


def test_the_last_state_of_a_logit_lens_predicts_what_the_model_does(model):
    lens = logit_lens(model, model.hidden_states(TOKENS), 3)
    assert list(lens) == ["embeddings", "layer.0", "layer.1"]
    best = model.forward(TOKENS)[0, -1].argmax()
    assert lens["layer.1"][0].token == best
    chances = [token.probability for token in lens["layer.0"]]
    assert chances == sorted(chances, reverse=True)


def test_embedders_and_classifiers_are_read_too(tmp_path: Path):
    bert = gptrs.load_model(save_tiny_bert(tmp_path / "bert"), backend="ref")
    values = traced_values(bert, TOKENS, TraceRequest(["encoder.layer.0.intermediate"]))
    assert values["encoder.layer.0.intermediate.output"].shape[:2] == TOKENS.shape
    with pytest.raises(ModelError, match="shows no weights of attention"):
        traced_values(bert, TOKENS, TraceRequest(attention=True))
    resnet = gptrs.load_model(save_tiny_resnet(tmp_path / "resnet"), backend="ref")
    names = module_names(resnet)
    convolution = next(name for name in names if name.endswith("convolution"))
    image = np.ones((1, 3, 32, 32), np.float32)
    values = traced_values(resnet, image, TraceRequest([convolution]))
    assert values[f"{convolution}.output"].ndim == 4


def test_a_backend_that_compiles_gives_the_same(model, directory):
    pytest.importorskip("gptrs_backend_numba")
    fast = gptrs.load_model(directory, backend="numba")
    request = TraceRequest(["h.0"])
    ours, other = (traced_values(each, TOKENS, request) for each in (fast, model))
    assert list(ours) == list(other)
    for name, value in other.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-3, atol=1e-4)
