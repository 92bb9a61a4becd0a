"""CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): images and texts in one space.

SigLIP has no class token, attends to texts in both directions and pools images by attention. SigLIP
2 (Tschannen et al. 2025, NaFlex) reads images of any size, cut to whole patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import (
    ACTIVATIONS,
    Computation,
    Embedding,
    LayerNorm,
    Linear,
    captured_once,
    merge_heads,
    self_attention,
    split_heads,
)
from gptrs_models.image_encoder import ImageVectors
from gptrs_models.vit import (
    cut_into_patches,
    linear_weights,
    require_a_patch,
    require_image_size,
    resized_positions,
)

# The config of CLIP, SigLIP and SigLIP 2: an image tower and a text tower.


Settings = Mapping[str, object]


class TowerConfig(Struct, frozen=True):
    """The settings that shape a tower; `sigmoid`: SigLIP, `resizes`: takes images of any size.

    Text towers have `vocab_size`, `context`, the end token, and the `outputs` of their head; image
    towers have `image_size`, `patch_size` and `channels`.
    """

    sigmoid: bool
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    hidden_act: str
    epsilon: float
    causal: bool = False
    vocab_size: int = 0
    context: int = 0
    end_token: int = 0
    outputs: int = 0
    image_size: int = 0
    patch_size: int = 0
    channels: int = 0
    resizes: bool = False


class ImageTextConfig(Struct, frozen=True):
    """The towers, and the width of CLIP's vectors; image-only models have no text tower."""

    vision: TowerConfig
    text: TowerConfig | None
    width: int


def read_config(settings: Settings) -> ImageTextConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    sigmoid, fields = kind.startswith("siglip"), ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    _refuse_heads(fields)
    width = fields.integer("projection_dim", 512)
    if kind.endswith("_vision_model"):
        return ImageTextConfig(_vision(settings, kind, sigmoid), None, width)
    text, vision = (_part(fields, f"{name}_config") for name in ("text", "vision"))
    return ImageTextConfig(
        _vision(vision, f"{kind}_vision_model", sigmoid),
        _text(text, f"{kind}_text_model", sigmoid),
        width,
    )


def _refuse_heads(fields: ConfigFields) -> None:
    names = fields.get("architectures")
    listed = cast("list[object]", names) if isinstance(names, list) else []
    if any("For" in str(name) for name in listed):
        raise ModelError(f"the head of {str(listed[0])!r:.80} is not supported")


def _part(fields: ConfigFields, name: str) -> Settings:
    """Return the settings of a tower; `.._config_dict` of old files takes precedence."""
    found = fields.get(f"{name}_dict") or fields.get(name, {})
    if not isinstance(found, Mapping):
        raise fields.error(name, "must be an object")
    return cast("Settings", found)


def _vision(settings: Settings, kind: str, sigmoid: bool) -> TowerConfig:
    fields = ConfigFields(settings, kind)
    fields.require("vision_use_head", True)
    resizes = kind.startswith("siglip2")
    size = fields.integer("image_size", 224)
    patch = fields.integer("patch_size", 16 if sigmoid else 32)
    if resizes:
        size = math.isqrt(fields.integer("num_patches", 256)) * patch
    if patch > size:
        raise fields.error("patch_size", f"must be at most `image_size` ({size})")
    return replace(
        _shared(fields, sigmoid, 768, 3072, 12),
        image_size=size,
        patch_size=patch,
        channels=fields.integer("num_channels", 3),
        resizes=resizes,
    )


def _text(settings: Settings, kind: str, sigmoid: bool) -> TowerConfig:
    fields = ConfigFields(settings, kind)
    defaults = (768, 3072, 12) if sigmoid else (512, 2048, 8)
    return replace(
        _shared(fields, sigmoid, *defaults),
        causal=not sigmoid,
        vocab_size=fields.integer("vocab_size", 32000 if sigmoid else 49408),
        context=fields.integer("max_position_embeddings", 64 if sigmoid else 77),
        end_token=fields.integer("eos_token_id", 49407, minimum=0),
        outputs=fields.integer("projection_size", fields.integer("hidden_size", 768)),
    )


