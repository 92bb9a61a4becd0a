"""Commands that read texts with a head: loading, the time, the fields of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer
from msgspec import UNSET, UnsetType

from gptrs.progress import Progress
from gptrs.quick_dataclass import dataclass
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.text_progress import text_progress
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Result, RunTimings
from gptrs_runtime.tokenization.encoded_text import TextLength

Found = TypeVar("Found")
Told = TypeVar("Told", bound=Result)
HeadModel = Annotated[
    Path,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A directory as transformers saves it, a .gptrschk file, or ORG/NAME[@REVISION] of"
        " the Hugging Face hub.",
    ),
]
Truncate = Annotated[
    bool | None,
    typer.Option(
        "--truncate/--no-truncate",
        help="Cut texts that are longer than the model reads, or refuse them; without it they are"
        " cut, which a note says.",
    ),
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", metavar="N", min=1, help="Run N texts together.")
]


def truncated(lengths: Sequence[TextLength]) -> list[int] | UnsetType:
    """Return the numbers of the texts that were cut, UNSET without any."""
    return [number for number, length in enumerate(lengths) if length.is_cut] or UNSET


@dataclass(frozen=True)
class TextRun(Generic[Found]):
    """A result, the model that it is of, and the seconds that it took."""

    model: LoadedModel
    result: Found
    seconds: float

    def told(self, result: Callable[..., Told], **fields: object) -> Told:
        """Return a result of the model with `fields` besides those of each run.

        Its `timings` have the seconds under the name of its class.
        """
        work = {f"{result.__name__.lower()}_s": self.seconds}
        return result(
            model=self.model.name,
            kind=self.model.kind,
            backend=self.model.backend.name,
            timings=RunTimings(load_s=self.model.load_seconds, **work),
            **fields,
        )

    def summary(self, what: str) -> str:
        """Return the line below a table."""
        return (
            f"{what} in {self.seconds:.3f} s, backend {self.model.backend.name}, loaded in"
            f" {self.model.load_seconds:.2f} s"
        )


def run_texts(
    path: Path,
    settings: Settings,
    count: int,
    needs: Callable[[LoadedModel], object],
    work: Callable[[LoadedModel, Progress], Found],
) -> TextRun[Found]:
    """Load the model, let `needs` refuse one that cannot do it, and run `work` below a bar."""
    with Waiting(f"loading `{path}`"):
        model = loaded_model(path, settings)
        needs(model)
    started = time.perf_counter()
    with text_progress(model, count, "reading") as progress:
        result = work(model, progress)
    return TextRun(model, result, time.perf_counter() - started)
