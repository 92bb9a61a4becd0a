"""wav2vec 2.0 (Baevski et al. 2020), HuBERT and UniSpeech (Hsu, Wang et al. 2021) with CTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Module, Params, Tensor, jit, tensor
from gptrs.api.programs import dtypes
from gptrs.nn import ACTIVATIONS, BatchNorm2d, Computation, LayerNorm, Linear, captured_once
from gptrs_models.bart_blocks import Attention, BlockConfig

# The settings of wav2vec 2.0, HuBERT and UniSpeech in config.json.


_STRIDES = (5, 2, 2, 2, 2, 2, 2)
_KERNELS = (10, 3, 3, 3, 3, 2, 2)


class Wav2Vec2Config(Struct, frozen=True):
    """The settings that shape the computation, most under their names in config.json.

    `conv_layers` has channels, kernel and stride of each convolution. `group_norm`: the first one
    is normalized over time; otherwise each is normalized over channels.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    epsilon: float
    group_norm: bool
    feat_extract_activation: str
    conv_layers: tuple[tuple[int, int, int], ...]
    conv_bias: bool
    position_kernel: int
    position_groups: int
    position_batch_norm: bool
    norm_first: bool
    projection_norm: bool
    adapter_width: int | None


def read_config(settings: Mapping[str, object]) -> Wav2Vec2Config:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    kind = str(settings.get("model_type"))
    fields = ConfigFields(settings, kind)
    fields.require("quantization_config", None)
    _require_ctc(settings, kind)
    is_hubert, has_adapters = kind == "hubert", kind == "wav2vec2"
    if has_adapters:
        fields.require("add_adapter", False)
    norm_first = fields.boolean("do_stable_layer_norm", False)
    width, heads = fields.integer("hidden_size", 768), fields.integer("num_attention_heads", 12)
    if width % heads:
        raise fields.error("num_attention_heads", f"must divide the width {width}")
    groups = fields.integer("num_conv_pos_embedding_groups", 16)
    if width % groups:
        raise fields.error("num_conv_pos_embedding_groups", f"must divide the width {width}")
    adapted = norm_first and has_adapters and fields.get("adapter_attn_dim") is not None
    return Wav2Vec2Config(
        vocab_size=fields.integer("vocab_size", 32),
        hidden_size=width,
        num_hidden_layers=fields.layers("num_hidden_layers", 12),
        num_attention_heads=heads,
        intermediate_size=fields.integer("intermediate_size", 3072),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=fields.number("layer_norm_eps", 1e-5),
        group_norm=fields.choice("feat_extract_norm", ("group", "layer"), "group") == "group",
        feat_extract_activation=fields.choice("feat_extract_activation", ACTIVATIONS, "gelu"),
        conv_layers=_conv_layers(fields),
        conv_bias=fields.boolean("conv_bias", False),
        position_kernel=fields.integer("num_conv_pos_embeddings", 128),
        position_groups=groups,
        position_batch_norm=is_hubert and fields.boolean("conv_pos_batch_norm", False),
        norm_first=norm_first,
        projection_norm=not is_hubert or fields.boolean("feat_proj_layer_norm", True),
        adapter_width=fields.integer("adapter_attn_dim") if adapted else None,
    )


def _conv_layers(fields: ConfigFields) -> tuple[tuple[int, int, int], ...]:
    widths = fields.integers("conv_dim", (512,) * len(_KERNELS))
    kernels = fields.integers("conv_kernel", _KERNELS)
    strides = fields.integers("conv_stride", _STRIDES)
    for name, found in (("conv_kernel", kernels), ("conv_stride", strides)):
        if len(found) != len(widths):
            raise fields.error(name, f"must have the {len(widths)} layers of `conv_dim`")
    return tuple(zip(widths, kernels, strides, strict=True))


def _require_ctc(settings: Mapping[str, object], kind: str) -> None:
    """Raise ModelError for heads other than CTC, which would be dropped."""
    found = settings.get("architectures")
    names = cast("list[object]", found) if isinstance(found, list) else []
    if names and not str(names[0]).endswith("ForCTC"):
        raise ModelError(
            f"a `{kind}` model is supported with the head of CTC only, `architectures` has"
            f" {str(names[0])!r:.80}",
            hint="take a model that was fine-tuned for speech recognition (ASR)",
        )


