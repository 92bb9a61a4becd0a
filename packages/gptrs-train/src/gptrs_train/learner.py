"""A language model as a function of its trained tensors: all, some, or low-rank factors."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.models import CausalLMModule, Module, Params, Tensor
from gptrs.checkpoint.config_fields import load_as
from gptrs.checkpoint.expert_factors import ExpertWeight
from gptrs.checkpoint.param_source import ParamSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.functionals.dispatch.active_overrides import entered
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.attention import whole_texts
from gptrs.nn.layers import Embedding, LayerNorm, Linear, RMSNorm
from gptrs.quoting import listed, quoted
from gptrs_runtime.forward import model_choices
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_train.losses import Head, token_loss
from gptrs_train.trained_modules import Decoder, Dropout, TrainedModules

ALL_LINEAR: Final = "all-linear"
"""All linear layers except the one that computes logits, as in PEFT."""
FACTORS: Final = ("A", "B")


class Batch(NamedTuple):
    """B rows of length T with one or more texts each, and their next tokens."""

    tokens: Any
    """Si64 [B, T]."""
    targets: Any
    """Si64 [B, T], the token after each."""
    weights: Any
    """F32 [B, T], the weight of each target: 0 for prompts and padding."""
    positions: Any
    """Si64 [B, T], from 0 in each text; None if each row is one text."""


class LowRank(Struct, frozen=True):
    """Adapters to learn (Hu et al. 2021): the `rank`, `alpha`, and the `targets` among layers.

    A target is the last parts of a layer's name, as in PEFT, or `all-linear`; `experts` and
    `experts.down_proj` name matrices of all experts.
    """

    rank: int
    alpha: float
    targets: Sequence[str] = (ALL_LINEAR,)

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.alpha < math.inf:
            raise UsageError(
                f"an adapter has a rank of at least 1 and a finite alpha above 0, got {self.rank}"
                f" and {self.alpha:g}"
            )

    @property
    def factor(self) -> float:
        """The number that multiplies the product of the factors."""
        return self.alpha / self.rank


class _Asked(Struct):
    """The weights that a model asked for while it was made, and the sizes of linear layers."""

    weights: dict[str, tuple[int, ...]]
    layers: dict[str, tuple[int, int]]
    matrices: set[str]
    """Those that rows are multiplied by, and tables: all begin alike."""
    added: dict[str, Tensor]
    """The matrices whose products are added to the residual stream, as last asked for."""
    decoded: dict[str, tuple[Tensor, Decoder]]
    """Quantized matrices as last asked for, and what decodes each again."""
    experts: dict[str, ExpertWeight]
    """The matrices of all experts by their names in transformers."""


WORDS: Final = "lm_head."
"""The scope of the layer that computes logits of words, which no other head needs."""


class LearningParams(Params):
    """The weights of a model; those that are learnt are given as tensors.

    A `fresh` model has no weights yet: until they are given, it gets zeros, which nothing reads. A
    model with a new `head`, the names of its last layer, is fresh in what `body`, the names of its
    other weights, lacks, unless the checkpoint has it in the right shape.
    """

    def __init__(
        self,
        source: ParamSource,
        backend: Backend,
        origin: str,
        fresh: bool,
        *,
        body: Collection[str] | None = None,
        head: Collection[str] | None = None,
    ) -> None:
        super().__init__(source, backend=backend, origin=origin)
        self.asked = _Asked({}, {}, set(), {}, {}, {})
        self.new: set[str] = set()
        """The weights of a new head that the checkpoint lacks."""
        self._fresh = fresh
        self._body, self._head = body, None if head is None else frozenset(head)
        self._given: Mapping[str, Tensor] = {}
        self._scale = 1.0

    def holding(self, given: Mapping[str, Tensor], factor: float) -> LearningParams:
        """Return the same parameters with tensors that replace some, or are added to layers."""
        # A shallow copy: `asked` is shared, so a capture with given tensors adds to the same
        # record.
        other = copy.copy(self)
        other._given, other._scale = given, factor
        return other

    @override
    def __contains__(self, name: str) -> bool:
        if self._head is not None and not self._prefix:
            if name in self._head:
                return True
            if name.startswith(WORDS):
                return False
        if self._fresh:
            # A kind asks so whether its weights stand under the name of its body, as they do in
            # folders of transformers. What has fewer parts is a layer that may be tied.
            return not self._prefix and name.endswith(".weight") and name.count(".") > 1
        return super().__contains__(name)

    @override
    def tensor(self, name: str, shape: Sequence[int] | None = None, **how: Any) -> Tensor:
        """Return the tensor that is given for a name, else the weight of the checkpoint."""
        whole = self._prefix + name
        found = self._given.get(whole)
        if found is None and (self._fresh or self._is_new(whole, shape)):
            found = F.zeros(tuple(shape or ()))
        elif found is None:
            found = super().tensor(name, shape, **how)
            form = self._quantized(whole)
            if form is not None:
                parts: dict[Part, Tensor] = {p: self._part(whole, form, p) for p in form.parts}
                self.asked.decoded[whole] = found, Decoder(form, parts)
        self.asked.weights[whole] = tuple(map(int, found.shape))
        if how.get("use") is not None:
            self.asked.matrices.add(whole)
        if _is_added(how):
            self.asked.added[whole] = found
        return found

    @override
    def _quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized: matrices are decoded in the program, on any backend.

        Decoded at load, it would occupy memory in f32 throughout the run.
        """
        source = self._quantized_source
        known = source is not None and name in self._names and not self._own(name)
        if source is None or not known or self._uses.get(name) not in ("linear", "table"):
            return super()._quantized(name)
        return source.quantized(name)

    def _is_new(self, name: str, shape: Sequence[int] | None) -> bool:
        """Return whether a weight belongs to the new head, which keeps none for other labels."""
        if self._body is None or self._head is None or name in self._body:
            return False
        output = f"{name.rpartition('.')[0]}.weight" in self._head
        if (
            output
            or name not in self._names
            or self._source.type_of(name).shape != tuple(shape or ())
        ):
            self.new.add(name)
        return name in self.new

    @override
    def low_rank(self, inputs: int, outputs: int) -> list[tuple[Tensor, Tensor] | None]:
        """Return the factors that are given for this layer."""
        layer = self._prefix.removesuffix(".")
        self.asked.layers[layer] = inputs, outputs
        a, b = (self._given.get(factor_name(layer, factor)) for factor in FACTORS)
        return [] if a is None or b is None else [(a, b * self._scale)]

    @override
    def expert_low_rank(self, weight: ExpertWeight) -> tuple[Tensor, Tensor] | None:
        """Return the factors that are given for these matrices of experts."""
        whole = weight.below(self._prefix)
        self.asked.experts[whole.name] = replace(whole, block=None)
        a, b = (self._given.get(factor_name(whole.name, factor)) for factor in FACTORS)
        if a is None or b is None:
            return None
        outputs, ranks = b.shape
        firsts = F.reshape(a, (whole.count, ranks // whole.count, whole.inputs))
        parts = F.reshape(b, (outputs, ranks // whole.count, whole.count))
        lasts = F.transpose(parts, (2, 0, 1))[:, whole.rows()]
        return firsts, lasts * self._scale

    @override
    def stacked_whole(self, name: str, shape: Sequence[int]) -> Tensor:
        whole = self._prefix + name
        self.asked.weights[whole] = tuple(shape)
        self.asked.matrices.add(whole)
        if whole in self._given or self._fresh:
            return self.tensor(name, shape)
        return super().stacked_whole(name, shape)

    @override
    def _stored_alike(self, names: Sequence[str]) -> list[Tensor] | None:
        own = self._fresh or not self._given.keys().isdisjoint(names)
        return None if own else super()._stored_alike(names)


def _blocks(module: Module) -> frozenset[int]:
    """Return the ids of a model's layers: the modules in its outermost lists."""
    found: dict[str, int] = {}
    for name, each in module.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if name.rpartition(".")[2].isdigit() and not inside:
            found[name] = id(each)
    return frozenset(found.values())


def _is_added(how: Mapping[str, Any]) -> bool:
    """Return whether a matrix maps heads or the inner width to the residual stream, by its axes."""
    axes = cast("Sequence[object] | None", how.get("axes"))
    if axes is None or how.get("use") not in ("linear", "turned"):
        return False
    outputs, inputs = axes if how["use"] == "linear" else axes[::-1]
    return outputs == "embed" and inputs != "embed"


def factor_name(layer: str, factor: str) -> str:
    """Return the name of a factor of a layer, `A` [rank, inputs] or `B` [outputs, rank]."""
    return f"{layer}.lora_{factor}.weight"


class Learner:
    """The loss of a model as a function of the weights that it learns: `trained`, f32, by name.

    `what` says which weights those are: `LowRank`, or patterns of names (`*` for all). Without
    weights in `source`, all weights are initialized.

    ModelError for kinds that are not language models, or have weights without a known first value.
    """

    unit = "tokens"
    """The unit that the weights of a batch count."""
    writes_adapter = True
    """Whether low-rank factors are written as they are, not added to the weights."""
    identity = ""
    """The digest of the adapted weights, which an adapter states."""
    adapter: LowRank | None = None
    recomputes = False
    layers: Sequence[str] = ()
    experts: Sequence[str] = ()
    """The matrices of all experts that get factors, as transformers calls them."""

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        what: LowRank | Sequence[str],
        *,
        fresh: bool = False,
        seed: int = 0,
    ) -> None:
        module = self._begin(source, backend, fresh)
        self.adapter = what if isinstance(what, LowRank) else None
        if isinstance(what, LowRank):
            self.layers, self.experts = self._targets(what.targets)
            self.trained = self._first_factors(what.rank, seed)
        else:
            names = self._chosen(what)
            self.trained = {} if fresh else self._stored([n for n in names if n not in self.new])
        made = list(self.params.asked.weights) if fresh else sorted(self.new)
        self.trained |= self._first_weights(module, made, seed)

    def _begin(self, source: ModelSource, backend: Backend, fresh: bool) -> Any:
        """Set what all learners have, from the model of `source`; return that model's module."""
        self.source = source
        self.config: Mapping[str, object] = source.config
        self.dropout = Dropout()
        self._overrides = model_choices(source.config, str(source.path))
        self.params = self._first_params(backend, fresh)
        module = self._made(self.params)
        self.context_length, self.vocabulary = module.context_length, module.vocab_size
        return module

    @property
    def new(self) -> Collection[str]:
        """The weights that the checkpoint lacks."""
        return self.params.new

    def _first_params(self, backend: Backend, fresh: bool) -> LearningParams:
        weights: ParamSource = NoWeights() if fresh else self.source.weights
        return LearningParams(weights, backend, str(self.source.path), fresh)

    def stored_name(self, name: str) -> str:
        """Return the name of a weight in the folder that is written."""
        return name

    def is_written(self, name: str) -> bool:
        """Return whether a weight of the checkpoint is written: no copy of one that is learnt."""
        return not self.params.is_copied(name)

    def whole_weights(self, trained: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what was learnt as weights f32, with low-rank factors added to those of layers."""
        if self.adapter is None:
            return dict(trained)
        factors = {factor_name(layer, each) for layer in self.layers for each in FACTORS}
        found = {name: array for name, array in trained.items() if name not in factors}
        uses = self.params.uses()
        for layer in self.layers:
            name = f"{layer}.weight"
            a, b = (trained[factor_name(layer, each)] for each in FACTORS)
            # GPT-2 stores its layers transposed (Conv1D), the factors are those of a Linear.
            change = (b @ a) * np.float32(self.adapter.factor)
            stored = self._stored([name])[name]
            found[name] = stored + (change.T if uses.get(name) == "turned" else change)
        return found

    @property
    def frozen(self) -> int:
        """The number of the model's parameters that are not trained."""
        own = self.trained.keys()
        return sum(math.prod(s) for name, s in self.params.asked.weights.items() if name not in own)

    def is_hidden(self, name: str) -> bool:
        """Return whether a name is that of matrices between layers: no vector, table or head."""
        layer, _, last = name.rpartition(".")
        if name not in self.params.asked.weights:
            return ".lora_" in name
        _, outputs = self.params.asked.layers.get(layer, (0, self.vocabulary))
        stacked = len(self.params.asked.weights[name]) > 2 and name in self.params.asked.matrices
        new = name in self.new
        return stacked or (last == "weight" and outputs != self.vocabulary and not new)

    def holding(self, trained: Mapping[str, Tensor]) -> Any:
        """Return the model with these tensors as the weights that it learns."""
        factor = 1.0 if self.adapter is None else self.adapter.factor
        return self._made(self.params.holding(trained, factor))

    def results(self, trained: Mapping[str, Tensor], batch: Any) -> tuple[Tensor, Tensor | None]:
        """Return the loss of a batch, and the outputs that `scores` judges, if any."""
        return self._loss(trained, batch, None, frozen=False), None

    def scores(self, outputs: Sequence[np.ndarray], batches: Sequence[Any]) -> dict[str, float]:
        """Return measures of the outputs for all batches of an evaluation, by name."""
        return {}

    @contextmanager
    def running(self, module: Module, seed: Tensor | None) -> Generator[None]:
        """Scope in which a module is captured: with its overrides, and dropout if a seed is given.

        A seed is that of `dropout.seed_of`.
        """
        asked = self.params.asked
        weights = {id(weight) for weight in asked.added.values()}
        again = {id(weight): make for weight, make in asked.decoded.values()}
        head = self._decoded_head(module)
        layers = [
            each for _, each in module.named_modules()
            if isinstance(each, Embedding) or (isinstance(each, Linear) and each is not head)
        ]  # fmt: skip
        added = {id(each) for each in layers if id(each.weight) in weights}
        decoded = {id(each): again[id(each.weight)] for each in layers if id(each.weight) in again}
        blocks = _blocks(module) if self.recomputes else frozenset[int]()
        watcher = TrainedModules(self.dropout, seed, added, decoded, blocks)
        with entered(self._overrides), watcher.watching(self.source.name):
            yield

    def loss(self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None = None) -> Tensor:
        """Return the sum of the weighted losses of the tokens of a `Batch`, f32 [].

        With a `seed`, ui64 [2], there is dropout. Its derivative is that by `trained`.
        """
        # Only factors of the head, or its weights, have as many rows as there are words.
        words = any(self.vocabulary in each.shape for each in trained.values())
        return self._loss(trained, batch, seed, frozen=self.adapter is not None and not words)

    def _loss(
        self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None, *, frozen: bool
    ) -> Tensor:
        module = self.holding(trained)
        with self.running(module, seed):
            step, caches = whole_texts(batch.tokens, module.cache_specs(), batch.positions)
            *_, last = module.states(step, caches)  # (B * T, C)
            rows = (last.shape[0],)
            targets, weights = F.reshape(batch.targets, rows), F.reshape(batch.weights, rows)
            states = module.final_norm(last)
            return token_loss(
                *self._head(module), states, targets, weights, self.vocabulary, frozen=frozen
            )

    def _decoded_head(self, module: Any) -> Linear | Embedding | None:
        """Return the layer, or the tied table, that makes logits of a quantized matrix alone."""
        decoded = {id(each): again for each, again in self.params.asked.decoded.values()}
        found: list[Linear | Embedding] = []
        for _, each in module.named_modules():
            if not isinstance(each, Linear | Embedding) or id(each.weight) not in decoded:
                continue
            plain = not any(each.low_rank) and getattr(each, "bias", None) is None
            form = decoded[id(each.weight)].form
            if plain and not form.transposed and form.shape[0] == self.vocabulary:
                found.append(each)
        return min(found, key=lambda each: isinstance(each, Embedding), default=None)

    def _head(self, module: Any) -> tuple[Head, Sequence[Tensor]]:
        """Return what makes logits, and the parts of a quantized weight that it decodes."""
        layer = self._decoded_head(module)
        if layer is None:
            return lambda states, parts: module.logits(states), []
        whole = layer.weight
        decoders = {id(each): again for each, again in self.params.asked.decoded.values()}
        decoder = decoders[id(whole)]

        def logits(states: Tensor, parts: Sequence[Tensor]) -> Tensor:
            layer.weight = decoder.decoded(parts, states)
            try:
                return module.logits(states)
            finally:
                layer.weight = whole

        return logits, decoder.tensors

    def _made(self, params: LearningParams) -> Any:
        return self._checked(self._module(self.config, params))

    def _module(self, config: Mapping[str, object], params: LearningParams) -> object:
        with entered(self._overrides):
            return model_factory(self.source.model_type)(dict(config), params)

    def _checked(self, module: object) -> Any:
        """Return the module; ModelError for a kind that cannot be trained for this."""
        if not isinstance(module, CausalLMModule):
            raise ModelError(
                f"{quoted(self.source.name)} is a `{self.source.model_type}` model, which does not"
                " continue texts: without labels, training takes causal language models",
                hint="an encoder learns from rows with a `label`, or pairs: see docs/training.md",
            )
        return module

    def _targets(self, targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the layers, and the matrices of experts, that get factors.

        UsageError for a target that no layer has.
        """
        layers = self.params.asked.layers
        found: list[str] = []
        experts: list[str] = []
        for target in targets:
            if target == ALL_LINEAR:
                own = [
                    name for name, (_, out) in layers.items()
                    if out != self.vocabulary and f"{name}.weight" not in self.new
                ]  # fmt: skip
            else:
                own = [n for n in layers if n == target or n.endswith(f".{target}")]
            stacked = self._targeted_experts(target)
            if not own and not stacked:
                known = dict.fromkeys(name.rpartition(".")[2] for name in layers)
                raise UsageError(
                    f"{quoted(self.source.name)} has no linear layer {quoted(target)}",
                    hint=f"it has {listed(list(known), 12)}, and `{ALL_LINEAR}` names most of them",
                )
            found += own
            experts += stacked
        return list(dict.fromkeys(found)), list(dict.fromkeys(experts))

    def _targeted_experts(self, target: str) -> list[str]:
        """Return the matrices of experts that a target names, with `experts` in it."""
        if "experts" not in target.split("."):
            return []
        return [
            name for name, each in self.params.asked.experts.items()
            if any(own == target or own.endswith(f".{target}") for own in (name, each.module))
        ]  # fmt: skip

    def _first_factors(self, rank: int, seed: int) -> dict[str, np.ndarray]:
        """Return the factors as PEFT begins: A uniform within 1 / sqrt(inputs), B zero."""
        found: dict[str, np.ndarray] = {}
        asked = self.params.asked
        sizes = {layer: (*asked.layers[layer], rank) for layer in self.layers}
        for name in self.experts:
            each = asked.experts[name]
            sizes[name] = each.inputs, each.outputs, rank * each.count
        for number, (layer, (inputs, outputs, ranks)) in enumerate(sizes.items()):
            # kaiming_uniform with a = sqrt(5), which PEFT uses, comes to this bound. B is zero: the
            # first forward pass is that of the base model.
            bound = 1 / math.sqrt(inputs)
            a = random_stream(seed, number).uniform(-bound, bound, (ranks, inputs))
            found[factor_name(layer, "A")] = a.astype(np.float32)
            found[factor_name(layer, "B")] = np.zeros((outputs, ranks), np.float32)
        return found

    def _chosen(self, patterns: Sequence[str]) -> list[str]:
        names = list(self.params.asked.weights)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError(
                    f"{quoted(self.source.name)} has no weight that fits {quoted(pattern)}",
                    hint=f"it has {listed(names, 6)}",
                )
        return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]

    def _stored(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return weights of the checkpoint; ModelError for quantized ones."""
        weights = self.source.weights
        quantized = cast("Callable[[str], object] | None", getattr(weights, "quantized", None))
        for name in names:
            if quantized is not None and quantized(name) is not None:
                raise ModelError(
                    f"{quoted(name)} of {quoted(self.source.name)} is quantized, and cannot be"
                    " changed by small steps",
                    hint="train an adapter for it (`--lora 8`), or use the unquantized model",
                )
        return {
            name: load_as(weights, name, TensorType(dtypes.f32, self.params.asked.weights[name]))
            for name in names
        }

    def _first_weights(self, module: Any, names: Sequence[str], seed: int) -> dict[str, np.ndarray]:
        """Return initial weights, as `_init_weights` of transformers makes them."""
        if not names:
            return {}
        range_ = self.source.config.get("initializer_range", 0.02)
        deviation = float(range_) if isinstance(range_, int | float) else 0.02
        blocks = len(module.cache_specs()) if isinstance(module, CausalLMModule) else 1
        probes = {n: F.zeros(shape) for n, shape in self.params.asked.weights.items()}
        known = _first_values(self._made(self.params.holding(probes, 1.0)), probes)
        found: dict[str, np.ndarray] = {}
        for number, name in enumerate(names):
            shape = self.params.asked.weights[name]
            value = "normal" if name in self.params.asked.matrices else known.get(name)
            if value is None:
                raise ModelError(
                    f"`{self.source.model_type}` models have {quoted(name)}, whose first value is"
                    " not known",
                    hint="start with a trained model: `gptrs finetune`",
                )
            if value == "normal":
                # GPT-2 scales what is added to the residual stream by the number of additions.
                wide = deviation / math.sqrt(2 * blocks) if ".c_proj." in name else deviation
                array = random_stream(seed, number).normal(0, wide, shape)
            else:
                array = np.full(shape, value)
            found[name] = array.astype(np.float32)
        return found


def _first_values(module: Module, probes: Mapping[str, Tensor]) -> dict[str, str | float]:
    """Return `normal` for matrices, else the initial value of each weight of a known layer."""
    names = {id(tensor): name for name, tensor in probes.items()}
    found: dict[str, str | float] = {}
    for _, each in module.named_modules():
        weight, bias = getattr(each, "weight", None), getattr(each, "bias", None)
        if isinstance(each, LayerNorm | RMSNorm):
            offset = cast("float", vars(each)["_weight_offset"])
            pairs: list[tuple[object, str | float]] = [(weight, 1.0 - offset), (bias, 0.0)]
        elif isinstance(each, Linear | Embedding):
            pairs = [(weight, "normal"), (bias, 0.0)]
        else:
            continue
        for tensor, value in pairs:
            if id(tensor) in names:
                found[names[id(tensor)]] = value
    return found


def random_stream(seed: int, number: int) -> np.random.Generator:
    """Return the random numbers of a weight."""
    # One stream per weight: the values of a layer do not depend on which others are learnt.
    return np.random.Generator(np.random.Philox(key=[seed, number]))


class NoWeights:
    """The source of a model that has no weights yet."""

    def names(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def type_of(self, name: str) -> TensorType:
        """Raise KeyError."""
        raise KeyError(name)

    def load(self, name: str) -> np.ndarray:
        """Raise KeyError."""
        raise KeyError(name)
