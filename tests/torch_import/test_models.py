"""Architectures with random weights through torch.compile and torch.export, equal to torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")
transformers = pytest.importorskip("transformers", reason="these tests run its models")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import gptrs_torch  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.slow]
Made = tuple[nn.Module, dict[str, Any]]
TEXT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "init_std": 0.3,
    "pad_token_id": 0,
}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
ENCODERS = ("Bert", "Roberta", "Albert", "Electra", "MPNet", "ModernBert")
DECODERS = ("Llama", "Gemma", "Phi", "Qwen2", "Mistral", "GPTNeoX")
SEERS = ("ViT", "DeiT", "Dinov2", "Beit")


def built(name: str, suffix: str, **settings: Any) -> nn.Module:
    """Return a model of transformers with random weights."""
    special = (
        {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        if name in ENCODERS + DECODERS
        else {}
    )
    if name == "ModernBert":
        special |= {"cls_token_id": 1, "sep_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**special, **settings)
    return getattr(transformers, f"{name}{suffix}")(config)


def ids(count: int = 9) -> Any:
    return torch.randint(3, 99, (2, count))


def encoder(name: str) -> Made:
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    model = built(name, "Model", initializer_range=0.3, **TEXT)
    return model, {"input_ids": ids(), "attention_mask": mask}


def decoder(name: str) -> Made:
    heads = {} if name == "GPTNeoX" else {"num_key_value_heads": 2}
    model = built(name, "ForCausalLM", initializer_range=0.3, **TEXT, **heads)
    return model, {"input_ids": ids(), "use_cache": False}


def seer(name: str) -> Made:
    model = built(name, "Model", initializer_range=0.3, **IMAGE)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32)}


class Recurrent(nn.Module):
    """Two recurrent layers in both directions, and a classifier of each step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layers = kind(8, 16, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.layers(x)[0])


class UNet(nn.Module):
    """Down, and up again with what was on the way: transposed convolution and resize."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 8), self._block(8, 16), self._block(16, 24)])
        self.grow, self.first = nn.ConvTranspose2d(24, 16, 2, 2), self._block(32, 16)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.second, self.out, self.pool = self._block(24, 8), nn.Conv2d(8, 2, 1), nn.MaxPool2d(2)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def forward(self, x: Any) -> Any:
        a = self.down[0](x)
        b = self.down[1](self.pool(a))
        c = self.down[2](self.pool(b))
        d = self.first(torch.cat([self.grow(c), b], 1))
        return self.out(self.second(torch.cat([self.resize(d), a], 1)))


def image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
MODELS: dict[str, Callable[[], Made]] = {
    **{name: lambda name=name: encoder(name) for name in ENCODERS},
    **{name: lambda name=name: decoder(name) for name in DECODERS},
    **{name: lambda name=name: seer(name) for name in SEERS},
    "DistilBert": lambda: (
        built("DistilBert", "Model", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=37),
        {"input_ids": ids()},
    ),
    "GPT2": lambda: (
        built("GPT2", "LMHeadModel", vocab_size=99, n_embd=32, n_layer=2, n_head=4),
        {"input_ids": ids(), "use_cache": False},
    ),
    "T5 encoder": lambda: (built("T5", "EncoderModel", **T5), {"input_ids": ids()}),
    "T5": lambda: (
        built("T5", "Model", **T5),
        {"input_ids": ids(), "decoder_input_ids": ids(4), "use_cache": False},
    ),
    "Bart": lambda: (
        built("Bart", "Model", **SPEECH),
        {"input_ids": ids(), "decoder_input_ids": ids(4), "use_cache": False},
    ),
    "Whisper encoder": lambda: (
        built("Whisper", "Model", num_mel_bins=16, max_source_positions=20, **SPEECH).get_encoder(),
        {"input_features": torch.randn(1, 16, 40)},
    ),
    "ConvNext": lambda: (built("ConvNext", "Model", **STAGES), image()),
    "ResNet": lambda: (built("ResNet", "Model", embedding_size=8, **STAGES), image()),
    "RegNet": lambda: (
        built("RegNet", "Model", embedding_size=8, groups_width=4, **STAGES),
        image(),
    ),
    "MobileNetV2": lambda: (
        built("MobileNetV2", "Model", image_size=32, depth_multiplier=0.25),
        image(),
    ),
    "Swin": lambda: (
        built(
            "Swin",
            "Model",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        image(),
    ),
    "U-Net": lambda: (UNet(), {"x": torch.randn(2, 3, 32, 32)}),
    "LSTM": lambda: (Recurrent(nn.LSTM), {"x": torch.randn(2, 7, 8)}),
    "GRU": lambda: (Recurrent(nn.GRU), {"x": torch.randn(2, 7, 8)}),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tensors_of(output: Any) -> list[Any]:
    plain = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [each for each in pytree.tree_leaves(plain) if isinstance(each, torch.Tensor)]


def compare(found: Any, expected: Any) -> None:
    for mine, theirs in zip(tensors_of(found), tensors_of(expected), strict=True):
        scale = float(theirs.abs().max()) or 1.0
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_compiled_in_place(name: str) -> None:
    model, given = MODELS[name]()
    model.eval()
    # Without the setting torch runs recurrent layers itself, and nothing of ours is tried.
    with torch.inference_mode(), torch._dynamo.config.patch(allow_rnn=True):
        compare(torch.compile(model, backend="gptrs")(**given), model(**given))
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 1


@pytest.mark.parametrize("name", ["Bert", "GPT2", "ViT", "ConvNext", "ResNet", "U-Net", "GRU"])
def test_a_model_exported(name: str) -> None:
    model, given = MODELS[name]()
    model.eval()
    with torch.no_grad():
        program = torch.export.export(model, (), given, strict=False)
        compare(gptrs_torch.load(program).module(**given), model(**given))
