"""`gptrs rank`: documents in the order in which they answer a query."""

from __future__ import annotations

from functools import partial
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
from gptrs_cli.text_run import BatchSize, HeadModel, Truncate, run_texts, truncated
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Rank
from gptrs_runtime.text_classes.classify import rank as rank_documents
from gptrs_runtime.tokenization.encoded_text import TextLength


@command_options(*MODEL)
def rank(
    *,
    model: HeadModel,
    query: Annotated[
        str, typer.Option("--query", metavar="TEXT", help="What the documents should answer.")
    ],
    texts: TextOptions,
    top_k: Annotated[
        int | None, typer.Option("--top", metavar="N", min=1, help="Print the N best only.")
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option("--prompt-name", metavar="NAME", help="Take this prompt of the model."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="Take this prompt; an empty one is none."),
    ] = None,
    truncate: Truncate = None,
    batch_size: BatchSize = 32,
    settings: Settings,
) -> None:
    """Rank documents by how well they answer a query.

    The model is a reranker (cross-encoder), which reads the query together with each document. A
    prompt stands before both: an instruction, for example.
    """
    given = texts.read()
    lengths: list[TextLength] = []
    asked = partial(
        rank_documents, query=query, documents=given, batch_size=batch_size, top_k=top_k,
        prompt_name=prompt_name, prompt=prompt, truncate=truncate, lengths=lengths.extend,
    )  # fmt: skip
    with observed(settings) as profile:
        run = run_texts(
            model,
            settings,
            len(given),
            LoadedModel.ranker,
            lambda loaded, progress: asked(loaded, progress=progress),
        )
        if settings.json:
            cut, its = truncated(lengths), profile_of(profile)
            result = run.told(Rank, query=query, ranking=run.result, truncated=cut, profile=its)
            return print_result(result)
        rows = [[f"{each.score:.4f}", str(each.index), each.text] for each in run.result]
        print_table(["score", "#", "text"], rows)
        note_below(run.summary(f"scores of {counted(len(given), 'document')}"))