_EPSILON = 1e-5
"""Epsilon of the norms of convolutions and adapters, which the config does not set."""


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """[B, T, inputs] and a weight [outputs, inputs, K] -> [B, T', outputs].

    Computed as a 2-D convolution of one row: backends have kernels for it that do not materialize
    the windows, which take 0.6 GB for half a minute.
    """
    outputs, inputs, kernel = weight.shape
    image = F.conv2d(
        F.expand_dims(x, 1),
        F.reshape(weight, (outputs, inputs, 1, kernel)),
        bias,
        (1, stride),
        ((0, 0), padding),
    )
    return F.squeeze(image, 1)


class FrameConvolution(Module):
    """A convolution, an optional norm, and the activation."""

    def __init__(self, config: Wav2Vec2Config, params: Params, number: int) -> None:
        inputs = config.conv_layers[number - 1][0] if number else 1
        outputs, kernel, self._stride = config.conv_layers[number]
        self.weight = params.tensor("conv.weight", (outputs, inputs, kernel))
        self.bias = params.tensor("conv.bias", (outputs,)) if config.conv_bias else None
        self._over_time = config.group_norm
        # With group norm only the first convolution has a norm; with layer norm all have.
        has_norm = not config.group_norm or not number
        self.layer_norm = LayerNorm(params / "layer_norm", outputs, _EPSILON) if has_norm else None
        self._activation = ACTIVATIONS[config.feat_extract_activation]

    def __call__(self, x: Tensor, counts: Tensor) -> Tensor:
        """[B, T, inputs] -> [B, T / stride, outputs], whose first `counts`, si64 [B], are sound."""
        x = convolved(x, self.weight, self.bias, self._stride)
        norm = self.layer_norm
        if norm is None:
            return self._activation(x)
        if not self._over_time:
            return self._activation(norm(x))
        assert norm.weight is not None
        assert norm.bias is not None
        return self._activation(normalized_over_time(x, counts) * norm.weight + norm.bias)


def is_sound(x: Tensor, counts: Tensor) -> Tensor:
    """Return which frames of x [B, T, C] are sound and not padding, i1 [B, T, 1]."""
    batch, length = x.shape[:2]
    return F.reshape(F.arange(length), (1, length, 1)) < F.reshape(counts, (batch, 1, 1))


def normalized_over_time(x: Tensor, counts: Tensor) -> Tensor:
    """Normalize each channel of x [B, T, C] by its first `counts`, si64 [B], frames.

    Equals torch's `GroupNorm` with a group per channel on the sound without padding.
    """
    # Statistics of the sound alone, or results would depend on the padding of the batch.
    sound = F.cast(is_sound(x, counts), x.dtype)
    total = F.reshape(F.cast(counts, x.dtype), (x.shape[0], 1, 1))
    mean = F.sum(x * sound, axis=1, keepdims=True) / total
    apart = x - mean
    variance = F.sum(F.square(apart) * sound, axis=1, keepdims=True) / total
    return apart * F.rsqrt(variance + _EPSILON)


