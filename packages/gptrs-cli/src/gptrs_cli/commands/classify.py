"""`gptrs classify`: the classes of texts, of pairs of texts, or labels of one's own."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final

import typer
from msgspec import UNSET

from gptrs.errors import UsageError
from gptrs.progress import Progress
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import counted
from gptrs_cli.loading import observed, profile_of
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, Settings
from gptrs_cli.options.text_input import TextOptions
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_cli.text_run import BatchSize, HeadModel, Truncate, run_texts, truncated
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Classify, LabelScore
from gptrs_runtime.text_classes.classify import TEMPLATE, zero_shot
from gptrs_runtime.text_classes.classify import classify as classify_texts
from gptrs_runtime.tokenization.encoded_text import LongTexts, TextLength

_SHOWN: Final = 5
"""Classes of a text in the table."""


@dataclass(frozen=True)
class ClassOptions:
    """Second texts, and labels that the model does not have."""

    pair: Annotated[
        list[str],
        typer.Option(
            "--pair", metavar="TEXT", help="Read with the text before it, as one: once for each."
        ),
    ] = field(default_factory=list[str])
    label: Annotated[
        list[str],
        typer.Option(
            "--label",
            metavar="LABEL",
            help="A label of your own, for a model of inference (NLI); can be repeated.",
        ),
    ] = field(default_factory=list[str])
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="TEXT",
            help=f"What follows from a text with a label: `{TEMPLATE}` without it.",
        ),
    ] = None
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Score each of your labels by itself.")
    ] = False

    def checked(self, texts: list[str]) -> None:
        """UsageError for options that do not go together."""
        if self.pair and self.label:
            raise UsageError("`--pair` and `--label` exclude each other", hint="give one of them")
        if self.pair and len(self.pair) != len(texts):
            raise UsageError(f"got {len(self.pair)} times `--pair` for {len(texts)} texts")
        if not self.label and (self.template is not None or self.multi_label):
            raise UsageError("`--template` and `--multi-label` are for `--label`, which is missing")

    def run(
        self,
        model: LoadedModel,
        texts: list[str],
        batch_size: int,
        progress: Progress | None,
        long: LongTexts,
    ) -> list[tuple[LabelScore, ...]]:
        """Return the classes of each text."""
        if self.label:
            template = TEMPLATE if self.template is None else self.template
            return zero_shot(
                model,
                texts,
                self.label,
                template,
                multi_label=self.multi_label,
                batch_size=batch_size,
                truncate=long.truncate,
                lengths=long.lengths,
                progress=progress,
            )
        rows = list(zip(texts, self.pair, strict=True)) if self.pair else texts
        return classify_texts(
            model,
            rows,
            batch_size,
            truncate=long.truncate,
            lengths=long.lengths,
            progress=progress,
        )


@command_options(*MODEL)
def classify(
    *,
    model: HeadModel,
    texts: TextOptions,
    options: ClassOptions,
    truncate: Truncate = None,
    batch_size: BatchSize = 32,
    settings: Settings,
) -> None:
    """Tell the classes of texts.

    Classes are those of the model, or with --label your own; --pair gives each text a second one.
    """
    given = texts.read()
    options.checked(given)
    lengths: list[TextLength] = []
    long = LongTexts(truncate, lengths.extend)
    with observed(settings) as profile:
        run = run_texts(
            model,
            settings,
            len(given),
            LoadedModel.text_classifier,
            lambda loaded, progress: options.run(loaded, given, batch_size, progress, long),
        )
        if settings.json:
            result = run.told(
                Classify,
                texts=given,
                pairs=options.pair or UNSET,
                truncated=truncated(lengths),
                classes=run.result,
                profile=profile_of(profile),
            )
            return print_result(result)
        rows = [
            [str(number), each.label, f"{each.score:.4f}", given[number] if not place else ""]
            for number, row in enumerate(run.result)
            for place, each in enumerate(row[:_SHOWN])
        ]
        print_table(["#", "class", "score", "text"], rows)
        note_below(run.summary(f"classes of {counted(len(given), 'text')}"))
