"""`gptrs tag`: names, places and other classes of the words in texts."""

from __future__ import annotations

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
from gptrs_cli.text_run import BatchSize, HeadModel, run_texts
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Entity, Tag
from gptrs_runtime.text_classes.fill import AGGREGATIONS, OUTSIDE
from gptrs_runtime.text_classes.fill import tag as tag_texts


@command_options(*MODEL)
def tag(
    *,
    model: HeadModel,
    texts: TextOptions,
    aggregation: Annotated[
        str,
        typer.Option(
            "--aggregation",
            metavar="HOW",
            help=f"How tokens become names: {', '.join(AGGREGATIONS)}.",
        ),
    ] = "simple",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CLASS",
            help=f"Leave out this class, `{OUTSIDE}` unless any is given; can be repeated.",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    settings: Settings,
) -> None:
    """Find names in texts, or other classes of words.

    Each is a part of its text, by characters from and to.
    """
    given = texts.read()
    ignored = [OUTSIDE] if ignore is None else ignore
    with observed(settings) as profile:
        run = run_texts(
            model,
            settings,
            len(given),
            LoadedModel.token_classifier,
            lambda loaded, progress: tag_texts(
                loaded, given, aggregation, batch_size, ignored=ignored, progress=progress
            ),
        )
        if settings.json:
            return print_result(
                run.told(Tag, texts=given, entities=run.result, profile=profile_of(profile))
            )
        _print(run.result)
        parts = counted(sum(map(len, run.result)), "part")
        note_below(run.summary(f"{parts} of {counted(len(given), 'text')}"))


def _print(result: list[list[Entity]]) -> None:
    rows = [
        [str(number), each.label, f"{each.score:.4f}", f"{each.start}-{each.end}", each.text]
        for number, row in enumerate(result)
        for each in row
    ]
    print_table(["#", "class", "score", "characters", "text"], rows)
