"""Idefics3 (Laurencon et al. 2024) and SmolVLM: a vision transformer that feeds a Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.nn import ACTIVATIONS, Embedding, LayerNorm, Linear, MixedCausalLMModule, RaggedStep
from gptrs_models.clip import Layer, TowerConfig
from gptrs_models.llama import Llama
from gptrs_models.llama_config import LlamaConfig
from gptrs_models.llama_kinds import KINDS
from gptrs_models.llama_kinds import read_config as read_text_config
from gptrs_models.vit import cut_into_patches

Settings = Mapping[str, object]
_NEARLY_ONE = np.float32(1 - 1e-6)


class Idefics3Config(Struct, frozen=True):
    """The settings of both parts; squares of `scale` x `scale` patches become one."""

    text: LlamaConfig
    vision: TowerConfig
    scale: int
    image_token: int


def read_config(settings: Settings) -> Idefics3Config:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    fields = ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    tied = fields.boolean("tie_word_embeddings", False)
    text, vision = _part(fields, "text_config"), _part(fields, "vision_config")
    defaults = {"model_type": "llama", "rms_norm_eps": 1e-5}
    text = ConfigFields(text, kind).overlaid({"tie_word_embeddings": tied}, defaults)
    if text["model_type"] not in KINDS:
        raise fields.error("text_config", f"has the `model_type` {text['model_type']!r:.80}")
    config = read_text_config(text)
    scale, tower = fields.integer("scale_factor", 2), _read_vision(vision, f"{kind}_vision")
    side = tower.image_size // tower.patch_size
    if side % scale:
        raise fields.error("scale_factor", f"must divide the {side} patches of a side")
    body = "model.text_model"
    return Idefics3Config(
        text=replace(config, names=replace(config.names, body=body)),
        vision=tower,
        scale=scale,
        image_token=fields.integer("image_token_id", 128257, minimum=0),
    )


def _part(fields: ConfigFields, name: str) -> Settings:
    found = fields.get(name, {})
    if not isinstance(found, Mapping):
        raise fields.error(name, "must be an object")
    return cast("Settings", found)


def _read_vision(settings: Settings, kind: str) -> TowerConfig:
    fields = ConfigFields(settings, kind)
    width, heads = fields.integer("hidden_size", 1152), fields.integer("num_attention_heads", 16)
    size, patch = fields.integer("image_size", 224), fields.integer("patch_size", 32)
    if width % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} heads")
    if patch > size:
        raise fields.error("patch_size", f"must be at most `image_size` ({size})")
    return TowerConfig(
        sigmoid=True,
        hidden_size=width,
        intermediate_size=fields.integer("intermediate_size", 3072),
        layers=fields.layers("num_hidden_layers", 12),
        heads=heads,
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
        epsilon=fields.number("layer_norm_eps", 1e-6),
        image_size=size,
        patch_size=patch,
        channels=fields.integer("num_channels", 3),
    )


class Vision(Module):
    """A vision transformer of square pictures, without a head."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        width, size = config.hidden_size, config.patch_size
        own = params / "embeddings"
        self.patch_weight = (own / "patch_embedding").tensor(
            "weight", (width, config.channels, size, size)
        )
        self.patch_bias = (own / "patch_embedding").tensor("bias", (width,))
        side = config.image_size // size
        self.positions = Embedding(own / "position_embedding", side * side, width)
        layers = params / "encoder" / "layers"
        self.layers = [Layer(config, layers / number) for number in range(config.layers)]
        self.post_layernorm = LayerNorm(params / "post_layernorm", width, config.epsilon)
        self._side = side

    def __call__(self, pictures: Tensor) -> Tensor:
        """[B, channels, S, S] -> the state of each patch, [B, T, C]."""
        width, _, size, _ = self.patch_weight.shape
        patches = cut_into_patches(pictures, size)
        weight = F.reshape(self.patch_weight, (width, patches.shape[2]))
        x = F.linear(patches, weight, self.patch_bias)
        x = x + self.positions(tensor(position_rows(self._side)))
        for layer in self.layers:
            x = layer(x)
        return self.post_layernorm(x)


