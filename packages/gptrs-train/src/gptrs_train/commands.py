"""`gptrs finetune` and `gptrs train`: runs from the command line, with a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from gptrs.api import UsageError
from gptrs_runtime.text_batches import shown_bytes
from gptrs_train import runs
from gptrs_train.batches import Told
from gptrs_train.learner import ALL_LINEAR, LowRank
from gptrs_train.runs import Data, Facts, Machine, Outputs, Result, Watch
from gptrs_train.trainer import OPTIMIZERS, Settings, Status

_SECONDS: Final = 5.0
"""Between two lines of progress that go to a file."""
_INTERRUPTED: Final = 130

_Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, ORG/NAME.")]
_Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A folder with config.json and a tokenizer.")
]
_DataPath = Annotated[
    Path,
    typer.Option("--data", metavar="PATH", help="A .jsonl, .txt or .bin, or a folder of them."),
]
_Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="What is learnt goes here.")]
_Valid = Annotated[
    Path | None, typer.Option("--valid", metavar="FILE", help="Held-out data to evaluate on.")
]
_HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out", metavar="SHARE", min=0, max=0.9, help="Of the data, without --valid."
    ),
]
_Mask = Annotated[
    bool, typer.Option("--mask-prompt/--no-mask-prompt", help="Learn the answers alone.")
]
_Plain = Annotated[
    bool, typer.Option("--plain", help="Prompts go on with completions: no chat template.")
]
_Packed = Annotated[
    bool, typer.Option("--pack/--no-pack", help="Several texts in a row, apart from each other.")
]
_Rank = Annotated[
    int | None, typer.Option("--lora", metavar="R", min=1, help="Learn an adapter of rank R.")
]
_Alpha = Annotated[
    float | None, typer.Option("--alpha", metavar="X", help="Of the adapter (default 2 R).")
]
_Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="LAYER", help=f"Its layers: q_proj, ...; repeatable ({ALL_LINEAR})."
    ),
]
_Full = Annotated[bool, typer.Option("--full", help="Learn all weights.")]
_Weights = Annotated[
    list[str] | None,
    typer.Option("--weights", metavar="PATTERN", help="Learn these: '*.mlp.*'; repeatable."),
]
_Steps = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Updates.")]
_Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Rows of a batch.")]
_Length = Annotated[
    int | None,
    typer.Option("--length", metavar="N", min=1, help="Tokens of a row (the context, <= 512)."),
]
_Accumulate = Annotated[
    int, typer.Option("--accumulate", metavar="N", min=1, help="Batches of an update.")
]
_Rate = Annotated[
    float | None, typer.Option("--rate", metavar="X", min=0, help="The highest learning rate.")
]
_Schedule = Annotated[
    str,
    typer.Option("--schedule", metavar="FORM", help="constant, linear, cosine, inverse_sqrt."),
]
_Warmup = Annotated[
    int | None,
    typer.Option("--warmup", metavar="N", min=0, help="Updates that rise to it (a twentieth)."),
]
_Optimizer = Annotated[
    str, typer.Option("--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)}.")
]
_Decay = Annotated[
    float | None, typer.Option("--weight-decay", metavar="X", min=0, help="Of matrices.")
]
_Clip = Annotated[
    float,
    typer.Option("--clip", metavar="X", min=0, help="The largest norm of a gradient, 0: any."),
]
_Every = Annotated[
    int, typer.Option("--eval-every", metavar="N", min=1, help="Updates between evaluations.")
]
_EvalBatches = Annotated[
    int, typer.Option("--eval-batches", metavar="N", min=1, help="Most batches of one.")
]
_Patience = Annotated[
    int,
    typer.Option(
        "--patience",
        metavar="N",
        min=0,
        help="End after N evaluations without gain, keep the best.",
    ),
]
_Save = Annotated[
    int, typer.Option("--save-every", metavar="N", min=1, help="Updates between saved states.")
]
_Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Of order and first weights.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that was begun.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
_Backend = Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Run on it.")]
_Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Threads of the backend.")
]
_Precision = Annotated[
    str | None, typer.Option("--precision", metavar="TYPE", help="Of products: f32, bf16.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print how it ended as JSON.")]


def finetune(
    model: _Model,
    *,
    data: _DataPath,
    out: _Out,
    lora: _Rank = None,
    full: _Full = False,
    weights: _Weights = None,
    alpha: _Alpha = None,
    target: _Targets = None,
    valid: _Valid = None,
    held_out: _HeldOut = runs.HELD_OUT,
    mask_prompt: _Mask = False,
    plain: _Plain = False,
    pack: _Packed = True,
    steps: _Steps = 600,
    batch: _Batch = 4,
    length: _Length = None,
    accumulate: _Accumulate = 1,
    rate: _Rate = None,
    schedule: _Schedule = "cosine",
    warmup: _Warmup = None,
    optimizer: _Optimizer = "adamw",
    weight_decay: _Decay = None,
    clip: _Clip = 1.0,
    eval_every: _Every = 100,
    eval_batches: _EvalBatches = 25,
    patience: _Patience = 0,
    save_every: _Save = 100,
    seed: _Seed = 0,
    resume: _Resume = False,
    force: _Force = False,
    backend: _Backend = None,
    threads: _Threads = None,
    precision: _Precision = None,
    as_json: _Json = False,
) -> None:
    """Train a language model on with files of your own.

    OUT gets an adapter as PEFT has it (--lora, rank 8 unless told), or a model folder (--full).
    Rows of a .jsonl file have `messages`, `prompt` and `completion`, or `text`.
    """
    line, given = _Line(), locals()
    what = _what(lora, full, weights, alpha, target)
    settings = _settings(given, 2e-4 if isinstance(what, LowRank) else 2e-5, (0.9, 0.999), 0.0)
    files = Data(data, valid, held_out, mask_prompt, pack, not plain)
    where, machine = Outputs(out, resume, force), Machine(backend, threads, precision)
    result = runs.finetune(model, files, where, what, settings, machine, line.watch())
    _end(result, as_json, line)


def train(
    config: _Config,
    *,
    data: _DataPath,
    out: _Out,
    valid: _Valid = None,
    held_out: _HeldOut = runs.HELD_OUT,
    mask_prompt: _Mask = False,
    pack: _Packed = True,
    steps: _Steps = 2000,
    batch: _Batch = 12,
    length: _Length = None,
    accumulate: _Accumulate = 1,
    rate: _Rate = None,
    schedule: _Schedule = "cosine",
    warmup: _Warmup = None,
    optimizer: _Optimizer = "adamw",
    weight_decay: _Decay = None,
    clip: _Clip = 1.0,
    eval_every: _Every = 250,
    eval_batches: _EvalBatches = 25,
    patience: _Patience = 0,
    save_every: _Save = 250,
    seed: _Seed = 0,
    resume: _Resume = False,
    force: _Force = False,
    backend: _Backend = None,
    threads: _Threads = None,
    precision: _Precision = None,
    as_json: _Json = False,
) -> None:
    """Train a language model from nothing.

    CONFIG is a folder with the config.json of any kind of causal language model, and a tokenizer
    unless the data is tokens: a .bin of uint16, as nanoGPT writes it. OUT gets a model folder.
    """
    line, given = _Line(), locals()
    settings = _settings(given, 1e-3, (0.9, 0.99), 0.1)
    files = Data(data, valid, held_out, mask_prompt, pack, False)
    where, machine = Outputs(out, resume, force), Machine(backend, threads, precision)
    result = runs.train(config, files, where, settings, machine, line.watch())
    _end(result, as_json, line)


def _what(
    lora: int | None,
    full: bool,
    weights: Sequence[str] | None,
    alpha: float | None,
    target: Sequence[str] | None,
) -> LowRank | Sequence[str]:
    """Return what is learnt; UsageError for options that exclude each other."""
    asked = [
        name
        for name, given in (("--lora", lora), ("--full", full), ("--weights", weights))
        if given
    ]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other")
    if full or weights:
        if alpha is not None or target:
            raise UsageError("--alpha and --target are of adapters", hint="take --lora R")
        return list(weights or ["*"])
    rank = lora or 8
    return LowRank(rank, 2.0 * rank if alpha is None else alpha, tuple(target or (ALL_LINEAR,)))


def _settings(
    given: dict[str, Any], rate: float, betas: tuple[float, float], decay: float
) -> Callable[[int], Settings]:
    """Return the settings of the options of a command, by the longest row of the model."""
    steps = cast("int", given["steps"])
    own = {name: given[name] for name in Settings.__struct_fields__ if given.get(name) is not None}
    top = cast("float", own.setdefault("rate", rate))
    own.setdefault("warmup", steps // 20)
    own.setdefault("weight_decay", decay)
    if own["optimizer"] == "lion":
        betas = (0.9, 0.99)

    def settings(length: int) -> Settings:
        fields: dict[str, Any] = {"length": length, "least_rate": top / 10, "betas": betas, **own}
        return Settings(**fields)

    return settings


class _Line:
    """The progress of a run on standard error: one line that changes, or one every few seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._told = 0.0
        self._open = False
        self._valid: float | None = None

    def watch(self) -> Watch:
        return Watch(self._texts, self._began, self._update)

    def close(self) -> None:
        if self._open:
            print(file=sys.stderr)
        self._open = False

    def _texts(self, done: int, total: int) -> None:
        if self._live:
            self._show(f"{done} of {total} rows read", done == total)

    def _began(self, facts: Facts) -> None:
        own, rest = facts.trained, facts.frozen
        share = f" of {_count(own + rest)}" if rest else ""
        again = "going on: " if facts.resumed else ""
        print(f"{again}{facts.model} learns {_count(own)}{share} parameters", file=sys.stderr)
        for name, told in (("data", facts.data), ("held out", facts.valid)):
            if told is not None:
                print(f"{name}: {_told(told)}", file=sys.stderr, flush=True)
        if facts.valid is None:
            print("nothing is held out: give --valid or --held-out", file=sys.stderr, flush=True)

    def _update(self, status: Status) -> None:
        last = status.step == status.steps
        evaluated = status.valid_loss is not None and status.valid_loss != self._valid
        self._valid = status.valid_loss
        parts = [f"update {status.step} of {status.steps}", f"loss {status.loss:.4f}"]
        if status.valid_loss is not None:
            parts.append(f"held out {status.valid_loss:.4f}")
        if status.tokens_per_second:
            parts.append(f"{status.tokens_per_second:,.0f} tokens/s")
        parts.append(shown_bytes(status.memory))
        if status.left is not None and not last:
            parts.append(f"{_duration(status.left)} left")
        self._show("  ".join(parts), last or evaluated or status.step == 1)

    def _show(self, text: str, keep: bool) -> None:
        now = time.monotonic()
        if not keep and now - self._told < (0.2 if self._live else _SECONDS):
            return
        self._told = now
        if self._live:
            print(f"\r\033[K{text}", end="\n" if keep else "", file=sys.stderr, flush=True)
            self._open = not keep
        else:
            print(text, file=sys.stderr, flush=True)


def _told(told: Told) -> str:
    parts = [f"{told.tokens:,} tokens"]
    if told.texts > 1:
        parts = [
            f"{told.texts:,} texts of {told.tokens:,} tokens in {told.rows:,} rows of {told.length}"
        ]
        parts.append(f"{told.learnt:,} learnt")
    if told.cut:
        parts.append(f"{told.cut:,} texts cut to {told.length + 1} tokens")
    if told.left_out:
        parts.append(f"{told.left_out:,} texts left out: nothing to learn in them")
    return ", ".join(parts)


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def _end(result: Result, as_json: bool, line: _Line) -> None:
    line.close()
    if as_json:
        fields = {"schema": "gptrs.train/1", **msgspec.to_builtins(result)}
        print(msgspec.json.encode(fields).decode())
    how = {"done": "", "early": "ended early: ", "interrupted": "interrupted, all is kept: "}
    parts = [f"{how[result.ended]}{result.steps} updates, loss {result.loss:.4f}"]
    if result.best_loss is not None:
        parts.append(f"held out {result.best_loss:.4f} at update {result.best_step}")
    print(f"{', '.join(parts)}; {result.out} is written", file=sys.stderr)
    if result.ended == "interrupted":
        raise typer.Exit(_INTERRUPTED)
