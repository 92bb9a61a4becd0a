"""Where each public name of `gptrs` is; read by type checkers and by `gptrs.lazy_names`."""

from gptrs import api as api
from gptrs import errors as errors
from gptrs import functionals as functionals
from gptrs import ir as ir
from gptrs import nn as nn
from gptrs.capture.backend_choice import use_backend as use_backend
from gptrs.capture.execute import program_cache as program_cache
from gptrs.capture.jitting.jit import jit as jit
from gptrs.capture.jitting.pytree import register_pytree as register_pytree
from gptrs.capture.tensor import Tensor as Tensor
from gptrs.capture.tensor import from_dlpack as from_dlpack
from gptrs.capture.tensor import tensor as tensor
from gptrs.functionals.creation import arange as arange
from gptrs.functionals.creation import full as full
from gptrs.functionals.creation import ones as ones
from gptrs.functionals.creation import zeros as zeros
from gptrs.functionals.dispatch.override_scope import overrides as overrides
from gptrs.plugins.manager import get_backend as get_backend
from gptrs.runtime.embedding.embed import embed as embed
from gptrs.runtime.generation.async_stream import astream as astream
from gptrs.runtime.generation.chat_session import ChatSession as ChatSession
from gptrs.runtime.generation.generate import Generation as Generation
from gptrs.runtime.generation.generate import GenerationOptions as GenerationOptions
from gptrs.runtime.generation.generate import LogitsProcessor as LogitsProcessor
from gptrs.runtime.generation.generate import generate as generate
from gptrs.runtime.generation.generate import generate_batch as generate_batch
from gptrs.runtime.generation.generate import generate_several as generate_several
from gptrs.runtime.generation.generate import stream as stream
from gptrs.runtime.generation.sampling import Sampling as Sampling
from gptrs.runtime.load import LoadedModel as LoadedModel
from gptrs.runtime.load import load_model as load_model
from gptrs.runtime.observe.dump import dumping as dumping
from gptrs.runtime.observe.hooks import Hooks as Hooks
from gptrs.runtime.observe.profile_files import profiling as profiling
from gptrs.runtime.programs.run import run_program as run_program
from gptrs.runtime.quantize import quantize as quantize
from gptrs.runtime.serving.answers import AnswerStream as AnswerStream
from gptrs.runtime.serving.answers import Piece as Piece
from gptrs.runtime.serving.engine import Engine as Engine

__version__: str