def position_rows(side: int) -> np.ndarray:
    """Return the row of the position table for each patch, si64 [side * side].

    As in transformers, fractions of the side are compared in f32: where these are inexact, a patch
    may get the row before its own.
    """
    step = np.float32(1) / np.float32(side)
    count = int(np.ceil((1.0 - 1 / side) / (1 / side)))
    bounds = (1 / side + np.arange(count) * (1 / side)).astype(np.float32)
    fractions = np.minimum(np.arange(side, dtype=np.float32) * step, _NEARLY_ONE)
    buckets = np.searchsorted(bounds, fractions, side="right")
    return (buckets[:, np.newaxis] * side + buckets).reshape(-1).astype(np.int64)


class Connector(Module):
    """Squares of `scale` x `scale` patches become one vector of the language model."""

    def __init__(self, config: Idefics3Config, params: Params) -> None:
        inputs = config.vision.hidden_size * config.scale**2
        scope = params / "modality_projection" / "proj"
        self.proj = Linear(scope, inputs, config.text.hidden_size, bias=False)
        self._scale = config.scale

    def __call__(self, x: Tensor) -> Tensor:
        """[B, side * side, C] -> [B, (side / scale) ** 2, E]."""
        batch, count, width = x.shape
        scale, side = self._scale, int(count**0.5)
        less = side // scale
        x = F.reshape(x, (batch, less, scale, less, scale, width))
        x = F.transpose(x, (0, 1, 3, 2, 4, 5))
        return self.proj(F.reshape(x, (batch, less * less, scale * scale * width)))


class Idefics3(Llama, MixedCausalLMModule):
    """The language model, an `ImageLM`."""

    captures_on_disk = False
    capabilities = MixedCausalLMModule.capabilities
    image_mark = "<image>"

    def __init__(self, config: Idefics3Config, params: Params) -> None:
        super().__init__(config.text, params)
        if not 0 <= config.image_token < config.text.vocab_size:
            raise ModelError(
                f"`image_token_id` ({config.image_token}) is outside the model's "
                f"{config.text.vocab_size} tokens"
            )
        self.image_token, self.picture_size = config.image_token, config.vision.image_size
        side = config.vision.image_size // config.vision.patch_size
        self.picture_tokens = (side // config.scale) ** 2
        self.vision_model = Vision(config.vision, params / "model.vision_model")
        self.connector = Connector(config, params / "model.connector")
        self._see = jit(self._vectors)

    def image_vectors(self, pictures: np.ndarray) -> np.ndarray:
        """Return the vectors of pictures in a text, f32 [B, C, S, S] -> f32 [B, T, E]."""
        return self._see(tensor(pictures)).numpy()

    def image_prompt(self, rows: int, columns: int) -> str:
        """Return the text for an image of rows x columns tiles and one of the whole."""
        # The texts of transformers' `_prompt_split_image` and `_prompt_single_image`.
        edge, marks = "<fake_token_around_image>", self.image_mark * self.picture_tokens
        whole = f"{edge}<global-img>{marks}{edge}"
        if not rows and not columns:
            return whole
        lines = (
            "".join(f"{edge}<row_{row}_col_{column}>{marks}" for column in range(1, columns + 1))
            for row in range(1, rows + 1)
        )
        return "".join(f"{line}\n" for line in lines) + f"\n{whole}"

    @override
    def embeddings(self, step: RaggedStep[Tensor]) -> Tensor:
        return self.merged(super().embeddings(step))

    def _vectors(self, pictures: Tensor) -> Tensor:
        return self.connector(self.vision_model(pictures))


def load(settings: Settings, params: Params) -> Idefics3:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Idefics3(read_config(settings), params)
