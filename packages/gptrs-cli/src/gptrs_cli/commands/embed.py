"""`gptrs embed`: a vector for each text or image, and how alike they are."""

from __future__ import annotations

import re
import time
from dataclasses import field
from pathlib import Path
from typing import Annotated, Final, cast

import numpy as np
import typer
from msgspec import UNSET, UnsetType

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.loading import adapter_of, loaded_model, observed, profile_of
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, AdapterOption, Settings
from gptrs_cli.options.text_input import TextOptions
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note, note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_cli.text_progress import text_progress
from gptrs_cli.text_run import Truncate, truncated
from gptrs_observe.profile import Profile
from gptrs_observe.programs.report import json_values
from gptrs_runtime.embedding.embed import IMAGES, embed_images, recipe_of, similarities
from gptrs_runtime.embedding.embed import embed as embed_texts
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Embed, RunTimings, Vectors
from gptrs_runtime.tokenization.encoded_text import TextLength

MOST_COMPARED: Final = 100
"""Most texts whose similarities are shown."""
_WITH_HEAD = re.compile("[A-Za-z0-9_]{1,80}For[A-Z][A-Za-z0-9]{1,80}")
"""How transformers names a model with a head, such as `BertForMaskedLM`."""
_SHOWN_VALUES: Final = 4


@dataclass(frozen=True)
class _Result:
    vectors: np.ndarray
    similarities: np.ndarray | None
    seconds: float
    lengths: list[TextLength]


@dataclass(frozen=True)
class EmbedOptions:
    """How texts are embedded, and what is shown of them."""

    similarity: Annotated[
        bool,
        typer.Option(
            "--similarity",
            help="Show how alike each two are instead of vectors.",
        ),
    ] = False
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Make all vectors of length 1, or do not; without it as the model says.",
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        typer.Option(
            "--prompt-name", metavar="NAME", help="Put this prompt of the model before each text."
        ),
    ] = None
    truncate: Truncate = None
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Run N texts together.")
    ] = 32
    image: Annotated[
        list[Path],
        typer.Option(
            "--image", metavar="FILE", help="An image in place of texts; can be repeated."
        ),
    ] = field(default_factory=list[Path])

    def read(self, texts: TextOptions) -> list[str]:
        """Return the texts, or the names of the images; UsageError if both are given."""
        if not self.image:
            return texts.read()
        if texts.text or texts.file is not None:
            raise UsageError("`--image` and texts exclude each other", hint="run the command twice")
        if self.prompt_name is not None:
            raise UsageError("`--prompt-name` is put before texts, not before images")
        if self.truncate is not None:
            raise UsageError("`--truncate` is about texts, not about images")
        return [str(path) for path in self.image]


@command_options(*MODEL)
def embed(
    *,
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="An embedder: a directory as transformers or sentence-transformers save it,"
            " a .gptrschk file, or ORG/NAME[@REVISION] of the Hugging Face hub.",
        ),
    ],
    texts: TextOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the tensor `embeddings` [N, D] as .npy, .npz, .safetensors or .gptrsten.",
        ),
    ] = None,
    options: EmbedOptions,
    adapter: AdapterOption = None,
    settings: Settings,
) -> None:
    """Give each text or image a vector.

    What is alike gets vectors that point the same way. Pooling, normalization and prompts are those
    of the files beside the model.
    """
    given = options.read(texts)
    with observed(settings) as profile:
        if out is not None:
            require_writable(out)
        if options.similarity:
            _require_few(given)
        with Waiting(f"loading `{model}`"):
            loaded = loaded_model(model, settings, adapter)
            _require_embedder(loaded, bool(options.image))
        result = _embedded(loaded, given, options)
        if out is not None:
            write_archive(out, {"embeddings": result.vectors})
        if settings.json:
            return print_result(_told(loaded, given, result, options, profile, out))
        _print(given, result, "image" if options.image else "text")
        note_below(_summary(loaded, result, out))


