"""Weights and settings come in: hostile files are read safely, tensors are loaded on first use."""

from gptrs.checkpoint.config_fields import ConfigFields
from gptrs.checkpoint.hf_directory import HfDirectory
from gptrs.checkpoint.param_source import FileSource, Location, ParamSource
from gptrs.checkpoint.parameter_ids import base_param_id, new_namespace, param_key
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.safetensors import SafetensorsFile
from gptrs.checkpoint.safetensors_header import TensorEntry

__all__ = [
    "ConfigFields",
    "HfDirectory",
    "Location",
    "ParamSource",
    "Params",
    "SafetensorsFile",
    "FileSource",
    "TensorEntry",
    "base_param_id",
    "new_namespace",
    "param_key",
]
