"""The modules of sentence-transformers that a model's folder lists: pooling and steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, cast

import numpy as np
from msgspec import Struct, field

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted
from gptrs.strict_json import record_of
from gptrs_runtime.sources.model_folder import (
    MODEL_CONFIG,
    MODULES,
    MOST_MODULES,
    PACKAGE,
    TRANSFORMER_CONFIG,
    ModuleEntry,
)
from gptrs_runtime.sources.model_source import CONFIG, ModelSource
from gptrs_runtime.text_batches import read_prompts
from gptrs_runtime.torch_activations import ACTIVATIONS, torch_activation

# Pooling of token vectors to text vectors, as in sentence-transformers.


_SMALLEST_SUM: Final = 1e-9
"""Lower bound of the divisor of a weighted sum."""


class Pooling(Struct, frozen=True):
    """The pooling modes of a text; the vectors of several are concatenated.

    `modes` are names in `MODES`. Without `include_prompt` the tokens of the prompt are left out.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True

    def __call__(self, vectors: np.ndarray, mask: np.ndarray, prompt: int = 0) -> np.ndarray:
        """Pool f32 [B, T, D] with mask i1 [B, T], true at tokens -> f32 [B, D * modes].

        `prompt` is the number of leading prompt tokens of each text. A text without remaining
        tokens gives zeros, or its first vector for `cls`. Sums are computed in f64.
        """
        if not self.include_prompt:
            mask = mask.copy()
            mask[:, :prompt] = False
        wide = vectors.astype(np.float64)
        parts = [MODES[mode](wide, mask) for mode in self.modes]
        return np.concatenate(parts, axis=-1).astype(np.float32)


_Weights = Callable[[np.ndarray], np.ndarray]
"""Maps the mask i1 [B, T] to the weight of each token, f64 [B, T]."""


def _weighted(weights: _Weights) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def pool(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.matmul(weights(mask)[:, np.newaxis], vectors)[:, 0]  # (B, 1, T) (B, T, D)

    return pool


def _first(mask: np.ndarray) -> np.ndarray:
    return (mask & (np.cumsum(mask, axis=1) == 1)).astype(np.float64)


def _first_of_all(mask: np.ndarray) -> np.ndarray:
    """The first token of a text where no token remains, as in sentence-transformers."""
    found = _first(mask)
    found[~mask.any(axis=1), 0] = 1.0
    return found


def _last(mask: np.ndarray) -> np.ndarray:
    return _first(mask[:, ::-1])[:, ::-1]


def _equal(mask: np.ndarray) -> np.ndarray:
    return mask / np.maximum(_count(mask), _SMALLEST_SUM)


def _equal_by_root(mask: np.ndarray) -> np.ndarray:
    return mask / np.sqrt(np.maximum(_count(mask), _SMALLEST_SUM))


def _by_position(mask: np.ndarray) -> np.ndarray:
    """Token i has weight i + 1, whether or not a prompt is excluded (Muennighoff 2022)."""
    weights = mask * np.arange(1.0, mask.shape[1] + 1)
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), _SMALLEST_SUM)


def _count(mask: np.ndarray) -> np.ndarray:
    return mask.sum(axis=1, keepdims=True, dtype=np.float64)


def _largest(vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    found = np.where(mask[:, :, np.newaxis], vectors, -np.inf).max(axis=1)
    return np.where(mask.any(axis=1, keepdims=True), found, 0.0)


MODES: Final[dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "cls": _weighted(_first_of_all),
    "max": _largest,
    "mean": _weighted(_equal),
    "mean_sqrt_len_tokens": _weighted(_equal_by_root),
    "weightedmean": _weighted(_by_position),
    "lasttoken": _weighted(_last),
}
"""Pooling modes by sentence-transformers name, in its order of concatenation. Each maps vectors f64
[B, T, D] and the mask i1 [B, T] to f64 [B, D].
"""


# Steps on the vector of a text after pooling: normalization and affine layers.


_SMALLEST_NORM: Final = 1e-12
"""Lower bound of the divisor, as in torch's `normalize`."""

_NORM_EPSILON: Final = 1e-5
"""The default epsilon of `torch.nn.LayerNorm`, which sentence-transformers uses."""

VectorStep = Callable[[np.ndarray], np.ndarray]
"""Maps f32 [N, D] to f32 [N, E]."""


class Normalize(Struct, frozen=True):
    """Divides each vector by its Euclidean length; zeros remain zeros."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, D]."""
        length = np.sqrt(np.square(x, dtype=np.float64).sum(axis=-1, keepdims=True))
        return (x / np.maximum(length, _SMALLEST_NORM)).astype(np.float32)


class Truncate(Struct, frozen=True):
    """Keeps the first `size` elements of each vector.

    For models trained for it: Matryoshka embeddings (Kusupati et al. 2022).
    """

    size: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, min(D, size)]."""
        return x[..., : self.size]


class Dense(Struct, frozen=True, eq=False):
    """`activation(x W^T + b)` with a weight [E, D], and a bias [E] if there is one.

    `activation` is a name in `ACTIVATIONS`. `x R^T` is added for a `residual` weight R [E, D], and
    `x` itself for True.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    activation: str
    residual: np.ndarray | bool = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, E]."""
        wide = x.astype(np.float64)
        found = _product(wide, self.weight)
        if self.bias is not None:
            found = found + self.bias
        found = ACTIVATIONS[self.activation](found)
        if self.residual is not False:
            found = found + (wide if self.residual is True else _product(wide, self.residual))
        return found.astype(np.float32)


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`x W^T`, [N, D] and [E, D] -> [N, E], f64.

    Row by row: for a matrix, BLAS may sum in another order, and the bits of a text would depend on
    its batch.
    """
    wide = weight.astype(np.float64)
    return np.stack([wide @ row for row in x])