def _shared(fields: ConfigFields, sigmoid: bool, width: int, inner: int, heads: int) -> TowerConfig:
    """Read the settings common to both towers, with these defaults."""
    width = fields.integer("hidden_size", width)
    heads = fields.integer("num_attention_heads", heads)
    if width % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} heads")
    activation = "gelu_pytorch_tanh" if sigmoid else "quick_gelu"
    return TowerConfig(
        sigmoid=sigmoid,
        hidden_size=width,
        intermediate_size=fields.integer("intermediate_size", inner),
        layers=fields.layers("num_hidden_layers", 12),
        heads=heads,
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, activation),
        epsilon=fields.number("layer_norm_eps", 1e-6 if sigmoid else 1e-5),
    )


class Attention(Module):
    """Self-attention, bidirectional or causal."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        width = config.hidden_size
        self.q_proj = Linear(params / "q_proj", width, width)
        self.k_proj = Linear(params / "k_proj", width, width)
        self.v_proj = Linear(params / "v_proj", width, width)
        self.out_proj = Linear(params / "out_proj", width, width)
        self.n_heads, self.causal = config.heads, config.causal

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return self.out_proj(self_attention(x, projections, self.n_heads, causal=self.causal))


class MLP(Module):
    """Two affine layers with the configured activation between them."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.fc1 = Linear(params / "fc1", width, inner)
        self.fc2 = Linear(params / "fc2", inner, width)
        self._activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.fc2(self._activation(self.fc1(x)))


