"""The loop of a run: updates, evaluations, saving, and how it ends."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
from msgspec import Meta, Struct

import gptrs
from gptrs import functionals as F
from gptrs.api import GptrsError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.models import Tensor, tensor
from gptrs.capture.execute import use_backend
from gptrs.operating_system import peak_memory
from gptrs.quoting import listed
from gptrs_runtime.option_fields import NUMBERS, TEXT, Missing, Option, Options
from gptrs_train import optimizers
from gptrs_train.batches import Batches
from gptrs_train.learner import Learner
from gptrs_train.optimizers import Optimizer
from gptrs_train.saved_run import Metrics, Progressed, SavedRun
from gptrs_train.schedules import FORMS, Form, Schedule, schedule_of
from gptrs_train.trained_modules import Dropout, seed_of

OPTIMIZERS: Final = ("adamw", "muon", "lion", "adafactor", "sgd")
Ended = Literal["done", "early", "interrupted"]


class DivergedError(GptrsError):
    """The loss of a run is NaN or infinite."""

    exit_code = 5
    code = "diverged"


_LARGEST: Final = 2**63 - 1
"""The largest seed: a key of the random numbers has 64 bits."""
_Option = partial(Option, request=Missing("a server does not train"))


class Settings(Options, frozen=True, kw_only=True):
    """The settings of a run that affect its numbers.

    `dropout` is the probability of zeros in the values that layers add to the residual stream.
    `recompute` computes the insides of layers again in the backward part, instead of keeping them.
    """

    steps: Annotated[int, Meta(ge=1, description="Number of updates."), _Option(metavar="N")]
    batch: Annotated[
        int,
        Meta(ge=1, description="Rows per batch (default: 4; 16 for heads)."),
        _Option(metavar="N"),
    ]
    length: Annotated[
        int,
        Meta(ge=1, description="Tokens per row (default: the context, at most 512)."),
        _Option(metavar="N"),
    ]
    accumulate: Annotated[
        int, Meta(ge=1, description="Batches per update."), _Option(metavar="N")
    ] = 1
    rate: Annotated[float, Meta(ge=0, description="Highest learning rate."), _Option(metavar="X")]
    least_rate: Annotated[
        float,
        Meta(ge=0, description="Learning rate of the last update (default: a tenth of --rate)."),
        _Option(metavar="X"),
    ] = 0.0
    schedule: Annotated[
        Form,
        Meta(description="constant, linear, cosine, inverse_sqrt."),
        _Option(metavar="FORM", kind=TEXT, parsed=str),
    ] = "cosine"
    warmup: Annotated[
        int,
        Meta(ge=0, description="Updates of rising rate (default: a twentieth)."),
        _Option(metavar="N"),
    ] = 0
    optimizer: Annotated[
        str, Meta(description=f"{', '.join(OPTIMIZERS)}."), _Option(metavar="NAME")
    ] = "adamw"
    weight_decay: Annotated[
        float, Meta(ge=0, description="Weight decay of matrices."), _Option(metavar="X")
    ] = 0.0
    dropout: Annotated[
        float,
        Meta(ge=0, le=0.99, description="Dropout of the outputs of layers."),
        _Option(metavar="P"),
    ] = 0.0
    attention_dropout: Annotated[
        float, Meta(ge=0, le=0.99, description="Dropout in attention."), _Option(metavar="P")
    ] = 0.0
    lora_dropout: Annotated[
        float, Meta(ge=0, le=0.99, description="Dropout before the adapter."), _Option(metavar="P")
    ] = 0.0
    recompute: Annotated[
        bool, Meta(description="Compute layers again in the backward pass: less memory."), _Option()
    ] = False
    clip: Annotated[
        float,
        Meta(ge=0, description="Largest norm of a gradient; 0: no limit."),
        _Option(metavar="X"),
    ] = 1.0
    eval_every: Annotated[
        int, Meta(ge=1, description="Updates between evaluations."), _Option(metavar="N")
    ] = 100
    eval_batches: Annotated[
        int, Meta(ge=1, description="Batches per evaluation, at most."), _Option(metavar="N")
    ] = 25
    patience: Annotated[
        int,
        Meta(
            ge=0,
            description="Stop after N evaluations without improvement, keep the best weights;"
            " 0: never.",
        ),
        _Option(metavar="N"),
    ] = 0
    save_every: Annotated[
        int, Meta(ge=1, description="Updates between saved states."), _Option(metavar="N")
    ] = 100
    seed: Annotated[
        int,
        Meta(ge=0, le=_LARGEST, description="Seed of the order of data and of initial weights."),
        _Option(metavar="N"),
    ] = 0
    betas: Annotated[
        tuple[float, float],
        Meta(),
        _Option(kind=NUMBERS, flag=Missing("each command and optimizer has its own")),
    ] = (0.9, 0.999)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("schedule", FORMS), ("optimizer", OPTIMIZERS)):
            value = getattr(self, name)
            if value not in known:
                raise UsageError(
                    f"there is no {name} `{value}`", hint=f"it is one of {listed(known)}"
                )

    def made_dropout(self) -> Dropout:
        """Return the probabilities of dropout."""
        return Dropout(self.dropout, self.attention_dropout, self.lora_dropout)

    def made_schedule(self) -> Schedule:
        """Return the learning rate by the number of updates so far."""
        return schedule_of(self.schedule, self.rate, self.steps, self.warmup, self.least_rate)

    def made_optimizer(self, is_hidden: Callable[[str], bool]) -> Optimizer:
        """Return the optimizer with its schedule; biases and norms are not decayed.

        Muon is for matrices that are hidden by their name, without decay of the rest.
        """
        rate = self.made_schedule()
        decay, matrices = self.weight_decay, optimizers.matrices
        if self.optimizer == "sgd":
            return optimizers.sgd(rate, self.betas[0], weight_decay=decay, decayed=matrices)
        if self.optimizer == "lion":
            return optimizers.lion(rate, self.betas, decay, matrices)
        if self.optimizer == "adafactor":
            return optimizers.adafactor(rate, weight_decay=decay, decayed=matrices)
        if self.optimizer == "muon":
            rest = optimizers.adamw(rate, self.betas, weight_decay=0.0)
            return optimizers.divided(optimizers.muon(rate, weight_decay=decay), rest, is_hidden)
        return optimizers.adamw(rate, self.betas, weight_decay=decay, decayed=matrices)


class Status(Struct, frozen=True):
    """The state of a run after an update, for a progress line."""

    step: int
    steps: int
    loss: float
    valid_loss: float | None
    scores: Mapping[str, float]
    """Measures of the last evaluation, such as `accuracy`."""
    speed: float
    """Tokens or rows learnt from per second, as `unit` says."""
    unit: str
    memory: int
    """Peak memory of the process in bytes."""
    left: float | None
    """Seconds until the end; None until known."""


class Trainer:
    """A run: `learner` learns from `train`, is evaluated on `valid`, and saved in `saved`.

    `tell` is called after each update.
    """

    def __init__(
        self,
        learner: Learner,
        settings: Settings,
        train: Batches,
        valid: Batches | None,
        saved: SavedRun,
        backend: Backend,
        tell: Callable[[Status], None] = lambda status: None,
    ) -> None:
        self._learner, self._settings = learner, settings
        learner.dropout, learner.recomputes = settings.made_dropout(), settings.recompute
        self._train, self._valid = train, valid
        self._saved, self._backend, self._tell = saved, backend, tell
        self._optimizer = settings.made_optimizer(learner.is_hidden)
        # Donated tensors are updated in place: weights and moments exist once, not twice, at the
        # peak.
        self._update = gptrs.jit(self._whole_update, donate=["state"])
        self._part = gptrs.jit(self._part_of_update, donate=["sums"])
        self._last = gptrs.jit(self._end_of_update, donate=["state"])
        self._results = gptrs.jit(learner.results)
        self.at = Progressed()
        self.valid_loss: float | None = None
        self.scores: dict[str, float] = {}

    def run(self, *, resume: bool = False) -> tuple[Ended, dict[str, np.ndarray]]:
        """Run to the end; return how it ended, and what was learnt by name.

        Ctrl-C and SIGTERM end it after the current update, and what was learnt is kept.
        DivergedError if the loss is NaN or infinite; the last saved state is kept.
        """
        alone = self._saved.group is None
        with use_backend(self._backend), _interrupts(alone) as interrupted:
            state = self._first_state(resume)
            # Only once the first state exists: a run that fails before must not remove the state of
            # an earlier one.
            if not resume:
                self._saved.begin()
            with self._saved.measured() as metrics:
                ended = self._loop(state, metrics, interrupted)
            kept = _arrays(state["whole"]["trained"])
        # With patience, the weights after the last update are worse than the best by definition.
        if self._settings.patience and self.at.best is not None and self._saved.writes:
            kept = self._saved.load_best()
        return ended, kept

    def _loop(
        self, state: dict[str, Any], metrics: Metrics, interrupted: Callable[[], bool]
    ) -> Ended:
        settings, at = self._settings, self.at
        clock = _Clock(at.seconds)
        ended: Ended = "done"
        while at.step < settings.steps and ended == "done":
            loss, norm, rate, count = self._step(state)
            at.step += 1
            at.tokens += int(count)
            at.seconds = clock.seconds()
            # Before anything is saved: weights after an infinite gradient are NaN, and would
            # replace a good state.
            self._require_finite(loss, norm)
            metrics.add(
                {"step": at.step, "loss": loss, "norm": norm, "rate": rate, "tokens": at.tokens,
                 "seconds": round(at.seconds, 3)}
            )  # fmt: skip
            last = at.step == settings.steps
            # Asked after the update, whose result is whole; an interrupted run evaluates nothing,
            # so that Ctrl-C ends within one update.
            if interrupted():
                ended = "interrupted"
            elif self._valid is not None and (last or at.step % settings.eval_every == 0):
                self._evaluate(state, metrics)
                if settings.patience and at.stale >= settings.patience:
                    ended = "early"
            if last or ended != "done" or at.step % settings.save_every == 0:
                self._saved.save(_arrays(state["whole"]), at)
            self._tell(self._status(clock, loss))
        return ended

    def _status(self, clock: _Clock, loss: float) -> Status:
        at = self.at
        speed, left = clock.speed(at, self._settings.steps)
        return Status(
            step=at.step,
            steps=self._settings.steps,
            loss=loss,
            valid_loss=self.valid_loss,
            scores=self.scores,
            speed=speed,
            unit=self._learner.unit,
            memory=peak_memory(),
            left=left,
        )

    def _first_state(self, resume: bool) -> dict[str, Any]:
        first = self._learner.trained
        # The run updates tensors of its own. The initial values would stay in memory beside them: a
        # fifth of the peak of GPT-2 124M.
        self._learner.trained = {}
        if resume:
            whole, self.at = self._saved.load()
            rows = [row for row in self._saved.metrics if "valid_loss" in row]
            last: dict[str, Any] = rows[-1] if rows else {}
            self.valid_loss = last.get("valid_loss")
            self.scores = {n: x for n, x in last.items() if n not in ("step", "valid_loss")}
            return {"whole": _tensors(whole)}
        trained = _tensors(first)
        return {"whole": {"trained": trained, "optimizer": self._optimizer.init(trained)}}

    def _step(self, state: dict[str, Any]) -> list[float]:
        """Make an update, and return its loss, the norm of the gradient, the rate, and the tokens.

        `state["whole"]` is replaced: its tensors are consumed.
        """
        first = self.at.step * self._settings.accumulate
        if self._settings.accumulate == 1:
            batch, seed = self._train.batch(first), self._seed(first)
            found, state["whole"] = self._update(state["whole"], batch, seed)
        else:
            trained = state["whole"]["trained"]
            zeros = {name: np.zeros(x.shape, np.float32) for name, x in trained.items()}
            sums = _tensors({"grads": zeros, "loss": np.float32(0), "count": np.float32(0)})
            for number in range(first, first + self._settings.accumulate):
                sums = self._part(trained, sums, self._train.batch(number), self._seed(number))
            found, state["whole"] = self._last(state["whole"], sums)
        return [float(each.numpy()) for each in found]

    def _seed(self, number: int) -> np.ndarray | None:
        """Return the seed of the dropout in a batch, None without dropout."""
        return seed_of(self._settings.seed, number) if self._learner.dropout else None

    def _whole_update(self, state: Any, batch: Any, seed: Any) -> tuple[list[Tensor], Any]:
        loss, grads = gptrs.value_and_grad(self._learner.loss)(state["trained"], batch, seed)
        sums = {"grads": grads, "loss": loss, "count": _count(batch)}
        return self._end_of_update(state, sums)

    def _part_of_update(self, trained: Any, sums: Any, batch: Any, seed: Any) -> Any:
        loss, grads = gptrs.value_and_grad(self._learner.loss)(trained, batch, seed)
        return optimizers.added(sums, {"grads": grads, "loss": loss, "count": _count(batch)})

    def _end_of_update(self, state: Any, sums: Any) -> tuple[list[Tensor], Any]:
        """Return the facts of an update and the next state, of the sums over all tokens."""
        trained, inner = state["trained"], state["optimizer"]
        # Sums are divided once, by the tokens of all batches. A mean of means would weigh the
        # tokens of short batches more, and accumulation would differ from one large batch.
        share = 1.0 / F.maximum(sums["count"], 1.0)
        most = self._settings.clip if self._settings.clip > 0 else math.inf
        clipped, norm = optimizers.clip_by_global_norm(sums["grads"], most, share)
        updates, after = self._optimizer.update(clipped, inner, trained)
        # `+ zeros`: a constant schedule gives a float, and results of a captured function are
        # tensors.
        rate = self._settings.made_schedule()(F.cast(inner["count"], "f32")) + F.zeros(())
        facts = [sums["loss"] * share, norm, rate, sums["count"]]
        return facts, {"trained": optimizers.apply_updates(trained, updates), "optimizer": after}

    def _evaluate(self, state: dict[str, Any], metrics: Metrics) -> None:
        assert self._valid is not None, "it is asked before"
        total = count = 0.0
        batches: list[Any] = []
        outputs: list[np.ndarray] = []
        for batch in islice(self._valid.every(), self._settings.eval_batches):
            cost, found = self._results(state["whole"]["trained"], batch)
            total += float(cost.numpy())
            # Batches count by their weights: the last one is filled up with rows of weight 0.
            count += float(batch.weights.sum())
            if found is not None:
                batches.append(batch)
                outputs.append(found.numpy())
        at, loss = self.at, total / max(count, 1.0)
        self.valid_loss, self.scores = loss, self._learner.scores(outputs, batches)
        metrics.add({"step": at.step, "valid_loss": loss, **self.scores})
        # Equal is no improvement: a run whose loss has stopped moving ends, too.
        if at.best is not None and loss >= at.best:
            at.stale += 1
            return
        at.best, at.best_step, at.stale = loss, at.step, 0
        if self._settings.patience:
            self._saved.save_best(_arrays(state["whole"]["trained"]), at)

    def _require_finite(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        saved = f"the state after an earlier update is in `{self._saved.folder}`"
        raise DivergedError(
            f"the loss of update {self.at.step} is {loss:.4g}, the norm of its gradient {norm:.4g}:"
            " the run has diverged" + (f"; {saved}" if self._saved.exists else ""),
            hint="use a lower --rate or a longer --warmup, or look for odd rows in the data",
        )


class _Clock:
    """The time of a run, and the speed of its latest updates: the first ones compile."""

    def __init__(self, before: float) -> None:
        self._before, self._began = before, time.monotonic()
        self._marks: list[tuple[float, int, int]] = []

    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def speed(self, at: Progressed, steps: int) -> tuple[float, float | None]:
        """Return how much is learnt from per second, and the seconds until the end, if known."""
        self._marks = [*self._marks[-_MARKS:], (time.monotonic(), at.step, at.tokens)]
        (before, step, tokens), (now, _, _) = self._marks[0], self._marks[-1]
        span = now - before
        left = (steps - at.step) * span / (at.step - step) if at.step > step else None
        return (at.tokens - tokens) / span if span > 0 else 0.0, left


_MARKS: Final = 20
"""The number of updates over which the speed is measured."""


@contextmanager
def _interrupts(alone: bool) -> Generator[Callable[[], bool]]:
    """Scope in which a first Ctrl-C or SIGTERM only makes the function that it yields return true.

    In the middle of an update the weights are neither the old nor the new ones.
    """
    asked = threading.Event()
    # Python allows signal handlers in the main thread only. Elsewhere (notebook servers, Ray)
    # Ctrl-C keeps its meaning, as in one of several processes: the others would wait for it.
    if not alone or threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(number: int, frame: object) -> None:
        # The first signal lets the update finish, the second one is for a run that hangs.
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("ending after this update; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    # SIGTERM: batch systems and containers send it some seconds before they kill.
    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _count(batch: Any) -> Tensor:
    return F.sum(F.cast(batch.weights > 0, "f32"))


def _tensors(tree: Mapping[str, Any]) -> dict[str, Any]:
    return _mapped(tensor, tree)


def _arrays(tree: Mapping[str, Any]) -> dict[str, Any]:
    return _mapped(lambda x: x.numpy(), tree)


def _mapped(function: Callable[[Any], Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts with each value replaced."""
    return {
        name: _mapped(function, cast("Mapping[str, Any]", value))
        if isinstance(value, Mapping)
        else function(value)
        for name, value in tree.items()
    }
