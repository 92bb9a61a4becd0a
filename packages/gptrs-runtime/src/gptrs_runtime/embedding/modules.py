"""The modules of sentence-transformers, as the folder of a model lists them: pooling and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import ModelError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.embedding.pooling import MODES, Pooling
from gptrs_runtime.embedding.steps import ACTIVATIONS, Dense, LayerNorm, Normalize, VectorStep
from gptrs_runtime.sources.model_source import CONFIG, ModelSource
from gptrs_runtime.sources.module_folders import MOST_MODULES
from gptrs_runtime.sources.sentence_transformers import MODULES

_WEIGHTS: Final = "model.safetensors"
_PACKAGE: Final = "sentence_transformers."
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
    modules = [_module(entry) for entry in entries]
    names = [module.name for module in modules]
    if names[:2] != ["Transformer", "Pooling"]:
        raise ModelError(
            f"{quoted(MODULES)} must begin with `Transformer` and `Pooling`, found"
            f" {listed(names) or 'nothing'}"
        )
    if modules[0].folder:
        raise ModelError(
            f"{quoted(MODULES)} has the transformer in {quoted(modules[0].folder)}, it must be in"
            " the folder itself",
            hint="save the model again with a present sentence-transformers",
        )
    return _pooling(files, modules[1]), tuple(_step(files, module) for module in modules[2:])


@dataclass(frozen=True)
class _Module:
    """An entry of modules.json: the name of its class and its folder, empty for the model's own."""

    name: str
    folder: str

    @property
    def config(self) -> str:
        """The name of its settings in messages."""
        return f"{self.folder}/{CONFIG}" if self.folder else CONFIG


def _module(entry: object) -> _Module:
    if not isinstance(entry, Mapping):
        raise _malformed(entry)
    settings = cast("Mapping[str, object]", entry)
    kind, folder = settings.get("type"), settings.get("path")
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise _malformed(settings)
    if not kind.startswith(_PACKAGE):
        raise ModelError(
            f"{quoted(MODULES)} names a module of other code, {quoted(kind)}, which is never run"
        )
    return _Module(kind.rpartition(".")[2], folder)


def _malformed(entry: object) -> ModelError:
    return ModelError(
        f"each entry of {quoted(MODULES)} needs the strings `type` and `path`,"
        f" found {shown_value(entry)}"
    )


def _pooling(files: ModelSource, module: _Module) -> Pooling:
    fields = _settings(files, module)
    modes = fields.choices("pooling_mode", MODES)
    if modes is None:
        flags = [mode for mode in MODES if fields.boolean(_FLAGS[mode], False)]
        modes = tuple(flags) or ("mean",)
    return Pooling(modes, fields.boolean("include_prompt", True))


def _settings(files: ModelSource, module: _Module) -> Fields:
    if not module.folder:
        raise ModelError(f"{quoted(MODULES)} must name a folder of {quoted(module.name)} in `path`")
    settings = files.read_json(CONFIG, module.folder)
    if settings is None:
        raise ModelError(f"{quoted(MODULES)} needs {quoted(module.config)}, which is not there")
    return Fields(settings, f"in {quoted(module.config)}")


def _step(files: ModelSource, module: _Module) -> VectorStep:
    if module.name == "Normalize":
        # Older versions save no settings with it, and no folder either.
        settings = files.read_json(CONFIG, module.folder) if module.folder else None
        _require_vector(Fields(settings or {}, f"in {quoted(module.config)}"))
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


def _dense(files: ModelSource, module: _Module) -> Dense:
    fields = _settings(files, module)
    _require_vector(fields)
    fields.require("use_residual", False)
    inputs, outputs = fields.count("in_features"), fields.count("out_features")
    activation = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise fields.error("activation_function", f"must be one of {listed(ACTIVATIONS)}")
    weights = _weights(files, module)
    weight = weights.get("linear.weight")
    if weight is None or weight.shape != (outputs, inputs):
        raise fields.error("out_features", f"does not fit the weights of {_shapes(weights)}")
    bias = weights.get("linear.bias") if fields.boolean("bias", True) else None
    if fields.boolean("bias", True) and (bias is None or bias.shape != (outputs,)):
        raise fields.error("bias", f"does not fit the weights of {_shapes(weights)}")
    return Dense(weight, bias, activation)


def _layer_norm(files: ModelSource, module: _Module) -> LayerNorm:
    fields = _settings(files, module)
    size, weights = fields.count("dimension"), _weights(files, module)
    weight, bias = weights.get("norm.weight"), weights.get("norm.bias")
    if weight is None or bias is None or not weight.shape == bias.shape == (size,):
        raise fields.error("dimension", f"does not fit the weights of {_shapes(weights)}")
    return LayerNorm(weight, bias)


def _require_vector(fields: Fields) -> None:
    fields.require("module_input_name", _VECTOR)
    fields.require("module_output_name", _VECTOR)


def _weights(files: ModelSource, module: _Module) -> dict[str, np.ndarray]:
    tensors = files.tensors_in(module.folder)
    if tensors is None:
        raise ModelError(
            f"the module {quoted(module.folder)} has no {quoted(_WEIGHTS)}",
            hint="save the model again with a present sentence-transformers",
        )
    # Small matrices: copies, so that nothing depends on the file.
    return {name: np.array(tensor, np.float32) for name, tensor in tensors.items()}


def _shapes(weights: Mapping[str, np.ndarray]) -> str:
    return listed(f"{name} {list(array.shape)}" for name, array in weights.items()) or "none"
