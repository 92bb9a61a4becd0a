"""A whole run: a model, files and settings in; an adapter or a model folder out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

import gptrs
from gptrs.api import GptrsError, UsageError
from gptrs.api.backends import Backend, ProcessGroup, memory_limit
from gptrs.progress import Progress
from gptrs.quoting import quoted
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.embedding.modules import EmbeddingRecipe, Pooling, embedding_recipe
from gptrs_runtime.load import load
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.loaded_model import LoadedModel, stated_tokens
from gptrs_runtime.sources.hf_directory import HfDirectory
from gptrs_runtime.sources.model_source import CONFIG, ModelSource
from gptrs_runtime.text_batches import shown_bytes
from gptrs_runtime.text_classes.classify import has_segments
from gptrs_runtime.tokenization.tokenizer import tokenizer_of
from gptrs_train.batches import (
    Batches,
    DataFacts,
    Rows,
    Windows,
    batches_of,
    held_out,
    longest,
    split,
)
from gptrs_train.chat_rows import DataError
from gptrs_train.data import ModelTexts, Source, Texts, files_of, note_unread, read_source
from gptrs_train.draft_learner import DraftLearner, NewDraftHead
from gptrs_train.head_rows import (
    Encoder,
    HeadRow,
    HeadRows,
    goal_of,
    read_head_rows,
    task_of,
    with_known_labels,
)
from gptrs_train.heads import HeadLearner, Task
from gptrs_train.learner import Learner, LowRank
from gptrs_train.products import require_new, write_product
from gptrs_train.saved_run import SavedRun, SavedRunError, digest_of_file, digest_of_run
from gptrs_train.trainer import Ended, Settings, Status, Trainer

CONTINUE: Final[Literal["generate"]] = "generate"
"""The task of texts to continue."""
HELD_OUT: Final = 0.05
"""Share of the data that is held out if there is no file to evaluate on."""
_PRECISIONS: Final = ("f32", "bf16")
_LENGTH: Final = 512
"""Default number of tokens per row, if the context is that long."""
_COPIES: Final = {"adamw": 4, "muon": 4, "lion": 3, "adafactor": 2, "sgd": 3}
"""Weights, gradients and moments, in multiples of the weights."""


class Data(Struct, frozen=True):
    """Files, and how to read them: see `gptrs_train.data` for their forms."""

    path: Path
    valid: Path | None = None
    held_out: float = HELD_OUT
    mask_prompt: bool = False
    packed: bool = True
    templated: bool = True
    """Prompts and completions are messages of a chat, if the model has a template."""
    task: Task | Literal["generate"] | None = None
    """The task of the rows; None: the one for the columns of the first row."""


class Outputs(Struct, frozen=True):
    """The folder that a run writes to, and how it treats existing files."""

    out: Path
    resume: bool = False
    force: bool = False
    group: ProcessGroup | None = None
    """The processes that run together; the first one writes."""


class Watch(Struct, frozen=True):
    """Callbacks: `texts` as rows become tokens, `began` before the updates, `tell` after each."""

    texts: Progress | None = None
    began: Callable[[Facts], None] = lambda facts: None
    tell: Callable[[Status], None] = lambda status: None


_HERE: Final = LoadOptions()
UNTAKEN: Final = ("weights", "weight_budget", "adapter")
"""Options of loading that training does not take: what learns must be whole, and in memory."""
_UNWATCHED: Final = Watch()


class Facts(msgspec.Struct, kw_only=True):
    """The facts of a run, known before the first update."""

    model: str
    trained: int
    """The number of trained parameters."""
    frozen: int
    data: DataFacts
    valid: DataFacts | None
    resumed: bool
    task: str
    """The command that runs the head, or `generate`."""
    labels: list[str]


class Result(msgspec.Struct, kw_only=True):
    """How a run ended."""

    out: str
    ended: Ended
    steps: int
    loss: float
    """The mean of the last updates, at most 20."""
    valid_loss: float | None
    best_loss: float | None
    best_step: int
    scores: dict[str, float]
    """Measures of the last evaluation: `accuracy`, `f1`, or `correlation`."""
    tokens: int
    """Tokens that counted in the loss; rows, for a head."""
    seconds: float
    trained: int
    frozen: int
    data: DataFacts
    valid: DataFacts | None


def finetune(
    model: str | Path | None,
    data: Data,
    outputs: Outputs,
    what: LowRank | NewDraftHead | Sequence[str] | None,
    settings: Callable[[int], Settings],
    machine: LoadOptions = _HERE,
    watch: Watch = _UNWATCHED,
) -> Result:
    """Train a model further; `what` is an adapter, a draft head, or patterns of weight names.

    None means an adapter of rank 8, or all weights if the rows are for a head. `settings(length)`
    gets the context of the model, at most 512. Raises UsageError, ModelError, DataError and
    SavedRunError before the first update, DivergedError after one.
    """
    machine.refuse("training", UNTAKEN)
    outputs = replace(outputs, group=machine.group())
    loaded = load(model, replace(machine, precision=machine.precision or "f32"))
    backend, identity = loaded.backend, weights_digest(loaded.weights).hex()
    task = task_of_data(data)
    note_unread(data.path)
    if isinstance(what, NewDraftHead):
        if task != CONTINUE:
            raise UsageError(f"rows for `gptrs {task}` have no texts for a draft head")
        learner: Learner = DraftLearner(loaded.files, backend, settings(1).seed)
    elif task != CONTINUE:
        return _finetune_head(loaded, task, data, outputs, what, settings, identity, watch)
    else:
        chosen = LowRank(8, 16.0) if what is None else what
        learner = Learner(loaded.files, backend, chosen, seed=settings(1).seed)
    learner.identity = identity
    texts = partial(ModelTexts.of_model, loaded, templated=data.templated)
    whole = _whole_settings(learner, settings, backend)
    read = _read(learner, texts, data, whole, watch)
    fresh = isinstance(learner, DraftLearner)
    return _run(learner, read, data, outputs, whole, backend, identity, watch, fresh=fresh)


def task_of_data(data: Data) -> Task | Literal["generate"]:
    """Return the task to train for, by default that of the columns of the first row."""
    return data.task or task_of(files_of(data.path, data.valid)[0]) or CONTINUE


def _finetune_head(
    loaded: LoadedModel,
    task: Task,
    data: Data,
    outputs: Outputs,
    what: LowRank | Sequence[str] | None,
    settings_of: Callable[[int], Settings],
    identity: str,
    watch: Watch,
) -> Result:
    """Train an encoder with a head, as `finetune` does."""
    if data.mask_prompt:
        raise UsageError(f"rows for `gptrs {task}` have no prompts to mask")
    files, backend = loaded.files, loaded.backend
    path, valid_path = files_of(data.path, data.valid)
    rows, held = _head_rows(path, valid_path, task, data.held_out, settings_of(1).seed)
    goal = goal_of(task, rows, files.config, held=_has_head(files.config, task))
    recipe = embedding_recipe(files) if task == "embed" else EmbeddingRecipe(Pooling())
    seed = settings_of(1).seed
    learner = HeadLearner(files, backend, what or ["*"], goal, recipe, seed)
    settings = _whole_settings(learner, settings_of, backend)
    learner.length = min(settings.length, recipe.max_length or settings.length)
    encoder = Encoder(
        loaded.tokenizer,
        learner.length,
        segments=has_segments(loaded),
        prompt=recipe.default_prompt,
        prompt_pooled=recipe.pooling.include_prompt,
        lower_case=recipe.lower_case,
    )
    made = [
        None if each is None else HeadRows(each, encoder, goal, settings.batch, seed, watch.texts)
        for each in (rows, held)
    ]
    assert made[0] is not None, "there are rows"
    digests = [digest_of_file(each) for each in (path, valid_path) if each is not None]
    read = made[0], made[1], digests
    return _run(learner, read, data, outputs, settings, backend, identity, watch)


def _head_rows(
    path: Path, valid: Path | None, task: Task, share: float, seed: int
) -> tuple[list[HeadRow], list[HeadRow] | None]:
    """Return the rows to learn from, and the held-out rows, if any."""
    try:
        rows = read_head_rows(path, task)
        if valid is not None:
            return rows, read_head_rows(valid, task)
    except OSError as error:
        raise _unreadable(error) from error
    # The seed decides, so a resumed run holds out the same rows.
    held = with_known_labels(rows, held_out(seed, share, len(rows)))
    if not held:
        return rows, None
    return (
        [row for number, row in enumerate(rows) if number not in held],
        [row for number, row in enumerate(rows) if number in held],
    )


def _has_head(config: Mapping[str, object], task: Task) -> bool:
    names = config.get("architectures")
    suffix = "ForTokenClassification" if task == "tag" else "ForSequenceClassification"
    return isinstance(names, list) and str(next(iter(cast("list[object]", names)), "")).endswith(
        suffix
    )


def train(
    config: Path,
    data: Data,
    outputs: Outputs,
    settings: Callable[[int], Settings],
    machine: LoadOptions = _HERE,
    watch: Watch = _UNWATCHED,
) -> Result:
    """Train a model from scratch, by the config.json in a folder and, for texts, its tokenizer.

    Errors as of `finetune`.
    """
    folder = config.parent if config.name == CONFIG and config.is_file() else config
    source = HfDirectory.open(folder, weighted=False)
    machine.refuse("training", UNTAKEN)
    outputs = replace(outputs, group=machine.group())
    backend = machine.made_backend().with_precision(machine.precision)
    learner = Learner(source, backend, ["*"], fresh=True, seed=settings(1).seed)
    whole = _whole_settings(learner, settings, backend)
    note_unread(data.path)
    read = _read(learner, partial(_texts_of, source), data, whole, watch)
    return _run(learner, read, data, outputs, whole, backend, "", watch, fresh=True)


def _texts_of(source: ModelSource) -> Texts:
    ends = stated_tokens("eos_token_id", source.generation_config, source.config)
    return ModelTexts(source.name, tokenizer_of(source, source.name), ends)


def _whole_settings(
    learner: Learner, settings_of: Callable[[int], Settings], backend: Backend
) -> Settings:
    """Return the settings for the context of a model; UsageError for settings that do not fit."""
    settings = settings_of(min(learner.context_length, _LENGTH))
    if backend.precision not in _PRECISIONS:
        raise UsageError(
            f"products in `{backend.precision}` have no gradients",
            hint=f"--precision {' or '.join(_PRECISIONS)}",
        )
    if settings.lora_dropout and learner.adapter is None:
        raise UsageError("`lora_dropout` is for adapters", hint="take --lora R")
    if settings.lora_dropout and learner.experts:
        raise UsageError(
            "`lora_dropout` is for layers: factors of experts are added to their weights, as in"
            " PEFT",
            hint="leave it out, or leave out --target experts",
        )
    _require_context(learner, settings)
    return settings


def _run(
    learner: Learner,
    read: tuple[Batches, Batches | None, list[str]],
    data: Data,
    outputs: Outputs,
    settings: Settings,
    backend: Backend,
    identity: str,
    watch: Watch,
    *,
    fresh: bool = False,
) -> Result:
    rows, valid, digests = read
    run = _identity(learner, settings, data, backend, [identity, *digests])
    digest = digest_of_run(run)
    sources = (learner.source.path, data.path)
    saved = SavedRun.beside(outputs.out, run, outputs.group)

    # All refusals come before the first update: hours of training must not end in "the folder
    # exists".
    def require() -> None:
        if outputs.resume:
            saved.require_same()
        if saved.writes:
            require_new(outputs.out, digest, sources, resume=outputs.resume, force=outputs.force)
            _require_unfinished(saved, outputs)
        _require_room(learner, settings, saved, fresh=fresh)

    _together(backend, digest, require)
    trainer = Trainer(learner, settings, rows, valid, saved, backend, watch.tell)
    facts = Facts(
        model=learner.source.name,
        trained=sum(array.size for array in learner.trained.values()),
        frozen=learner.frozen,
        data=rows.facts(),
        valid=None if valid is None else valid.facts(),
        resumed=outputs.resume,
        task=learner.goal.task if isinstance(learner, HeadLearner) else CONTINUE,
        labels=list(learner.goal.labels) if isinstance(learner, HeadLearner) else [],
    )
    watch.began(facts)
    with saved.alone():
        ended, kept = trainer.run(resume=outputs.resume)
        result = _result(outputs.out, ended, trainer, facts, saved)
        report = {"run": digest, "settings": run, "result": msgspec.to_builtins(result)}
        if saved.writes:
            write_product(outputs.out, learner, kept, report, saved.metrics, fresh=fresh)
        # No process ends before the others: what it serves them would be gone.
        backend.agree(lambda: {"end": ended})
    return result


def _together(backend: Backend, digest: str, require: Callable[[], None]) -> None:
    """Call `require` in all processes; raise its error, or that of another one, in each of them.

    UsageError for another run than in the first process.
    """
    try:
        require()
    except GptrsError as error:
        shown = error.message
        with contextlib.suppress(UsageError):  # what is told below is the reason
            backend.agree(lambda: {"run": digest, "folder or machine": shown})
        raise
    backend.agree(lambda: {"run": digest, "folder or machine": "nothing to refuse"})


def _result(out: Path, ended: Ended, trainer: Trainer, facts: Facts, saved: SavedRun) -> Result:
    at = trainer.at
    last = [row["loss"] for row in saved.metrics if "loss" in row][-20:]
    return Result(
        out=str(out),
        ended=ended,
        steps=at.step,
        loss=sum(last) / max(len(last), 1),
        valid_loss=trainer.valid_loss,
        best_loss=at.best,
        best_step=at.best_step,
        scores=trainer.scores,
        tokens=at.tokens,
        seconds=round(at.seconds, 3),
        trained=facts.trained,
        frozen=facts.frozen,
        data=facts.data,
        valid=facts.valid,
    )


def _read(
    learner: Learner, texts: Callable[[], Texts], data: Data, settings: Settings, watch: Watch
) -> tuple[Windows | Rows, Windows | Rows | None, list[str]]:
    """Return the batches to learn from and to evaluate on, and the digests of the files."""
    path, valid_path = files_of(data.path, data.valid)
    read = partial(
        read_source, texts=texts, vocabulary=learner.vocabulary, mask_prompt=data.mask_prompt,
        progress=watch.texts,
    )  # fmt: skip
    try:
        digests = [digest_of_file(each) for each in (path, valid_path) if each is not None]
        source, held = read(path), None if valid_path is None else read(valid_path)
    except OSError as error:
        raise _unreadable(error) from error
    if held is None:
        source, held = split(source, data.held_out, settings.seed, settings.length)
    return *_batches(source, held, settings, data.packed), digests


def _unreadable(error: OSError) -> DataError:
    return DataError(f"cannot read {quoted(str(error.filename), 200)}: {error.strerror}")


def _require_context(learner: Learner, settings: Settings) -> None:
    most = learner.context_length
    if settings.length > most:
        raise UsageError(
            f"rows of {settings.length} tokens do not fit into the context of {most} of"
            f" {quoted(learner.source.name)}",
            hint=f"--length {most}",
        )


def _batches(
    source: Source, held: Source | None, settings: Settings, packed: bool
) -> tuple[Windows | Rows, Windows | Rows | None]:
    size, seed = settings.batch, settings.seed
    # Rows that no text fills would be padding alone.
    length = longest(source, settings.length) if not packed else settings.length
    rows = batches_of(source, length, size, seed, packed=packed)
    return rows, None if held is None else batches_of(held, length, size, seed, packed=packed)


def _identity(
    learner: Learner, settings: Settings, data: Data, backend: Backend, digests: Sequence[str]
) -> dict[str, object]:
    """Return everything that determines the bits of a run, by name."""
    config = json.dumps(dict(learner.source.config), sort_keys=True, default=str).encode()
    model, *files = digests
    return {
        **msgspec.to_builtins(settings),
        "model": hashlib.blake2b(config + model.encode(), digest_size=16).hexdigest(),
        "files": files,
        "held_out": data.held_out,
        "mask_prompt": data.mask_prompt,
        "packed": data.packed,
        "templated": data.templated,
        "goal": asdict(learner.goal) if isinstance(learner, HeadLearner) else None,
        "adapter": None if learner.adapter is None else asdict(learner.adapter),
        "learnt": hashlib.blake2b(" ".join(learner.trained).encode(), digest_size=16).hexdigest(),
        "backend": backend.name,
        "precision": backend.precision,
        # Another version may round otherwise, and a resumed run promises equal bits.
        "version": gptrs.__version__,
    }


def _require_unfinished(saved: SavedRun, outputs: Outputs) -> None:
    if saved.exists and not outputs.resume and not outputs.force:
        raise UsageError(
            f"{quoted(str(saved.folder), 200)} has an unfinished run",
            hint="--resume continues it, --force starts again",
        )


def _result_bytes(learner: Learner, *, fresh: bool) -> int:
    """Return the bytes of the weights that a run writes at its end, those that it learns in f32."""
    own = sum(array.nbytes for array in learner.trained.values())
    if fresh or (learner.adapter is not None and learner.writes_adapter):
        return own
    weights = learner.source.weights
    rest = (name for name in weights.names() if name not in learner.trained)
    return own + sum(weights.type_of(name).nbytes for name in rest if learner.is_written(name))


def _require_room(learner: Learner, settings: Settings, saved: SavedRun, *, fresh: bool) -> None:
    """Refuse a run for which memory or disk have no room, before time is lost."""
    own = sum(array.nbytes for array in learner.trained.values())
    need = own * _COPIES[settings.optimizer]
    # A container's limit is below what the machine has, and exceeding it kills the process without
    # a message.
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = min(physical, memory_limit() or math.inf)
    if need > most:
        raise UsageError(
            f"weights, gradients and moments take {shown_bytes(need)}, this machine has"
            f" {shown_bytes(int(most))}",
            hint="train an adapter (--lora 8), or use --optimizer adafactor",
        )
    above = next(each for each in (saved.folder, *saved.folder.resolve().parents) if each.exists())
    # A state has no gradients. The next one is written beside it, and replaces what is there.
    files = (
        2 * (need - own) + (own if settings.patience else 0) + _result_bytes(learner, fresh=fresh)
    )
    free = shutil.disk_usage(above).free + saved.nbytes
    if files > free:
        raise SavedRunError(
            f"the state and the result of the run take {shown_bytes(files)},"
            f" {quoted(str(above), 200)} has {shown_bytes(free)} free"
        )
