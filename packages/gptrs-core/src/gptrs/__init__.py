"""gptrs: portable tensor programs, and the models written in them, run by plugin backends.

Names are imported when they are first used, so that `import gptrs` stays light.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from gptrs.capture.backend_choice import set_default_backend
from gptrs.capture.implementation_source import (
    ImplementationSource,
    set_implementation_source,
)
from gptrs.capture.late_binding import set_sink_loader
from gptrs.capture.operators import set_loader

if TYPE_CHECKING:
    from gptrs import functionals as functionals
    from gptrs import ir as ir
    from gptrs import nn as nn
    from gptrs.backend.protocol import Backend
    from gptrs.capture.backend_choice import use_backend as use_backend
    from gptrs.capture.execute import program_cache as program_cache
    from gptrs.capture.jitting.jit import jit as jit
    from gptrs.capture.jitting.pytree import register_pytree as register_pytree
    from gptrs.capture.tensor import Tensor as Tensor
    from gptrs.capture.tensor import tensor as tensor
    from gptrs.functionals.dispatch.override_scope import overrides as overrides
    from gptrs.plugins.manager import get_backend as get_backend
    from gptrs.runtime.embedding.embed import embed as embed
    from gptrs.runtime.generation.chat_session import ChatSession as ChatSession
    from gptrs.runtime.generation.generate import Generation as Generation
    from gptrs.runtime.generation.generate import GenerationOptions as GenerationOptions
    from gptrs.runtime.generation.generate import generate as generate
    from gptrs.runtime.generation.generate import generate_batch as generate_batch
    from gptrs.runtime.generation.generate import generate_several as generate_several
    from gptrs.runtime.generation.generate import stream as stream
    from gptrs.runtime.generation.sampling import Sampling as Sampling
    from gptrs.runtime.load import LoadedModel as LoadedModel
    from gptrs.runtime.load import load_model as load_model
    from gptrs.runtime.observe.dump import dumping as dumping
    from gptrs.runtime.programs.run import run_program as run_program

__version__ = "0.1.0"

_MODULE_OF = {
    "ChatSession": "runtime.generation.chat_session",
    "Generation": "runtime.generation.generate",
    "GenerationOptions": "runtime.generation.generate",
    "LoadedModel": "runtime.load",
    "Sampling": "runtime.generation.sampling",
    "Tensor": "capture.tensor",
    "dumping": "runtime.observe.dump",
    "embed": "runtime.embedding.embed",
    "generate": "runtime.generation.generate",
    "generate_batch": "runtime.generation.generate",
    "generate_several": "runtime.generation.generate",
    "get_backend": "plugins.manager",
    "jit": "capture.jitting.jit",
    "load_model": "runtime.load",
    "overrides": "functionals.dispatch.override_scope",
    "program_cache": "capture.execute",
    "register_pytree": "capture.jitting.pytree",
    "run_program": "runtime.programs.run",
    "stream": "runtime.generation.generate",
    "tensor": "capture.tensor",
    "use_backend": "capture.backend_choice",
}
_SUBPACKAGES = frozenset({"functionals", "ir", "nn"})

__all__ = sorted([*_MODULE_OF, *_SUBPACKAGES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"gptrs.{name}")
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(f"gptrs.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module `gptrs` has no attribute `{name}`")


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF, *_SUBPACKAGES]


def _default_backend() -> Backend:
    return importlib.import_module("gptrs.plugins.manager").manager().get_backend()


def _plugin_implementations() -> ImplementationSource:
    return importlib.import_module("gptrs.plugins.functionals").PluginImplementations()


def _load_trace_sinks() -> None:
    if os.environ.get("GPTRS_TRACE_SINKS"):
        importlib.import_module("gptrs.plugins.trace_sinks").install_from_environment()


set_default_backend(_default_backend)
set_sink_loader(_load_trace_sinks)
set_implementation_source(_plugin_implementations)
set_loader(lambda: importlib.import_module("gptrs.functionals"))
