"""Embeds texts for `gptrs embed`: prints the vectors or how alike they are, and writes them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.errors import UsageError
from gptrs.runtime.embedding.embed import Progress, cosine_similarities, embed
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.measure.kernel_caches import compiling
from gptrs.runtime.observe.profile import Profile
from gptrs.runtime.programs.value_text import json_values
from gptrs_cli.model_loading import loaded_model
from gptrs_cli.observation import profile_fields
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import Step, progress_bar
from gptrs_cli.terminal.stderr import Waiting, note
from gptrs_cli.terminal.tables import print_table

MOST_COMPARED: Final = 100
"""Most texts whose similarities are shown."""
_SHOWN_VALUES: Final = 4


@dataclass(frozen=True)
class Request:
    """What the user asked for; see `gptrs.embed`."""

    model: Path
    texts: list[str]
    out: Path | None
    similarity: bool
    batch_size: int
    normalize: bool | None
    prompt_name: str | None


@dataclass(frozen=True)
class _Result:
    vectors: np.ndarray
    similarities: np.ndarray | None
    seconds: float


def run_and_print(request: Request, settings: Settings, profile: Profile | None = None) -> None:
    """Embed the texts and print; what is wrong with the request is said before."""
    if request.out is not None:
        require_writable(request.out)
    if request.similarity and len(request.texts) > MOST_COMPARED:
        raise UsageError(
            f"`--similarity` shows at most {MOST_COMPARED} texts, got {len(request.texts)}",
            hint="write the vectors with --out",
        )
    with Waiting(f"loading `{request.model}`"):
        model = loaded_model(request.model, settings)
        model.text_embedder()
    result = _embedded(model, request)
    if request.out is not None:
        write_archive(request.out, {"embeddings": result.vectors})
    if settings.json:
        print(json.dumps(_as_json(model, request, result) | profile_fields(profile)))
        return
    _print(request.texts, result)
    written = f", written to {request.out}" if request.out is not None else ""
    # Results and notes go to different streams, and must not appear in another order.
    sys.stdout.flush()
    note(
        f"vectors f32{list(result.vectors.shape)} in {result.seconds:.3f} s, backend"
        f" {model.backend.name}, loaded in {model.load_seconds:.2f} s{written}"
    )


def _embedded(model: LoadedModel, request: Request) -> _Result:
    started = time.perf_counter()
    with _progress(model, len(request.texts)) as progress:
        vectors = embed(
            model,
            request.texts,
            request.batch_size,
            request.normalize,
            prompt_name=request.prompt_name,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    similarities = cosine_similarities(vectors) if request.similarity else None
    return _Result(vectors, similarities, seconds)


@contextmanager
def _progress(model: LoadedModel, total: int) -> Generator[Progress | None]:
    """Scope of a bar, which tells of kernels that are compiled, too; None where nobody sees it."""
    with progress_bar("embedding") as step:
        if step is None:
            yield None
            return
        bar = _Bar(step, total)
        with compiling(model.backend, bar.compiles):
            yield bar.moves


class _Bar:
    """A bar of texts, beside which kernels are counted."""

    def __init__(self, step: Step, total: int) -> None:
        self._step = step
        self._done = 0
        self._total = total

    def moves(self, done: int, total: int) -> None:
        self._done = done
        self._step(done, total, "")

    def compiles(self, number: int, total: int | None) -> None:
        of_all = "" if total is None else f" of {total}"
        self._step(self._done, self._total, f"compiling kernel {number}{of_all} (once)")


def _print(texts: list[str], result: _Result) -> None:
    """A row for each text: the first values of its vector, or its similarity to each text."""
    numbers = [str(number) for number in range(len(texts))]
    if result.similarities is None:
        cells = [[_first_values(vector)] for vector in result.vectors]
        columns = ["#", "vector", "text"]
    else:
        cells = [[f"{value:.4f}" for value in row] for row in result.similarities]
        columns = ["#", *numbers, "text"]
    rows = [[number, *row, text] for number, row, text in zip(numbers, cells, texts, strict=True)]
    print_table(columns, rows)


def _first_values(vector: np.ndarray) -> str:
    shown = " ".join(f"{value:.4f}" for value in vector[:_SHOWN_VALUES])
    return f"{shown} ..." if vector.size > _SHOWN_VALUES else shown


def _as_json(model: LoadedModel, request: Request, result: _Result) -> dict[str, object]:
    fields: dict[str, object] = {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "texts": request.texts,
        "shape": list(result.vectors.shape),
        "dtype": "f32",
    }
    if request.out is None:
        fields["embeddings"] = json_values(result.vectors)
    if result.similarities is not None:
        fields["similarity"] = json_values(result.similarities)
    fields["timings"] = {"load_s": model.load_seconds, "embed_s": result.seconds}
    return fields
