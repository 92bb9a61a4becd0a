"""`gptrs finetune` and `gptrs train`: runs from the command line, with a line of progress."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
import typer
from msgspec.structs import replace

import gptrs
from gptrs.api import UsageError
from gptrs.quoting import counted, listed, quoted
from gptrs_runtime.load_options import LoadOptions, MachineOptions
from gptrs_runtime.option_fields import OptionsOf, in_own_words, option_fields
from gptrs_runtime.text_batches import shown_bytes
from gptrs_train import runs
from gptrs_train.batches import DataFacts
from gptrs_train.draft_learner import NewDraftHead
from gptrs_train.heads import TASKS
from gptrs_train.learner import ALL_LINEAR, LowRank
from gptrs_train.runs import Data, Facts, Outputs, Result, Watch
from gptrs_train.trainer import Settings, Status

_SECONDS: Final = 5.0
"""Between two lines of progress that go to a file."""
_COLUMNS: Final = 80
"""Of a terminal that does not tell."""
_INTERRUPTED: Final = 130


class _Row(NamedTuple):
    """An option: its type, its description, and its default in each command that has it."""

    kind: Any
    info: Any
    finetune: Any = inspect.Parameter.empty
    train: Any = inspect.Parameter.empty


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, **more)


_FIELDS: Final = option_fields(LoadOptions)
_DEVICES: Final = (
    *("device", "mesh", "backend_options", "coordinator", "processes", "process_id"),
)
"""Options of the backend beside its own words."""
_LATER: Final = dict.fromkeys(("batch", "length", "rate", "least_rate", "warmup", "weight_decay"))
"""Settings whose defaults depend on others, on the model or on the data."""
_DEFAULTS: Final[dict[str, dict[str, int | None]]] = {
    "finetune": {**_LATER, "steps": 600},
    "train": {**_LATER, "steps": 2000, "batch": 12, "eval_every": 250, "save_every": 250},
}
"""Defaults of settings that are those of a command."""


def _settings_of(command: str) -> OptionsOf:
    """Return the options of the settings of a run; there is no adapter in a model from scratch."""
    fields = {name: field for name, field in option_fields(Settings).items() if field.flag}
    if command == "train":
        del fields["lora_dropout"]
    own = _DEFAULTS[command]
    return OptionsOf(
        {
            name: replace(field, default=own.get(name, field.default), required=False)
            for name, field in fields.items()
        },
        told=True,
    )


_OPTIONS: Final[dict[str, _Row]] = {
    "data": _Row(
        Path,
        _option(
            "--data",
            metavar="PATH",
            help="A .jsonl, .txt or .bin file, or a folder with train.jsonl.",
        ),
        ...,
        ...,
    ),
    "out": _Row(
        Path, _option("--out", metavar="FOLDER", help="Write the result to this folder."), ..., ...
    ),
    "task": _Row(
        str | None,
        _option(
            "--task",
            metavar="NAME",
            help=f"generate, {', '.join(TASKS)} (default: by the columns of the data).",
        ),
        None,
    ),
    "lora": _Row(
        int | None,
        _option("--lora", metavar="R", min=1, help="Train an adapter of rank R (default: 8)."),
        None,
    ),
    "full": _Row(bool, _option("--full", help="Train all weights (the default for heads)."), False),
    "weights": _Row(
        list[str] | None,
        _option(
            "--weights",
            metavar="PATTERN",
            help="Train weights whose names match, such as '*.mlp.*'; repeatable.",
        ),
        None,
    ),
    "draft_head": _Row(
        bool,
        _option("--draft-head", help="Make a draft head for the model, which --draft loads."),
        False,
    ),
    "alpha": _Row(
        float | None,
        _option("--alpha", metavar="X", help="Scale of the adapter (default: 2 R)."),
        None,
    ),
    "target": _Row(
        list[str] | None,
        _option(
            "--target",
            metavar="LAYER",
            help=f"Layers of the adapter, such as q_proj; repeatable (default: {ALL_LINEAR}).",
        ),
        None,
    ),
    "valid": _Row(
        Path | None, _option("--valid", metavar="FILE", help="Evaluate on this file."), None, None
    ),
    "held_out": _Row(
        float,
        _option(
            "--held-out",
            metavar="SHARE",
            min=0,
            max=0.9,
            help="Hold out this share of the data, without --valid.",
        ),
        runs.HELD_OUT,
        runs.HELD_OUT,
    ),
    "mask_prompt": _Row(
        bool, _option("--mask-prompt/--no-mask-prompt", help="Train on answers only."), False, False
    ),
    "plain": _Row(
        bool,
        _option("--plain", help="Join prompt and completion without the chat template."),
        False,
    ),
    "pack": _Row(
        bool,
        _option("--pack/--no-pack", help="Put several texts in a row, with separate attention."),
        True,
        True,
    ),
    "settings": _Row(dict[str, Any], None, ..., ...),
    "resume": _Row(
        bool, _option("--resume", help="Continue a run that was stopped."), False, False
    ),
    "force": _Row(bool, _option("--force", help="Replace an existing result."), False, False),
    "machine": _Row(
        dict[str, Any],
        OptionsOf(
            in_own_words(
                LoadOptions,
                _FIELDS["backend"].reworded("Backend to train on."),
                _FIELDS["threads"].reworded("Threads of the backend.", least=1),
                _FIELDS["precision"].reworded(
                    "Type of products: f32, bf16.", metavar="TYPE", parsed=str
                ),
                without=[
                    *(name for name in option_fields(MachineOptions) if name not in _DEVICES),
                    *runs.UNTAKEN,
                ],
            ),
            told=True,
        ),
        ...,
        ...,
    ),
    "profile": _Row(
        bool, _option("--profile", help="Time each kernel; this slows updates."), False, False
    ),
    "profile_out": _Row(
        Path | None,
        _option(
            "--profile-out",
            metavar="DIR",
            help="Write the profile to this folder, with report.html.",
        ),
        None,
        None,
    ),
    "as_json": _Row(bool, _option("--json", help="Print the result as JSON."), False, False),
}
"""All options of both commands, in the order of their help."""


def finetune(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or ORG/NAME.")
    ],
    **given: Any,
) -> None:
    """Train a model further on your own data.

    A language model learns from chats, prompts and completions, or texts; an encoder from texts
    with labels, tagged tokens, pairs or triplets. OUT gets an adapter in PEFT's format (--lora) or
    a model folder (--full), which the other commands run, or a head that guesses tokens ahead for
    the model (--draft-head).
    """
    line, data = _Line(_is_first(given)), _data(given)
    what = _what(
        *(given[name] for name in ("lora", "full", "weights", "draft_head", "alpha", "target"))
    )
    for_head = runs.task_of_data(data) != runs.CONTINUE
    adapts = isinstance(what, LowRank) or (what is None and not for_head)
    own = {"batch": 16 if for_head else 4, **given["settings"]}
    rate = 1e-3 if isinstance(what, NewDraftHead) else 2e-4 if adapts else 2e-5
    settings = _settings(own, rate, (0.9, 0.999), 0.0)
    machine = LoadOptions(**given["machine"])
    with _profiled(given):
        result = runs.finetune(model, data, _outputs(given), what, settings, machine, line.watch())
        _end(result, given["as_json"], line)


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A folder with config.json and a tokenizer.")
    ],
    **given: Any,
) -> None:
    """Train a language model from scratch.

    CONFIG is a folder with the config.json of any kind of causal language model, and a tokenizer
    unless the data is tokens: a .bin file of uint16, as nanoGPT writes it. OUT gets a model folder.
    """
    line = _Line(_is_first(given))
    settings = _settings(given["settings"], 1e-3, (0.9, 0.99), 0.1)
    machine = LoadOptions(**given["machine"])
    with _profiled(given):
        result = runs.train(config, _data(given), _outputs(given), settings, machine, line.watch())
        _end(result, given["as_json"], line)


def _with_options(command: Callable[..., None]) -> None:
    """Give a command the options of the table, as typer reads them."""
    first = next(iter(inspect.signature(command, eval_str=True).parameters.values()))
    parameters = [first]
    for name, row in _OPTIONS.items():
        default = getattr(row, command.__name__)
        if default is inspect.Parameter.empty:
            continue
        own = inspect.Parameter.empty if default is ... else default
        annotation = Annotated[row.kind, row.info or _settings_of(command.__name__)]
        parameters.append(
            inspect.Parameter(name, first.KEYWORD_ONLY, default=own, annotation=annotation)
        )
    vars(command)["__signature__"] = inspect.Signature(parameters)


for _command in (finetune, train):
    _with_options(_command)


def _data(given: Mapping[str, Any]) -> Data:
    task = given.get("task")
    if task not in (None, runs.CONTINUE, *TASKS):
        raise UsageError(
            f"unknown task {quoted(task)}",
            hint=f"it is one of {listed((runs.CONTINUE, *TASKS))}",
        )
    return Data(
        given["data"],
        given["valid"],
        given["held_out"],
        mask_prompt=given["mask_prompt"],
        packed=given["pack"],
        templated=not given.get("plain", True),
        task=task,
    )


def _outputs(given: Mapping[str, Any]) -> Outputs:
    return Outputs(given["out"], given["resume"], given["force"])


def _what(
    lora: int | None,
    full: bool,
    weights: Sequence[str] | None,
    draft_head: bool,
    alpha: float | None,
    target: Sequence[str] | None,
) -> LowRank | NewDraftHead | Sequence[str] | None:
    """Return what is trained, None for the default; UsageError for options that do not combine."""
    asked = [
        name
        for name, given in (
            ("--lora", lora),
            ("--full", full),
            ("--weights", weights),
            ("--draft-head", draft_head),
        )
        if given
    ]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} exclude each other")
    if full or weights or draft_head:
        if alpha is not None or target:
            raise UsageError("--alpha and --target are for adapters", hint="take --lora R")
        return NewDraftHead() if draft_head else list(weights or ["*"])
    if lora is None and alpha is None and not target:
        return None
    rank = lora or 8
    return LowRank(rank, 2.0 * rank if alpha is None else alpha, tuple(target or (ALL_LINEAR,)))


def _settings(
    given: Mapping[str, Any], rate: float, betas: tuple[float, float], decay: float
) -> Callable[[int], Settings]:
    """Return the settings of the options of a command, by the longest row of the model."""
    steps = cast("int", given["steps"])
    own = dict(given)
    top = cast("float", own.setdefault("rate", rate))
    own.setdefault("warmup", steps // 20)
    own.setdefault("weight_decay", decay)
    # Lion's paper uses 0.9 and 0.99 for both commands; AdamW's second beta differs between them.
    if own["optimizer"] == "lion":
        betas = (0.9, 0.99)

    def settings(length: int) -> Settings:
        fields: dict[str, Any] = {"length": length, "least_rate": top / 10, "betas": betas, **own}
        return Settings(**fields)

    return settings


@contextmanager
def _profiled(given: Mapping[str, Any]) -> Generator[None]:
    """Scope of a run; at its end, print or write the profile that the options ask for."""
    folder = given["profile_out"]
    if folder is None and not given["profile"]:
        yield
        return
    profile = None
    try:
        with gptrs.profiling(folder, " ".join(["gptrs", *sys.argv[1:]])) as profile:
            yield
    finally:
        if profile is not None and profile.programs:
            told = f"profile written to {folder}; open report.html in it"
            print(profile.table() if folder is None else told, file=sys.stderr)


def _is_first(given: Mapping[str, Any]) -> bool:
    """Return whether this process, of one or several, is the one that tells and writes."""
    group = LoadOptions(**given["machine"]).group()
    return group is None or group.number == 0


class _Line:
    """The progress of a run on standard error: one line that changes, or one every few seconds."""

    def __init__(self, tells: bool) -> None:
        self.tells = tells
        self._live = sys.stderr.isatty()
        self._told = 0.0
        self._open = False
        self._valid: float | None = None

    def watch(self) -> Watch:
        return Watch(self._texts, self._began, self._update) if self.tells else Watch()

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
        for_what = "" if facts.task == runs.CONTINUE else f" for `gptrs {facts.task}`"
        if len(facts.labels) > 1:
            for_what += f", {len(facts.labels)} classes: {listed(facts.labels, 8)}"
        print(
            f"{again}{facts.model} learns {_count(own)}{share} parameters{for_what}",
            file=sys.stderr,
        )
        for name, own in (("data", facts.data), ("held out", facts.valid)):
            if own is not None:
                print(f"{name}: {_described(own)}", file=sys.stderr, flush=True)
        if facts.valid is None:
            print("nothing is held out: give --valid or --held-out", file=sys.stderr, flush=True)

    def _update(self, status: Status) -> None:
        last = status.step == status.steps
        evaluated = status.valid_loss is not None and status.valid_loss != self._valid
        self._valid = status.valid_loss
        parts = [f"update {status.step} of {status.steps}", f"loss {status.loss:.4f}"]
        if status.valid_loss is not None:
            parts.append(f"held out {status.valid_loss:.4f}")
        parts += [f"{name} {score:.3f}" for name, score in status.scores.items()]
        if status.speed:
            parts.append(f"{status.speed:,.0f} {status.unit}/s")
        parts.append(shown_bytes(status.memory))
        if status.left is not None and not last:
            parts.append(f"{_duration(status.left)} left")
        self._show("  ".join(parts), last or evaluated or status.step == 1)

    def _show(self, text: str, keep: bool) -> None:
        now = time.monotonic()
        # Small models make hundreds of updates a second; a terminal need not draw them all.
        if not keep and now - self._told < (0.2 if self._live else _SECONDS):
            return
        self._told = now
        if self._live:
            # `\033[K` clears the rest of a longer line before; of one that wrapped, its last part.
            shown = text if keep else text[: _columns() - 1]
            print(f"\r\033[K{shown}", end="\n" if keep else "", file=sys.stderr, flush=True)
            self._open = not keep
        else:
            print(text, file=sys.stderr, flush=True)


def _columns() -> int:
    """Return the width of the terminal on standard error, 80 if it is unknown."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    return _COLUMNS


