"""Which weights of a model can be quantized, as its code uses them; quantizing them at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.backend.contract import Backend
from gptrs.checkpoint.params import Params, WeightUse
from gptrs.checkpoint.quantized_tensor import QuantizedSource
from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_runtime.quantizing.plan import planned, require_some
from gptrs_runtime.quantizing.quantizing_source import QuantizingSource
from gptrs_runtime.quantizing.weight_types import LOADED_TYPES, weight_type
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.model_source import ModelSource


def weight_uses(source: ModelSource, backend: Backend) -> Mapping[str, WeightUse]:
    """Return what the matrices of a model are for; the model is made, no weight is read."""
    return uses_and_unused(source, backend)[0]


def uses_and_unused(
    source: ModelSource, backend: Backend
) -> tuple[Mapping[str, WeightUse], Sequence[str]]:
    """Return what the matrices of a model are for, and the names of those it does not read."""
    params = Params(source.weights, backend=backend, origin=str(source.path))
    model_factory(source.model_type)(source.config, params)
    return params.uses(), params.unused()


def vocab_size_of(source: ModelSource) -> int | None:
    """Return the size of the vocabulary that the config states, if it does."""
    size = source.config.get("vocab_size")
    return size if isinstance(size, int) else None


def quantize_at_load(
    source: ModelSource, backend: Backend, type: str, streamed: bool, threads: int | None = None
) -> None:
    """Let the weights of `source` be quantized when they are loaded, q8 or q4.

    So many threads do it; without a number those of `GPTRS_NUM_THREADS`, else one for each
    processor. Heads and tables of tokens get 8 bits. UsageError for another type, for weights that
    are quantized already, and for `streamed` ones, which would be quantized in each step;
    ModelError for a model without weights to quantize.
    """
    wanted = weight_type(type, LOADED_TYPES)
    if streamed:
        raise UsageError(
            "weights within a budget cannot be quantized when they are loaded",
            hint="`gptrs quantize` writes the model quantized; a budget works with that",
        )
    stored = source.weights
    if isinstance(stored, QuantizedSource):
        forms = [stored.quantized(name) for name in stored.names()]
        known = sorted({each.format for each in forms if each is not None})
        if known:
            raise UsageError(
                f"the weights of {quoted(source.name)} are quantized already, as {known[0]}",
                hint="leave out the type of weights, or `gptrs quantize` the model anew",
            )
    uses = weight_uses(source, backend)
    vocab_size = vocab_size_of(source)
    plan = planned(stored, uses, wanted, heads="q8", vocab_size=vocab_size, experts=True)
    require_some(source.name, plan, wanted)
    source.weights = QuantizingSource(stored, plan, uses, threads=threads)
