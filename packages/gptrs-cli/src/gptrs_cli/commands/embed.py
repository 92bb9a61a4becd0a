"""`gptrs embed`: a vector for each text, and how alike the texts are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gptrs_cli.options.settings import (
    BackendOption,
    DebugOption,
    DumpDirOption,
    DumpModeOption,
    JsonOption,
    OverrideOption,
    PluginsOption,
    ProfileOption,
    ProfileOutOption,
    ThreadsOption,
    TraceSinkOption,
    WeightBudgetOption,
    settings_of,
)


def embed(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A text embedder: a directory as transformers or sentence-transformers save it,"
            " a .gptrschk file, or ORG/NAME[@REVISION] of the Hugging Face hub.",
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="TEXT", help="A text; can be repeated."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Texts in a file, one a line; in a .jsonl file lines such as {"text": "..."}.',
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the tensor `embeddings` [N, D] as .npy, .npz, .safetensors or .gptrsten.",
        ),
    ] = None,
    similarity: Annotated[
        bool,
        typer.Option("--similarity", help="Show the cosine of each two vectors instead of them."),
    ] = False,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Make all vectors of length 1, or do not; without it as the model says.",
        ),
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option(
            "--prompt-name", metavar="NAME", help="Put this prompt of the model before each text."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Run N texts together.")
    ] = 32,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    override: OverrideOption = None,
    weight_budget: WeightBudgetOption = None,
    dump_dir: DumpDirOption = None,
    dump_mode: DumpModeOption = None,
    trace_sinks: TraceSinkOption = None,
    profile: ProfileOption = False,
    profile_out: ProfileOutOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Give each text a vector. Texts of like meaning get vectors that point the same way.

    Pooling, normalization and prompts are those of the files beside the model.
    """
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs_cli.embedding_run import Request, run_and_print
    from gptrs_cli.observation import observed
    from gptrs_cli.options.texts import read_texts

    texts = read_texts(text, file)
    request = Request(model, texts, out, similarity, batch_size, normalize, prompt_name)
    settings = settings_of(context)
    with observed(settings) as found, command_line_overrides(settings.overrides):
        run_and_print(request, settings, found)
