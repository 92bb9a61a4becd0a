"""`gptrs match`: how well texts belong to images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gptrs.quoting import counted
from gptrs_cli.loading import observed, profile_of
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.options.text_input import TextOptions
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_cli.text_run import HeadModel, Truncate, run_texts, truncated
from gptrs_observe.programs.report import json_values
from gptrs_runtime.embedding.embed import match as match_images
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Match
from gptrs_runtime.tokenization.encoded_text import TextLength


@command_options(*MODEL)
def match(
    *,
    model: HeadModel,
    image: Annotated[
        list[Path], typer.Option("--image", metavar="FILE", help="An image; can be repeated.")
    ],
    texts: TextOptions,
    truncate: Truncate = None,
    settings: Settings,
) -> None:
    """Tell how well texts belong to images.

    The model gives both vectors of one space. The probabilities of an image sum to 1 over the
    texts; of a model that scores each text by itself each has its own.
    """
    given = texts.read()
    lengths: list[TextLength] = []
    with observed(settings) as profile:
        run = run_texts(
            model,
            settings,
            len(image),
            LoadedModel.image_text,
            lambda loaded, _: match_images(
                loaded, image, given, truncate=truncate, lengths=lengths.extend
            ),
        )
        names, result = [str(path) for path in image], run.result
        if settings.json:
            told = run.told(
                Match,
                images=names,
                texts=given,
                truncated=truncated(lengths),
                logits=json_values(result.logits),
                probabilities=json_values(result.probabilities),
                profile=profile_of(profile),
            )
            return print_result(told)
        rows = [
            [name, f"{result.probabilities[i, j]:.4f}", f"{result.logits[i, j]:.2f}", given[int(j)]]
            for i, name in enumerate(names)
            for j in result.logits[i].argsort()[::-1]
        ]
        print_table(["image", "probability", "logit", "text"], rows)
        both = f"{counted(len(names), 'image')} and {counted(len(given), 'text')}"
        note_below(run.summary(f"scores of {both}"))