class LayerNorm(Struct, frozen=True, eq=False):
    """Layer normalization of a vector, with a weight [D] and a bias [D]."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, D]."""
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + _NORM_EPSILON)
        return (centred / scale * self.weight + self.bias).astype(np.float32)


_WEIGHTS: Final = "model.safetensors"
_VECTOR: Final = "sentence_embedding"
_FLAGS: Final = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The names of the pooling modes in older files."""


def pooling_and_steps(
    files: ModelSource, entries: Sequence[object]
) -> tuple[Pooling, tuple[VectorStep, ...]]:
    """Read the entries of modules.json: a transformer, its pooling, then any number of steps.

    ModelError for malformed files, and for modules and settings that are not supported, by name.
    """
    if len(entries) > MOST_MODULES:
        raise ModelError(f"{quoted(MODULES)} has {len(entries)} modules, more than {MOST_MODULES}")
    modules = [record_of(each, ModuleEntry, f"an entry of {quoted(MODULES)}") for each in entries]
    foreign = next((each.type for each in modules if not each.type.startswith(PACKAGE)), None)
    if foreign is not None:
        raise ModelError(
            f"{quoted(MODULES)} names a module of other code, {quoted(foreign)}, which is never run"
        )
    names = [module.name for module in modules]
    if names[:2] != ["Transformer", "Pooling"]:
        raise ModelError(
            f"{quoted(MODULES)} must begin with `Transformer` and `Pooling`, found"
            f" {listed(names) or 'nothing'}"
        )
    if modules[0].path:
        raise ModelError(
            f"{quoted(MODULES)} has the transformer in {quoted(modules[0].path)}, it must be in"
            " the folder itself",
            hint="save the model again with a present sentence-transformers",
        )
    return _pooling(files, modules[1]), tuple(_step(files, module) for module in modules[2:])


def _file(module: ModuleEntry) -> str:
    """Return the name of a module's settings in messages."""
    return f"{module.path}/{CONFIG}" if module.path else CONFIG


def _pooling(files: ModelSource, module: ModuleEntry) -> Pooling:
    fields = _settings(files, module)
    modes = fields.choices("pooling_mode", MODES)
    if modes is None:
        flags = [mode for mode in MODES if fields.boolean(_FLAGS[mode], False)]
        modes = tuple(flags) or ("mean",)
    return Pooling(modes, fields.boolean("include_prompt", True))


def _settings(files: ModelSource, module: ModuleEntry) -> Fields:
    if not module.path:
        raise ModelError(f"{quoted(MODULES)} must name a folder of {quoted(module.name)} in `path`")
    settings = files.read_json(CONFIG, module.path)
    if settings is None:
        raise ModelError(f"{quoted(MODULES)} needs {quoted(_file(module))}, which is not there")
    return Fields(settings, f"in {quoted(_file(module))}")


def _step(files: ModelSource, module: ModuleEntry) -> VectorStep:
    if module.name == "Normalize":
        # Older versions save neither settings nor a folder with it.
        settings = files.read_json(CONFIG, module.path) if module.path else None
        _require_vector(Fields(settings or {}, f"in {quoted(_file(module))}"))
        return Normalize()
    if module.name == "Dense":
        return _dense(files, module)
    if module.name == "LayerNorm":
        return _layer_norm(files, module)
    raise ModelError(
        f"{quoted(MODULES)} has the module {quoted(module.name)} after pooling, which is not"
        " supported",
        hint="supported are `Dense`, `LayerNorm` and `Normalize`",
    )


