"""Weights and settings come in: hostile files are read safely, tensors are loaded on first use."""

from gptrs.checkpoint.config_fields import ConfigFields
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.models.hf_directory import HfDirectory
from gptrs.checkpoint.param_source import FileSource, ParamSource
from gptrs.checkpoint.parameter_ids import base_param_id, new_namespace, param_key
from gptrs.checkpoint.params import Params

__all__ = [
    "ConfigFields",
    "HfDirectory",
    "ParamSource",
    "Params",
    "SafetensorsFile",
    "FileSource",
    "TensorEntry",
    "base_param_id",
    "new_namespace",
    "param_key",
]