class Layer(Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        width, epsilon = config.hidden_size, config.epsilon
        self.layer_norm1 = LayerNorm(params / "layer_norm1", width, epsilon)
        self.self_attn = Attention(config, params / "self_attn")
        self.layer_norm2 = LayerNorm(params / "layer_norm2", width, epsilon)
        self.mlp = MLP(config, params / "mlp")

    @captured_once
    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


def _layers(config: TowerConfig, params: Params) -> list[Layer]:
    scope = params / "encoder" / "layers"
    return [Layer(config, scope / number) for number in range(config.layers)]


class Pooling(Module):
    """Attention of one learned query to all patches, and an MLP (SigLIP)."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        width, own = config.hidden_size, params / "attention"
        self.probe = params.tensor("probe", (1, 1, width))
        self.in_proj_weight = own.tensor("in_proj_weight", (3 * width, width))
        self.in_proj_bias = own.tensor("in_proj_bias", (3 * width,))
        self.out_proj = Linear(own / "out_proj", width, width)
        self.layernorm = LayerNorm(params / "layernorm", width, config.epsilon)
        self.mlp = MLP(config, params / "mlp")
        self.n_heads = config.heads

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, C]."""
        batch, _, width = x.shape
        weights = F.split(self.in_proj_weight, 3, axis=0)
        biases = F.split(self.in_proj_bias, 3, axis=0)
        inputs = (F.broadcast_to(self.probe, (batch, 1, width)), x, x)
        query, key, value = (
            F.swap_axes(split_heads(F.linear(part, weight, bias), self.n_heads), 1, 2)
            for part, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        mixed = F.swap_axes(F.attention(query, key, value), 1, 2)
        found = self.out_proj(merge_heads(mixed))
        return F.squeeze(found + self.mlp(self.layernorm(found)), 1)


class VisionTower(Module):
    """A vision transformer from the patches of an image to a vector."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        self.config, width, size = config, config.hidden_size, config.patch_size
        embeddings = params / "embeddings"
        patches = embeddings / "patch_embedding"
        self.patch_weight = patches.tensor("weight", _patch_shape(config))
        self.patch_bias = patches.tensor("bias", (width,)) if config.sigmoid else None
        self.class_embedding = None
        rows = (config.image_size // size) ** 2
        if not config.sigmoid:
            self.class_embedding = embeddings.tensor("class_embedding", (width,))
            rows += 1
        self.positions = Embedding(embeddings / "position_embedding", rows, width)
        self.pre_layernorm = (
            # Misspelled in the checkpoints.
            None if config.sigmoid else LayerNorm(params / "pre_layrnorm", width, config.epsilon)
        )
        self.layers = _layers(config, params)
        self.post_layernorm = LayerNorm(params / "post_layernorm", width, config.epsilon)
        self.head = Pooling(config, params / "head") if config.sigmoid else None

    def __call__(self, images: Tensor) -> list[Tensor]:
        """[B, channels, H, W] -> the embeddings, the state after each layer, the vector [B, C]."""
        width = self.config.hidden_size
        patches = cut_into_patches(images, self.config.patch_size)
        weight = self.patch_weight
        if self.config.resizes:  # pixels of a patch, channels last
            size, channels = self.config.patch_size, self.config.channels
            weight = F.transpose(F.reshape(weight, (width, size, size, channels)), (0, 3, 1, 2))
        weight = F.reshape(weight, (width, patches.shape[2]))
        x = F.linear(patches, weight, self.patch_bias)
        if self.class_embedding is not None:
            first = F.broadcast_to(self.class_embedding, (x.shape[0], 1, width))
            x = F.concat([first, x], axis=1)
        x = x + self._positions(images)
        states = [x if self.pre_layernorm is None else self.pre_layernorm(x)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        if self.head is not None:
            return [*states, self.head(self.post_layernorm(states[-1]))]
        first = F.squeeze(F.slice_axis(states[-1], 1, 0, 1), 1)
        return [*states, self.post_layernorm(first)]

    def _positions(self, images: Tensor) -> Tensor:
        """Return the position embeddings of patches, resized for other grids."""
        config, own = self.config, self.positions.table()
        size, grid = config.patch_size, config.image_size // config.patch_size
        rows, columns = images.shape[2] // size, images.shape[3] // size
        if not config.resizes or (rows, columns) == (grid, grid):
            return own
        whole = F.expand_dims(own, 0)
        return F.squeeze(resized_positions(whole, grid, (rows, columns), linear_weights), 0)


def _patch_shape(config: TowerConfig) -> tuple[int, ...]:
    width, size = config.hidden_size, config.patch_size
    if config.resizes:
        return width, size * size * config.channels
    return width, config.channels, size, size


class TextTower(Module):
    """A text transformer; its vector is the state of one token."""

    def __init__(self, config: TowerConfig, params: Params) -> None:
        self.config, width, embeddings = config, config.hidden_size, params / "embeddings"
        self.tokens = Embedding(embeddings / "token_embedding", config.vocab_size, width)
        self.positions = Embedding(embeddings / "position_embedding", config.context, width)
        self.layers = _layers(config, params)
        self.final_layer_norm = LayerNorm(params / "final_layer_norm", width, config.epsilon)
        self.head = Linear(params / "head", width, config.outputs) if config.sigmoid else None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Int [B, T] -> [B, C]."""
        batch, length = tokens.shape
        x = self.tokens(tokens) + F.slice_axis(self.positions.table(), 0, 0, length)
        for layer in self.layers:
            x = layer(x)
        x = self.final_layer_norm(x)
        if self.head is not None:
            # As in transformers the last position, even if it is padding: texts are padded to the
            # context.
            return self.head(F.squeeze(F.slice_axis(x, 1, length - 1, 1), 1))
        shape = (batch, 1, self.config.hidden_size)
        ends = F.broadcast_to(F.reshape(self._ends(tokens), (batch, 1, 1)), shape)
        return F.squeeze(F.gather(x, ends, axis=1), 1)

    def _ends(self, tokens: Tensor) -> Tensor:
        """Return the index of the end token of each text, int [B].

        Older files declare end token 2, but mean the last token of the vocabulary.
        """
        end = self.config.end_token
        return F.argmax(tokens if end == 2 else F.cast(F.equal(tokens, end), tokens.dtype), axis=1)


class ImageEncoder(ImageVectors):
    """The vision tower, an `ImageEmbedder`."""

    def __init__(self, config: ImageTextConfig, params: Params) -> None:
        vision = config.vision
        processor = "SiglipImageProcessor" if vision.sigmoid else "CLIPImageProcessor"
        super().__init__(vision.channels, "Siglip2ImageProcessor" if vision.resizes else processor)
        self.config = config
        inside = "vision_model.post_layernorm.weight" in params
        self.vision_model = VisionTower(vision, params / "vision_model" if inside else params)
        self.visual_projection = (
            Linear(params / "visual_projection", vision.hidden_size, config.width, bias=False)
            if "visual_projection.weight" in params
            else None
        )

    def computation(self) -> Computation:
        """Return the vectors of images of one size; see `Computation`."""
        vision = self.config.vision
        shape = ("batch", vision.channels, "height", "width")
        size = {"height": vision.image_size, "width": vision.image_size}

        def outputs(pixel_values: Tensor) -> dict[str, Tensor]:
            return {"image_embeds": self.vectors(pixel_values)}

        inputs: dict[str, tuple[dtypes.DType, tuple[int | str, ...]]] = {
            "pixel_values": (dtypes.f32, shape)
        }
        return Computation(outputs, inputs, size)

    @override
    def require_size(self, images: np.ndarray) -> None:
        if self.config.vision.resizes:
            require_a_patch(self.config.vision.patch_size, images)
            return
        size = self.config.vision.image_size
        require_image_size("siglip" if self.config.vision.sigmoid else "clip", size, images)

    @override
    def states(self, images: Tensor) -> Iterator[Tensor]:
        yield from self.vision_model(images)[:-1]

    @override
    def vectors(self, images: Tensor) -> Tensor:
        found = self.vision_model(images)[-1]
        return found if self.visual_projection is None else self.visual_projection(found)


class ImageText(ImageEncoder):
    """Both towers, an `ImageTextScorer`."""

    capabilities = ImageEncoder.capabilities | {"image_text"}

    def __init__(self, config: ImageTextConfig, text: TowerConfig, params: Params) -> None:
        super().__init__(config, params)
        self.context_length, self.vocab_size = text.context, text.vocab_size
        self.pads_texts = self.independent_scores = text.sigmoid
        self.text_model = TextTower(text, params / "text_model")
        self.text_projection = (
            None
            if text.sigmoid
            else Linear(params / "text_projection", text.hidden_size, config.width, bias=False)
        )
        shape = (1,) if text.sigmoid else ()
        self.logit_scale = params.tensor("logit_scale", shape)
        self.logit_bias = params.tensor("logit_bias", shape) if text.sigmoid else None
        self._texts = jit(self._text_vectors, dynamic={"tokens": ("B", "T")})

    def embed_texts(self, tokens: np.ndarray) -> np.ndarray:
        """Return the vector of each text, si64 [B, T] -> f32 [B, E]."""
        return self._texts(tensor(tokens)).numpy()

    @override
    def computation(self) -> Computation:
        """Return the vectors of images of one size, and of texts; see `Computation`."""
        images = super().computation()

        def outputs(pixel_values: Tensor, input_ids: Tensor) -> dict[str, Tensor]:
            vectors = images.function(pixel_values)
            return {**vectors, "text_embeds": self._text_vectors(input_ids)}

        texts = {"input_ids": (dtypes.si64, ("texts", "sequence"))}
        return Computation(outputs, {**images.inputs, **texts}, images.fixed)

    def scale_and_bias(self) -> tuple[float, float]:
        """Return the factor of the cosines, and the bias added afterwards."""
        bias = 0.0 if self.logit_bias is None else float(self.logit_bias.numpy().item())
        return float(np.exp(self.logit_scale.numpy()).item()), bias

    def _text_vectors(self, tokens: Tensor) -> Tensor:
        found = self.text_model(tokens)
        return found if self.text_projection is None else self.text_projection(found)


def load(settings: Mapping[str, object], params: Params) -> ImageEncoder:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    config = read_config(settings)
    if config.text is None:
        return ImageEncoder(config, params)
    return ImageText(config, config.text, params)
