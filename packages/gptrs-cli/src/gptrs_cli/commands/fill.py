"""`gptrs fill`: words for the masked places of texts."""

from __future__ import annotations

import json
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
from gptrs_runtime.results import Fill
from gptrs_runtime.text_classes.fill import fill as fill_texts


@command_options(*MODEL)
def fill(
    *,
    model: HeadModel,
    texts: TextOptions,
    top_k: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Words for each place.")
    ] = 5,
    batch_size: BatchSize = 32,
    settings: Settings,
) -> None:
    """Predict what is masked in texts.

    What stands for it is the model's own token, such as [MASK] or <mask>.
    """
    given = texts.read()
    with observed(settings) as profile:
        run = run_texts(
            model,
            settings,
            len(given),
            LoadedModel.masked_lm,
            lambda loaded, progress: fill_texts(
                loaded, given, top_k, batch_size, progress=progress
            ),
        )
        if settings.json:
            return print_result(
                run.told(Fill, texts=given, fillings=run.result, profile=profile_of(profile))
            )
        rows = [
            [
                str(number),
                str(place),
                f"{each.score:.4f}",
                str(each.token),
                json.dumps(each.text, ensure_ascii=False),
            ]
            for number, row in enumerate(run.result)
            for place, best in enumerate(row)
            for each in best
        ]
        print_table(["#", "place", "probability", "token", "text"], rows)
        note_below(run.summary(f"words for {counted(sum(map(len, run.result)), 'masked place')}"))