class Positions(Module):
    """A grouped convolution over many frames that encodes the position of a frame."""

    def __init__(self, config: Wav2Vec2Config, params: Params) -> None:
        width, kernel = config.hidden_size, config.position_kernel
        scope, shape = params / "conv", (width, width // config.position_groups, kernel)
        self.batch_norm = (
            BatchNorm2d(params / "batch_norm", width) if config.position_batch_norm else None
        )
        plain = config.position_batch_norm
        self.kernels = scope.tensor("weight", shape) if plain else NormedWeight(scope, shape)
        self.bias = scope.tensor("bias", (width,))
        self._groups = config.position_groups
        self._activation = ACTIVATIONS[config.feat_extract_activation]

    def __call__(self, x: Tensor, sound: Tensor) -> Tensor:
        """[B, T, C], 0 where `sound`, [B, T, 1], is 0 -> [B, T, C]."""
        if self.batch_norm is not None:
            x = self.batch_norm(x) * sound
        kernels = self.kernels
        weight = kernels() if isinstance(kernels, NormedWeight) else kernels
        outputs, width, kernel = weight.shape
        share = outputs // self._groups
        # torch pads both sides by K / 2 and drops the last frame of even kernels; this pads one
        # less instead.
        sides = (kernel // 2, (kernel - 1) // 2)
        parts = [
            convolved(
                F.slice_axis(x, 2, group * width, width),
                F.slice_axis(weight, 0, group * share, share),
                F.slice_axis(self.bias, 0, group * share, share),
                padding=sides,
            )
            for group in range(self._groups)
        ]
        return self._activation(F.concat(parts, axis=2))


class NormedWeight(Module):
    """A weight [O, I, K] that is stored as a norm per K and a direction.

    Names follow torch's `parametrizations` or the older `weight_norm`.
    """

    def __init__(self, params: Params, shape: tuple[int, int, int]) -> None:
        old = "weight_g" in params
        names = ("weight_g", "weight_v") if old else ("original0", "original1")
        scope = params if old else params / "parametrizations.weight"
        self.length = scope.tensor(names[0], (1, 1, shape[2]))
        self.direction = scope.tensor(names[1], shape)

    def __call__(self) -> Tensor:
        """Return the weight."""
        squares = F.sum(F.square(self.direction), axis=(0, 1), keepdims=True)
        return self.direction * (self.length / F.sqrt(squares))


class AttentionAdapter(Module):
    """A small MLP after a layer, with weights for one language."""

    def __init__(self, params: Params, width: int, inner: int) -> None:
        self.norm = LayerNorm(params / "norm", width, _EPSILON)
        self.linear_1 = Linear(params / "linear_1", width, inner)
        self.linear_2 = Linear(params / "linear_2", inner, width)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.linear_2(F.relu(self.linear_1(self.norm(x))))


class Layer(Module):
    """Self-attention and affine layers, pre-norm or post-norm."""

    def __init__(self, config: Wav2Vec2Config, params: Params) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        block = BlockConfig(
            width, config.num_attention_heads, inner, config.hidden_act, config.norm_first
        )
        self.attention = Attention(block, params / "attention")
        self.layer_norm = LayerNorm(params / "layer_norm", width, config.epsilon)
        forward = params / "feed_forward"
        self.intermediate_dense = Linear(forward / "intermediate_dense", width, inner)
        self.output_dense = Linear(forward / "output_dense", inner, width)
        self.final_layer_norm = LayerNorm(params / "final_layer_norm", width, config.epsilon)
        self.adapter_layer = (
            None
            if config.adapter_width is None
            else AttentionAdapter(params / "adapter_layer", width, config.adapter_width)
        )
        self._activation = ACTIVATIONS[config.hidden_act]
        self._norm_first = config.norm_first

    @captured_once
    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, C], a mask of `F.attention`, i1 [B, 1, 1, T] -> [B, T, C]."""
        if self._norm_first:
            x = x + self._attended(self.layer_norm(x), mask)
            x = x + self._widened(self.final_layer_norm(x))
            return x if self.adapter_layer is None else x + self.adapter_layer(x)
        x = self.layer_norm(x + self._attended(x, mask))
        return self.final_layer_norm(x + self._widened(x))

    def _attended(self, x: Tensor, mask: Tensor) -> Tensor:
        attention = self.attention
        keys, values = attention.keys_values(x)
        return attention.merged(F.attention(attention.query(x), keys, values, mask=mask))

    def _widened(self, x: Tensor) -> Tensor:
        return self.output_dense(self._activation(self.intermediate_dense(x)))


class Encoder(Module):
    """Positions and layers over the frames of a sound."""

    def __init__(self, config: Wav2Vec2Config, params: Params) -> None:
        self.pos_conv_embed = Positions(config, params / "pos_conv_embed")
        self.layer_norm = LayerNorm(params / "layer_norm", config.hidden_size, config.epsilon)
        layers = params / "layers"
        self.layers = [Layer(config, layers / index) for index in range(config.num_hidden_layers)]
        self._norm_first = config.norm_first

    def __call__(self, x: Tensor, counts: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]; what follows the first `counts`, si64 [B], frames is padding."""
        seen = is_sound(x, counts)
        sound = F.cast(seen, x.dtype)
        x = x * sound
        x = x + self.pos_conv_embed(x, sound)
        x = x if self._norm_first else self.layer_norm(x)
        mask = F.reshape(seen, (x.shape[0], 1, 1, x.shape[1]))
        for layer in self.layers:
            x = layer(x, mask)
        return self.layer_norm(x) if self._norm_first else x


def _frames_behind(counts: Tensor, layer: tuple[int, int, int]) -> Tensor:
    """Return the frames after a convolution, si64 [B] -> the same; there is one at least."""
    _, kernel, stride = layer
    return F.floor_divide(counts - kernel, stride) + 1


_SAMPLES = 160_000
"""Ten seconds: the length of sounds in other formats if nothing says another one."""


class Wav2Vec2(Module):
    """Token scores for each frame of raw sound, a `CTCModel`."""

    capabilities = frozenset({"ctc"})

    def __init__(self, config: Wav2Vec2Config, kind: str, params: Params) -> None:
        self.config, body = config, params / kind.replace("-", "_")
        layers = body / "feature_extractor.conv_layers"
        self.convolutions = [
            FrameConvolution(config, layers / index, index)
            for index in range(len(config.conv_layers))
        ]
        projection, width = body / "feature_projection", config.conv_layers[-1][0]
        self.feature_norm = (
            LayerNorm(projection / "layer_norm", width, config.epsilon)
            if config.projection_norm
            else None
        )
        self.projection = Linear(projection / "projection", width, config.hidden_size)
        self.encoder = Encoder(config, body / "encoder")
        self.lm_head = Linear(params / "lm_head", config.hidden_size, config.vocab_size)
        self._score = jit(self._scores)

    @property
    def vocab_size(self) -> int:
        """The number of token ids, which is the last axis of the logits."""
        return self.config.vocab_size

    @property
    def frame_samples(self) -> int:
        """Samples between two frames."""
        return int(np.prod([stride for _, _, stride in self.config.conv_layers]))

    def frame_count(self, samples: int) -> int:
        """Return the number of frames of so many samples; 0 if the sound is too short."""
        return self._counts(samples)[-1]

    def score_frames(self, samples: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Return the logits f32 [B, T, V] of the frames of sounds f32 [B, N].

        Row b has `lengths[b]` samples, followed by padding, which does not affect its first
        `frame_count(lengths[b])` frames. ModelError for a sound without a frame.
        """
        if min(map(self.frame_count, lengths)) < 1:
            raise ModelError(f"{min(lengths)} samples are too few for one frame")
        counts = np.array([self._counts(length) for length in lengths], np.int64).T
        return self._score(
            tensor(samples[..., np.newaxis]), [tensor(count) for count in counts]
        ).numpy()

    def computation(self) -> Computation:
        """Return the logits of the frames of sounds of one length, padded; see `Computation`.

        `lengths` are the samples of each sound before its padding, at least those of one frame.
        """

        def outputs(input_values: Tensor, lengths: Tensor) -> dict[str, Tensor]:
            counts = list(accumulate(self.config.conv_layers, _frames_behind, initial=lengths))
            sound = F.reshape(input_values, (*input_values.shape, 1))
            return {"logits": self._scores(sound, counts[1:])}

        inputs: dict[str, tuple[dtypes.DType, tuple[int | str, ...]]] = {
            "input_values": (dtypes.f32, ("batch", "samples")),
            "lengths": (dtypes.si64, ("batch",)),
        }
        return Computation(outputs, inputs, {"samples": _SAMPLES})

    def _counts(self, samples: int) -> list[int]:
        """Return the number of frames after each convolution."""
        layers = self.config.conv_layers

        def behind(count: int, layer: tuple[int, int, int]) -> int:
            _, kernel, stride = layer
            return max((count - kernel) // stride + 1, 0)

        return list(accumulate(layers, behind, initial=samples))[1:]

    def _scores(self, samples: Tensor, counts: Sequence[Tensor]) -> Tensor:
        x = samples
        for convolution, count in zip(self.convolutions, counts, strict=True):
            x = convolution(x, count)
        x = x if self.feature_norm is None else self.feature_norm(x)
        return self.lm_head(self.encoder(self.projection(x), counts[-1]))


def load(settings: Mapping[str, object], params: Params) -> Wav2Vec2:
    """Build the model from config.json and its weights; ModelError if either is unsupported."""
    return Wav2Vec2(read_config(settings), str(settings["model_type"]), params)
