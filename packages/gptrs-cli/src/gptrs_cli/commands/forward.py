"""`gptrs forward`: runs a model once on images, tokens or tensors, and shows the best scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from gptrs_cli.imported.forward import print_imported, run_imported
from gptrs_cli.imported.inspection import ImportOptions, importer_for
from gptrs_cli.loading import observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, TOGETHER, ModelOption, Settings, printed_once
from gptrs_cli.options.text_input import InputOptions
from gptrs_cli.single_run import SingleRun, run_once
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.forward import TOP, WITH_CLASSES, Forward, run_forward
from gptrs_runtime.results import Forward as ForwardResult
from gptrs_runtime.results import Profile, RunTimings, Score


@command_options(*MODEL, *TOGETHER)
def forward(
    *,
    model: ModelOption = None,
    inputs: InputOptions,
    imported: ImportOptions,
    top: Annotated[
        int,
        option("--top", "Classes or tokens to show per row.", metavar="N", min=1),
    ] = TOP,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write the tensor `logits` to this file: .npy, .npz, .safetensors or .gptrsten.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a model once and print the best classes or tokens.

    Probabilities are shown, too. Images are preprocessed as the files of the model say; batches
    keep the order of their inputs. Imported models take images, token ids, or tensors by input
    name.
    """
    choice = inputs.choice()
    importer = importer_for(model, imported)
    with printed_once(settings), observed(settings) as profile:
        if model is not None and importer is not None:
            run = run_imported(model, importer, choice, imported, settings, top, out)
            if settings.json:
                print_result(run.told(profile_of(profile)))
            else:
                print_imported(run, _cells, out)
            return
        written = None if out is None else (out, _arrays)
        done = run_once(model, choice, settings, partial(run_forward, top=top), written)
        result = done.result
        if settings.json:
            return print_result(_told(done, profile_of(profile)))
        _print(done)
        to_file = f", written to {out}" if out is not None else ""
        noise = f" of {done.batch.origins[0]}" if choice.is_random else ""
        note_below(
            f"logits {_type(result.logits)}{noise} in {result.seconds:.3f} s, backend"
            f" {done.model.backend.name}, loaded in {done.model.load_seconds:.2f} s{to_file}"
        )


def _arrays(result: Forward) -> dict[str, np.ndarray]:
    return {"logits": result.logits}


def _print(done: SingleRun[Forward]) -> None:
    """Print a table for each row; with several files, under the name of its file."""
    classes = not done.model.capabilities.isdisjoint(WITH_CLASSES)
    columns = ("probability", "class", "label") if classes else ("probability", "token", "text")
    for position, (origin, best) in enumerate(
        zip(done.batch.origins, done.result.best, strict=True)
    ):
        if position:
            print()
        if len(done.batch.origins) > 1:
            print(printable(origin))
        print_table(columns, [_cells(score, not classes) for score in best])


def _cells(score: Score, quotes: bool) -> Sequence[str]:
    # The text of a token may be white space, which quotes make visible.
    shown = json.dumps(score.name, ensure_ascii=False) if quotes else score.name
    return _share(score.probability), str(score.index), shown


def _share(probability: float) -> str:
    """Return four decimals, or scientific notation if they would all be zeros."""
    return f"{probability:.1e}" if 0 < probability < 0.00005 else f"{probability:.4f}"


def _type(array: np.ndarray) -> str:
    return f"f32[{', '.join(map(str, array.shape))}]"


def _told(done: SingleRun[Forward], profile: Profile) -> ForwardResult:
    result = done.result
    return ForwardResult(
        model=done.model.name,
        kind=done.model.kind,
        backend=done.model.backend.name,
        inputs=list(done.batch.origins),
        shape=list(result.logits.shape),
        top=list(result.best),
        timings=RunTimings(load_s=done.model.load_seconds, forward_s=result.seconds),
        profile=profile,
    )
