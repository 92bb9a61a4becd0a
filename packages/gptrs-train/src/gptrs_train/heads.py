"""Encoders with a head as functions of their trained weights: classes, tags, ranks, vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs import functionals as F
from gptrs.api import ModelError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.models import CausalLMModule, Module, Tensor, tensor
from gptrs.functionals.dispatch.active_overrides import entered
from gptrs.nn import TextClassifierModule, TextEncoderModule, TokenClassifierModule
from gptrs.quoting import quoted
from gptrs_runtime.embedding import modules
from gptrs_runtime.embedding.modules import EmbeddingRecipe
from gptrs_runtime.loaded_model import stated_tokens
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.torch_activations import SELU_ALPHA, SELU_SCALE
from gptrs_train.head_scores import class_scores, pair_scores, rank_scores, tag_scores
from gptrs_train.learner import WORDS, Learner, LearningParams, LowRank, NoWeights
from gptrs_train.losses import cross_entropy

Task = Literal["classify", "tag", "embed", "rank"]
"""Called like the commands that run what was learnt."""
TASKS: Final = ("classify", "tag", "embed", "rank")
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
_SUFFIXES: Final[dict[Task, str]] = {
    "classify": "ForSequenceClassification",
    "rank": "ForSequenceClassification",
    "tag": "ForTokenClassification",
    "embed": "Model",
}
_OUTPUTS: Final = ("classifier", "classifier.out_proj", "score", "classification_head.out_proj")
"""The layers that compute the scores of classes, by their names in transformers."""
_CLASS: Final = re.compile(r"(.+?)(?:For[A-Z]\w*|LMHeadModel|PreTrainedModel|Model)")
_SCALE: Final = 20.0
"""Factor of cosines in the loss of pairs, as in sentence-transformers."""
_LEAST: Final = -1e9
"""Score of a text that is not a candidate: its softmax is 0."""


class TextBatch(NamedTuple):
    """B rows of K texts each as [K * B, T], all first texts before all second ones."""

    tokens: Any
    """Si64 [K * B, T]."""
    segments: Any
    """Si64 [K * B, T], 1 for the second text of a pair that is read as one."""
    mask: Any
    """I1 [K * B, T], true at tokens."""
    pooled: Any
    """I1 [K * B, T], true at tokens that count in the vector of a text."""
    targets: Any
    """Classes si64 [B] or [B, T], scores f32 [B] or [B, classes], or numbers of texts si64 [B, K]
    where these are compared: equal texts have the same."""
    weights: Any
    """F32 [B] or [B, T], the weight of each target: 0 for rows that only fill up a batch."""


class Goal(Struct, frozen=True):
    """The task of a head: the names of its classes, and how their scores are compared.

    `texts` is how many texts a row of pairs or triplets has; with `scored`, two texts and how
    alike they are. `kept` says that the head of the checkpoint has these classes already.
    """

    task: Task
    labels: tuple[str, ...] = ()
    problem: Problem = "single_label_classification"
    texts: int = 1
    scored: bool = False
    kept: bool = False


class HeadLearner(Learner):
    """An encoder with a head; in a `batch` it gets a `TextBatch`.

    Weights of the body are those of the checkpoint, and of the head if the goal is `kept`; a new
    head is initialized as in transformers, and always learnt. ModelError for kinds without such a
    head.
    """

    def __init__(
        self,
        source: ModelSource,
        backend: Backend,
        what: LowRank | Sequence[str],
        goal: Goal,
        recipe: EmbeddingRecipe,
        seed: int = 0,
    ) -> None:
        self.goal, self.recipe = goal, recipe
        self.writes_adapter = False
        self.unit = "tokens" if goal.task == "tag" else "rows"
        super().__init__(source, backend, what, seed=seed)
        if self.experts:
            raise UsageError(
                f"an adapter of {quoted(self.experts[0])} is not added to a model with a head",
                hint="leave out --target experts",
            )
        self.length = self.context_length
        """Most tokens of a text that are read."""

    @property
    def width(self) -> int:
        """The size of the vector of a token."""
        module = self._made(self.params)
        one = tensor(np.zeros((1, 1), np.int64))
        with entered(self._overrides):
            return int(self._states(module, one, None).shape[-1])

    @override
    def _first_params(self, backend: Backend, fresh: bool) -> LearningParams:
        source, goal = self.source, self.goal
        # The names are found by making the model twice, as an encoder and with its head. No weight
        # is read for that: they are loaded when they are used.
        body = LearningParams(source.weights, backend, str(source.path), False, head=())
        bare = self._module({**self.config, "architectures": [self._class("Model")]}, body)
        named = [each for each in _OUTPUTS if goal.task != "tag" or self._body_has(body, each)]
        head = [] if goal.task == "embed" else [f"{name}.weight" for name in named]
        self.config = self._config(causal=isinstance(bare, CausalLMModule))
        layout = LearningParams(NoWeights(), backend, str(source.path), True, head=head)
        self._made(layout)
        self._prefix = _prefix(list(body.asked.weights), list(layout.asked.weights))
        self._layout = frozenset(layout.asked.weights)
        if goal.kept or goal.task == "embed":
            return LearningParams(source.weights, backend, str(source.path), False, head=())
        own = frozenset(body.asked.weights)
        return LearningParams(source.weights, backend, str(source.path), False, body=own, head=head)

    def _body_has(self, body: LearningParams, output: str) -> bool:
        # GPT-2 scores texts by `score` and tokens by `classifier`, others both by `score`.
        return output != "score" or not any("wte" in name for name in body.asked.weights)

    def _class(self, suffix: str) -> str:
        """Return the name of a class of transformers for the kind."""
        stored = self.source.config.get("architectures")
        first = cast("list[object]", stored)[:1] if isinstance(stored, list) else []
        found = _CLASS.fullmatch(str(first[0])) if first else None
        plain = "".join(part.capitalize() for part in re.split(r"[-_]", self.source.model_type))
        return (plain if found is None else found[1]) + suffix

    def _config(self, *, causal: bool) -> dict[str, object]:
        """Return the config.json of the model with its head."""
        goal, config = self.goal, dict(self.source.config)
        if goal.kept:
            return config
        config["architectures"] = [self._class(_SUFFIXES[goal.task])]
        if goal.task == "embed":
            return config
        # transformers derives it from `id2label`; a count of the old labels would contradict these.
        config.pop("num_labels", None)
        config["id2label"] = {str(number): name for number, name in enumerate(goal.labels)}
        config["label2id"] = {name: number for number, name in enumerate(goal.labels)}
        ends = stated_tokens("eos_token_id", self.source.generation_config, config)
        if causal and goal.task != "tag" and config.get("pad_token_id") is None and ends:
            # transformers finds the last token of a padded text by it, and takes no batches without
            # one. Most tokenizers without such a token are given that of the end.
            config["pad_token_id"] = min(ends)
        if goal.task == "classify":
            config["problem_type"] = goal.problem
        else:
            config.pop("problem_type", None)
        return config

    @override
    def stored_name(self, name: str) -> str:
        """Return the name of a weight in the folder that is written.

        A new head lies beside the body, whose names need their prefix then.
        """
        if not self._prefix or self.goal.task == "embed" or name in self._layout:
            return name
        return self._prefix + name

    @override
    def is_written(self, name: str) -> bool:
        """Return whether a stored weight is written; those of other heads are not."""
        asked = self.params.asked.weights
        in_body = bool(self._prefix) or name.startswith(_common_prefix(asked))
        return name in asked or (in_body and not name.startswith(WORDS))

    @override
    def _checked(self, module: object) -> Any:
        task, kind = self.goal.task, self.source.model_type
        needed: dict[Task, type[Module] | tuple[type[Module], ...]] = {
            "classify": TextClassifierModule,
            "rank": TextClassifierModule,
            "tag": TokenClassifierModule,
            "embed": (TextEncoderModule, CausalLMModule),
        }
        if not isinstance(module, needed[task]):
            raise ModelError(
                f"{quoted(self.source.name)} is a `{kind}` model, which `gptrs {task}` does not run"
            )
        return module

    @override
    def loss(self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None = None) -> Tensor:
        """Return the sum of the weighted losses of a `TextBatch`, f32 []."""
        return self._results(trained, batch, seed)[0]

    @override
    def results(self, trained: Mapping[str, Tensor], batch: Any) -> tuple[Tensor, Tensor | None]:
        return self._results(trained, batch, None)

    def _results(
        self, trained: Mapping[str, Tensor], batch: Any, seed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        module = self.holding(trained)
        with self.running(module, seed):
            if self.goal.task == "embed":
                outputs, costs = self._compared(module, batch)
            elif self.goal.task == "tag":
                found = module.head(module.last_state(batch.tokens, batch.mask))
                outputs = F.cast(found, "f32")  # (B, T, classes)
                rows = (outputs.shape[0] * outputs.shape[1], outputs.shape[2])
                flat = F.reshape(batch.targets, rows[:1])
                costs = F.reshape(cross_entropy(F.reshape(outputs, rows), flat), outputs.shape[:2])
            else:
                found = module.text_scores(batch.tokens, batch.segments, batch.mask)
                outputs = F.cast(found, "f32")  # (B, classes)
                costs = self._costs(outputs, batch.targets)
            return F.sum(costs * batch.weights), outputs

    def _costs(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row as transformers' classifiers have it, f32 [B]."""
        problem = self.goal.problem
        if self.goal.task == "rank":
            return _binary(F.squeeze(logits, 1), targets)
        if problem == "regression":
            return F.square(F.squeeze(logits, 1) - targets)
        if problem == "multi_label_classification":
            return F.mean(_binary(logits, targets), -1)
        return cross_entropy(logits, targets)

    def _compared(self, module: Any, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Return similarities, and the loss of each row.

        Of scored pairs, the squared difference of cosine and score. Else the first text of a row
        finds its second among all but the first texts of the batch (InfoNCE, van den Oord et al.
        2018; in sentence-transformers MultipleNegativesRankingLoss).

        Candidates that are right, too, are left out: the text itself, its second, and the second of
        an equal text.
        """
        vectors = self._vectors(module, batch)  # (K * B, D)
        count = vectors.shape[0] // self.goal.texts
        first, others = vectors[:count], vectors[count:]
        if self.goal.scored:
            alike = F.sum(first * others, -1)
            return alike, F.square(alike - batch.targets)
        scale = 1.0 if self.recipe.similarity == "dot" else _SCALE
        scores = F.linear(first, others) * scale  # (B, (K - 1) * B)
        real = F.concat([batch.weights > 0] * (self.goal.texts - 1), 0)
        # Rows that fill up a batch repeat its first row: as candidates they would be further right
        # answers, which the loss takes for wrong ones.
        kept = F.logical_and(F.expand_dims(real, 0), F.logical_not(_also_right(batch.targets)))
        scores = F.where(kept, scores, _LEAST)
        return scores, cross_entropy(scores, F.arange(count))

    def _vectors(self, module: Any, batch: TextBatch) -> Tensor:
        """Return the vector of each text as `gptrs embed` makes it, f32 [N, D].

        Of length 1, unless vectors are compared by their product.
        """
        states = F.cast(self._states(module, batch.tokens, batch.mask), "f32")
        parts = [_POOLED[mode](states, batch.pooled) for mode in self.recipe.pooling.modes]
        found = parts[0] if len(parts) == 1 else F.concat(parts, -1)
        for step in self.recipe.steps:
            found = _stepped(step, found)
        dot = self.recipe.similarity == "dot" and not self.goal.scored
        return found if dot else _unit(found)

    def _states(self, module: Any, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the last states of texts, [N, T, C]; causal models see no padding at the right."""
        if isinstance(module, CausalLMModule):
            return module.whole_states(tokens)[-1]
        return module.states(tokens, mask)[-1]

    @override
    def scores(self, outputs: Sequence[np.ndarray], batches: Sequence[Any]) -> dict[str, float]:
        own = [
            (found, each.targets, each.weights)
            for found, each in zip(outputs, batches, strict=True)
        ]
        if self.goal.task == "tag":
            return tag_scores(own, self.goal.labels)
        if self.goal.task == "rank":
            return rank_scores(own)
        if self.goal.task == "embed":
            return pair_scores(own, scored=self.goal.scored)
        return class_scores(own, self.goal.problem)


def _also_right(numbers: Tensor) -> Tensor:
    """Return which candidates of a row are right beside its own one, i1 [B, (K - 1) * B].

    `numbers` [B, K] are those of texts: equal ones have the same.
    """
    rows, texts = numbers.shape
    first, second = numbers[:, :1], numbers[:, 1:2]
    others = F.reshape(F.transpose(numbers[:, 1:], (1, 0)), (1, -1))
    found = F.logical_or(F.equal(others, first), F.equal(others, second))
    alike = F.equal(first, F.transpose(first, (1, 0)))
    none = [F.zeros((rows, (texts - 2) * rows), "i1")] if texts > 2 else []
    found = F.logical_or(found, F.concat([alike, *none], 1))
    places = F.arange((texts - 1) * rows)
    own = F.equal(F.expand_dims(places, 0), F.expand_dims(F.arange(rows), 1))
    return F.logical_and(found, F.logical_not(own))


def _binary(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -z log p - (1 - z) log(1 - p) for p = sigmoid(x), of any finite x."""
    # exp(-|x|) is at most 1, where exp(x) would overflow, and log1p keeps the digits of small ones.
    return F.maximum(logits, 0.0) - logits * targets + F.log1p(F.exp(-F.abs(logits)))


def _prefix(body: Sequence[str], layout: Sequence[str]) -> str:
    """Return the prefix for names of a body beside a head; empty if they have it already."""
    known = frozenset(layout)
    for name in body:
        if name not in known:
            longer = sorted((each for each in layout if each.endswith(f".{name}")), key=len)
            if longer:
                return longer[0][: -len(name)]
    return ""


def _common_prefix(names: Mapping[str, object]) -> str:
    firsts = [name.partition(".")[0] for name in names]
    return max(firsts, key=firsts.count) + "."


# The vector of a text from those of its tokens, differentiable: see `gptrs_runtime.embedding`.


def _weighted(x: Tensor, weights: Tensor) -> Tensor:
    """[N, T, C] and f32 [N, T] -> [N, C]."""
    return F.sum(x * F.expand_dims(weights, 2), 1)


def _ones(mask: Tensor) -> Tensor:
    return F.cast(mask, "f32")


def _mean(x: Tensor, mask: Tensor, power: float = 1.0) -> Tensor:
    own = _ones(mask)
    count = F.maximum(F.sum(own, 1, keepdims=True), 1e-9)
    return _weighted(x, own / (count if power == 1.0 else F.sqrt(count)))


def _first(x: Tensor, mask: Tensor) -> Tensor:
    number = F.argmax(F.cast(mask, "si32"), 1)
    return _weighted(x, _ones(F.equal(_positions(mask), F.expand_dims(number, 1))))


def _last(x: Tensor, mask: Tensor) -> Tensor:
    number = F.max(F.where(mask, _positions(mask), 0), 1, keepdims=True)
    return _weighted(x, _ones(F.equal(_positions(mask), number)))


def _by_position(x: Tensor, mask: Tensor) -> Tensor:
    weights = _ones(mask) * (F.cast(_positions(mask), "f32") + 1.0)
    return _weighted(x, weights / F.maximum(F.sum(weights, 1, keepdims=True), 1e-9))


def _largest(x: Tensor, mask: Tensor) -> Tensor:
    # A finite number, not -inf: a text without any token that counts would give NaN in its unit
    # vector.
    return F.max(F.where(F.expand_dims(mask, 2), x, _LEAST), 1)


def _positions(mask: Tensor) -> Tensor:
    return F.expand_dims(F.arange(mask.shape[1]), 0)


_POOLED: Final[dict[str, Any]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": partial(_mean, power=0.5),
    "weightedmean": _by_position,
    "lasttoken": _last,
}
"""By the modes of `gptrs_runtime.embedding.modules.MODES`: f32 [N, T, C], i1 [N, T] -> [N, C]."""


def _unit(x: Tensor) -> Tensor:
    # Inside of the root, so that a vector of zeros has a gradient.
    return x * F.rsqrt(F.maximum(F.sum(F.square(x), -1, keepdims=True), 1e-24))


_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "Tanh": F.tanh,
    "Identity": lambda x: x,
    "Sigmoid": F.sigmoid,
    "ReLU": F.relu,
    "ReLU6": F.relu6,
    "LeakyReLU": F.leaky_relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Mish": lambda x: x * F.tanh(F.softplus(x)),
    "ELU": F.elu,
    "SELU": lambda x: F.elu(x, SELU_ALPHA) * SELU_SCALE,
    "Softplus": F.softplus,
    "Softsign": lambda x: x / (F.abs(x) + 1.0),
    "LogSigmoid": lambda x: F.neg(F.softplus(F.neg(x))),
    "Hardtanh": lambda x: F.clamp(x, -1.0, 1.0),
    "Hardsigmoid": F.hard_sigmoid,
    "Hardswish": F.hard_swish,
}
"""Those of `gptrs_runtime.torch_activations`, in programs that learn."""


def _stepped(step: object, x: Tensor) -> Tensor:
    """Return a step of the recipe; the weights of its layers stay as they are."""
    if isinstance(step, modules.Normalize):
        return _unit(x)
    if isinstance(step, modules.Truncate):
        return x[:, : step.size]
    if isinstance(step, modules.Dense):
        bias = None if step.bias is None else tensor(step.bias)
        made = _ACTIVATIONS[step.activation](F.linear(x, tensor(step.weight), bias))
        if isinstance(step.residual, np.ndarray):
            return made + F.linear(x, tensor(step.residual))
        return made + x if step.residual else made
    assert isinstance(step, modules.LayerNorm), "there are no other steps"
    return F.layer_norm(x, tensor(step.weight), tensor(step.bias), 1e-5)