def _described(data: DataFacts) -> str:
    parts = [f"{data.tokens:,} tokens"]
    if data.texts > 1:
        up_to = "up to " if data.texts % data.rows == 0 else ""
        rows = "1 row" if data.rows == 1 else f"{data.rows:,} rows"
        parts = [
            f"{data.texts:,} texts of {data.tokens:,} tokens in {rows} of {up_to}{data.length}"
        ]
        parts.append(f"{data.learnt:,} learnt")
    if data.cut:
        parts.append(f"{data.cut:,} texts cut to {data.length + 1} tokens")
    if data.left_out:
        parts.append(f"{data.left_out:,} texts left out: no token of them counts")
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
    if not line.tells:
        return
    if as_json:
        fields = {"schema": "gptrs.train/1", **msgspec.to_builtins(result)}
        print(msgspec.json.encode(fields).decode())
    how = {"done": "", "early": "ended early: ", "interrupted": "interrupted, all is kept: "}
    parts = [f"{how[result.ended]}{counted(result.steps, 'update')}, loss {result.loss:.4f}"]
    if result.best_loss is not None:
        parts.append(f"held out {result.best_loss:.4f} at update {result.best_step}")
    print(f"{', '.join(parts)}; {result.out} is written", file=sys.stderr)
    if result.ended == "interrupted":
        raise typer.Exit(_INTERRUPTED)
