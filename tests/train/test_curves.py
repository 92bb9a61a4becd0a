"""Loss curves of whole runs beside those of torch, transformers and PEFT, in f32."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gptrs.plugins.manager import backend_of
from gptrs_runtime.load import load_model
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.sources.find_model import find_model
from gptrs_train.batches import Windows
from gptrs_train.data import Source
from gptrs_train.learner import FACTORS, Learner, LowRank, factor_name
from gptrs_train.products import _full, adapter_config, write_product
from gptrs_train.runs import Data, Outputs, finetune
from support.tiny_models import tiny
from train.runs_support import CONFIGS, run, save_lm, settings, stream, torch_lm

pytestmark = pytest.mark.long
STEPS = 50


def torchs_losses(model, chosen):
    """Return the losses of the same updates of torch: AdamW, warm-up and cosine, clipping."""
    torch = pytest.importorskip("torch", reason="the oracle is torch")
    learnt = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learnt if p.ndim > 1], "weight_decay": chosen.weight_decay},
        {"params": [p for p in learnt if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=chosen.betas)
    windows = Windows(Source("", stream=stream()), chosen.length, chosen.batch, chosen.seed)
    losses = []
    for step in range(chosen.steps):
        share = (step - chosen.warmup) / (chosen.steps - chosen.warmup)
        least, top = chosen.least_rate, chosen.rate
        rate = least + (top - least) * 0.5 * (1 + math.cos(math.pi * share))
        if step < chosen.warmup:
            rate = top * (step + 1) / (chosen.warmup + 1)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = windows.batch(step)
        logits = model(input_ids=torch.tensor(batch.tokens)).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), torch.tensor(batch.targets).reshape(-1)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, chosen.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("on", ["ref", "numba"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_all_weights_learn_as_in_torch(kind, on, tmp_path):
    model = torch_lm(tmp_path / "model", kind)
    chosen = settings(steps=STEPS)
    _, trained, losses = run(tmp_path / "model", tmp_path / "out", ["*"], on, chosen)
    expected = torchs_losses(model, chosen)
    assert expected[-1] < expected[0] - 0.3
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    for name, parameter in model.named_parameters():
        found, wanted = trained[name], parameter.detach().numpy()
        if name.endswith("c_attn.bias"):
            # A bias of keys shifts all scores of a query: its gradient is rounding alone, which
            # Adam makes as large as any other.
            found, wanted = (np.delete(x, np.s_[32:64]) for x in (found, wanted))
        np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=name)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_adapters_learn_as_in_peft(kind, tmp_path):
    peft = pytest.importorskip("peft", reason="the oracle is PEFT")
    torch = pytest.importorskip("torch", reason="PEFT needs torch")
    model = torch_lm(tmp_path / "model", kind)
    what, chosen = LowRank(4, 16.0), settings(steps=STEPS, rate=4e-3)
    first = Learner(find_model(tmp_path / "model"), backend_of("ref", None), what)
    config = adapter_config(first)
    adapted = peft.get_peft_model(
        model,
        peft.LoraConfig(
            r=4, lora_alpha=16, target_modules=config["target_modules"],
            fan_in_fan_out=config["fan_in_fan_out"],
        ),
    )  # fmt: skip
    modules = dict(adapted.named_modules())
    with torch.no_grad():
        for layer in first.layers:
            module = modules[f"base_model.model.{_full(layer)}"]
            for factor in FACTORS:
                value = first.trained[factor_name(layer, factor)]
                getattr(module, f"lora_{factor}")["default"].weight.copy_(torch.tensor(value))
    _, trained, losses = run(tmp_path / "model", tmp_path / "out", what, "numba", chosen)
    expected = torchs_losses(adapted, chosen)
    assert expected[-1] < expected[0] - 0.03
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    learnt = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(learnt) == len(trained)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_peft_reads_what_is_written(kind, tmp_path):
    peft = pytest.importorskip("peft", reason="it must read the adapter, too")
    torch = pytest.importorskip("torch", reason="PEFT needs torch")
    model = torch_lm(tmp_path / "model", kind)
    out, tokens = tmp_path / "adapter", stream()[:20].astype(np.int64)[np.newaxis]
    stream().tofile(tmp_path / "train.bin")

    def chosen(length):
        return settings(steps=5, rate=2e-2)

    targets = ("all-linear",) if kind == "gpt2" else ("q_proj", "model.layers.1.mlp.down_proj")
    finetune(
        str(tmp_path / "model"), Data(tmp_path / "train.bin"), Outputs(out),
        LowRank(4, 16.0, targets), chosen, LoadOptions(backend="ref"),
    )  # fmt: skip
    adapted = peft.PeftModel.from_pretrained(model, out)
    with torch.no_grad():
        expected = adapted(torch.tensor(tokens)).logits.numpy()
    plain = load_model(tmp_path / "model", "ref")
    for made in (load_model(tmp_path / "model", "ref", adapter=out), plain.with_adapter(out)):
        np.testing.assert_allclose(made.forward(tokens), expected, atol=2e-5)
    assert np.abs(expected - plain.forward(tokens)).max() > 1e-2


def test_products_in_bf16_follow_the_curve(tmp_path):
    if "bf16" not in backend_of("numba", None).precisions:
        pytest.skip("this processor has no products in bf16")
    save_lm(tmp_path / "model", "gpt2")
    chosen, losses = settings(steps=30), {}
    for precision in ("f32", "bf16"):
        out = tmp_path / precision
        _, trained, losses[precision] = run(
            tmp_path / "model", out, ["*"], "numba", chosen, precision=precision
        )
        assert all(array.dtype == np.float32 for array in trained.values())
    assert losses["f32"] != losses["bf16"]
    np.testing.assert_allclose(losses["bf16"], losses["f32"], atol=0.02)


def test_parts_of_a_batch_learn_as_the_whole(tmp_path):
    save_lm(tmp_path / "model", "llama")
    whole = settings(steps=8, batch=6)
    parts = settings(steps=8, batch=2, accumulate=3)
    found = {}
    for name, chosen in (("whole", whole), ("parts", parts)):
        found[name] = run(tmp_path / "model", tmp_path / name, ["*"], "numba", chosen)[1:]
    (one, losses), (other, others) = found["whole"], found["parts"]
    np.testing.assert_allclose(losses, others, rtol=0, atol=1e-6)
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kind", ["Mixtral", pytest.param("GptOss", marks=pytest.mark.exhaustive)])
def test_experts_and_routers_learn_as_in_peft(kind, tmp_path):
    peft = pytest.importorskip("peft", reason="the oracle is PEFT")
    torch = pytest.importorskip("torch", reason="PEFT needs torch")
    folder, out = tmp_path / "model", tmp_path / "out"
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    model = tiny(folder, f"{kind}ForCausalLM", {**CONFIGS["llama"], **sizes}, seed=3)
    router = "gate" if kind == "Mixtral" else "router"
    what = LowRank(4, 16.0, ("experts", router, "q_proj"))
    learner = Learner(find_model(folder), backend_of("ref", None), what)
    # PEFT reads what is written, begins with the same values, and learns them.
    write_product(out, learner, learner.trained, {}, [], fresh=False)
    adapted = peft.PeftModel.from_pretrained(model, out, is_trainable=True)
    assert sum(p.requires_grad for p in adapted.parameters()) == len(learner.trained)
    chosen = settings(steps=STEPS, rate=4e-3)
    _, trained, losses = run(folder, out, what, "numba", chosen)
    expected = torchs_losses(adapted, chosen)
    assert np.ptp(expected) > 0.03  # a GptOss this small learns nothing, in torch either
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    write_product(out, learner, trained, {}, [], fresh=False)
    tokens = stream()[:20].astype(np.int64)[np.newaxis]
    with torch.no_grad():
        logits = adapted(torch.tensor(tokens)).logits.numpy()
    served = load_model(folder, "ref", adapter=out).forward(tokens)
    np.testing.assert_allclose(served, logits, atol=1e-3)