def _dense(files: ModelSource, module: ModuleEntry) -> Dense:
    fields = _settings(files, module)
    _require_vector(fields)
    inputs, outputs = fields.count("in_features"), fields.count("out_features")
    named = fields.text("activation_function") or "torch.nn.modules.activation.Tanh"
    activation = torch_activation(named)
    if activation is None:
        raise fields.error("activation_function", f"must be of `torch.nn`: {listed(ACTIVATIONS)}")
    weights = _weights(files, module)
    weight = weights.get("linear.weight")
    if weight is None or weight.shape != (outputs, inputs):
        raise fields.error("out_features", f"does not fit the weights of {_shapes(weights)}")
    bias = weights.get("linear.bias") if fields.boolean("bias", True) else None
    if fields.boolean("bias", True) and (bias is None or bias.shape != (outputs,)):
        raise fields.error("bias", f"does not fit the weights of {_shapes(weights)}")
    if not fields.boolean("use_residual", False) or inputs == outputs:
        return Dense(weight, bias, activation, fields.boolean("use_residual", False))
    residual = weights.get("residual.weight")
    if residual is None or residual.shape != weight.shape:
        raise fields.error("use_residual", f"does not fit the weights of {_shapes(weights)}")
    return Dense(weight, bias, activation, residual)


def _layer_norm(files: ModelSource, module: ModuleEntry) -> LayerNorm:
    fields = _settings(files, module)
    size, weights = fields.count("dimension"), _weights(files, module)
    weight, bias = weights.get("norm.weight"), weights.get("norm.bias")
    if weight is None or bias is None or not weight.shape == bias.shape == (size,):
        raise fields.error("dimension", f"does not fit the weights of {_shapes(weights)}")
    return LayerNorm(weight, bias)


def _require_vector(fields: Fields) -> None:
    fields.require("module_input_name", _VECTOR)
    fields.require("module_output_name", _VECTOR)


def _weights(files: ModelSource, module: ModuleEntry) -> dict[str, np.ndarray]:
    tensors = files.tensors_in(module.path)
    if tensors is None:
        raise ModelError(
            f"the module {quoted(module.path)} has no {quoted(_WEIGHTS)}",
            hint="save the model again with a present sentence-transformers",
        )
    # Copied, since the matrices are small, so that nothing depends on the file.
    return {name: np.array(tensor, np.float32) for name, tensor in tensors.items()}


def _shapes(weights: Mapping[str, np.ndarray]) -> str:
    return listed(f"{name} {list(array.shape)}" for name, array in weights.items()) or "none"


# The sentence-transformers files of a model, which define how to embed a text.


TOKENIZER_CONFIG: Final = "tokenizer_config.json"

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Similarity functions by sentence-transformers name."""
SIMILARITIES: Final = ("cosine", "dot", "euclidean", "manhattan")

_MEAN: Final[tuple[Pooling, tuple[VectorStep, ...]]] = (Pooling(), ())
_logger = logging.getLogger("gptrs")


class EmbeddingRecipe(Struct, frozen=True):
    """The preprocessing of a text, and the postprocessing of its token vectors.

    `max_length` limits the tokens of a text, None for the limit of the model. `steps` follow the
    pooling. `prompts` are texts by name that may precede a text; `default_prompt` is used by
    default. `similarity` names the function that compares vectors.
    """

    pooling: Pooling
    steps: tuple[VectorStep, ...] = ()
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    default_prompt: str = ""
    similarity: Similarity = "cosine"


def embedding_recipe(files: ModelSource) -> EmbeddingRecipe:
    """Read the files; without `modules.json` the recipe is the mean of all tokens, with a note.

    ModelError for malformed files, and for modules and settings that are not supported, by name.
    """
    max_length, lower_case = _text_settings(files)
    prompts, default = read_prompts(files, "SentenceTransformer")
    modules = files.read_json_list(MODULES)
    pooling, steps = _MEAN if modules is None else pooling_and_steps(files, modules)
    if modules is None:
        _logger.info("there is no %s: vectors of tokens are averaged, not normalized", MODULES)
    fields = _fields(files, MODEL_CONFIG)
    if fields.get("truncate_dim") is not None:
        steps = (*steps, Truncate(fields.integer("truncate_dim")))
    # null in the file means unspecified in sentence-transformers.
    similarity = cast("Similarity", fields.choice("similarity_fn_name", SIMILARITIES, "cosine"))
    return EmbeddingRecipe(pooling, steps, max_length, lower_case, prompts, default, similarity)


def _text_settings(files: ModelSource) -> tuple[int | None, bool]:
    fields = _fields(files, TRANSFORMER_CONFIG)
    fields.require("transformer_task", "feature-extraction")
    fields.require("module_output_name", "token_embeddings")
    longest = fields.count("max_seq_length")
    if longest is None:
        longest = _fields(files, TOKENIZER_CONFIG).count("model_max_length")
    return longest, fields.boolean("do_lower_case", False)


def _fields(files: ModelSource, name: str) -> Fields:
    return Fields(files.read_json(name) or {}, f"in {quoted(name)}")