def _summary(model: LoadedModel, result: _Result, out: Path | None) -> str:
    written = f", written to {out}" if out is not None else ""
    return (
        f"vectors f32{list(result.vectors.shape)} in {result.seconds:.3f} s, backend"
        f" {model.backend.name}, loaded in {model.load_seconds:.2f} s{written}"
    )


def _embedded(model: LoadedModel, texts: list[str], options: EmbedOptions) -> _Result:
    if not options.image:
        _note_head(model)
    started = time.perf_counter()
    lengths: list[TextLength] = []
    with text_progress(model, len(texts), "embedding") as progress:
        if options.image:
            size, unit = min(options.batch_size, IMAGES), bool(options.normalize)
            vectors = embed_images(model, options.image, size, unit, progress=progress)
        else:
            vectors = embed_texts(
                model,
                texts,
                options.batch_size,
                options.normalize,
                prompt_name=options.prompt_name,
                truncate=options.truncate,
                lengths=lengths.extend,
                progress=progress,
            )
    seconds = time.perf_counter() - started
    alike = None
    if options.similarity:
        of_texts = not options.image and "image_text" not in model.capabilities
        alike = similarities(vectors, recipe_of(model).similarity if of_texts else "cosine")
    return _Result(vectors, alike, seconds, lengths)


def _require_embedder(model: LoadedModel, of_images: bool) -> None:
    """ModelError for a model that does not embed what is given."""
    if of_images:
        model.image_embedder()
    elif "image_text" not in model.capabilities:
        model.text_embedder()


def _note_head(model: LoadedModel) -> None:
    """Say that what stands upon the body is left out, if config.json names such a model."""
    names = model.config.get("architectures")
    if not (isinstance(names, list) and names):
        return
    name = cast("list[object]", names)[0]
    if isinstance(name, str) and _WITH_HEAD.fullmatch(name):
        note(f"the files are of `{name}`: its body gives the vectors, its head is left out")


def _require_few(texts: list[str]) -> None:
    if len(texts) > MOST_COMPARED:
        raise UsageError(
            f"`--similarity` shows at most {MOST_COMPARED} texts, got {len(texts)}",
            hint="write the vectors with --out",
        )


def _print(texts: list[str], result: _Result, what: str) -> None:
    """A row for each text: the first values of its vector, or its similarity to each text."""
    numbers = [str(number) for number in range(len(texts))]
    if result.similarities is None:
        cells = [[_first_values(vector)] for vector in result.vectors]
        columns = ["#", "vector", what]
    else:
        cells = [[f"{value:.4f}" for value in row] for row in result.similarities]
        columns = ["#", *numbers, what]
    rows = [[number, *row, text] for number, row, text in zip(numbers, cells, texts, strict=True)]
    print_table(columns, rows)


def _first_values(vector: np.ndarray) -> str:
    shown = " ".join(f"{value:.4f}" for value in vector[:_SHOWN_VALUES])
    return f"{shown} ..." if vector.size > _SHOWN_VALUES else shown


def _listed(vectors: np.ndarray | None) -> Vectors | UnsetType:
    return UNSET if vectors is None else cast("Vectors", json_values(vectors))


def _told(
    loaded: LoadedModel,
    given: list[str],
    result: _Result,
    options: EmbedOptions,
    profile: Profile | None,
    out: Path | None,
) -> Embed:
    return Embed(
        model=loaded.name,
        kind=loaded.kind,
        backend=loaded.backend.name,
        adapter=adapter_of(loaded),
        texts=[] if options.image else given,
        truncated=truncated(result.lengths),
        shape=list(result.vectors.shape),
        embeddings=_listed(result.vectors if out is None else None),
        similarity=_listed(result.similarities),
        timings=RunTimings(load_s=loaded.load_seconds, embed_s=result.seconds),
        images=given if options.image else UNSET,
        profile=profile_of(profile),
    )
