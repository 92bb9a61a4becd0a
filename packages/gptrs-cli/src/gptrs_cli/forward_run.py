"""Runs a model once for `gptrs forward`: prints what scores best, writes the logits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.runtime.forward import Forward, Score, run_forward
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.model_inputs import Batch, InputChoice, batch_of
from gptrs.runtime.observe.profile import Profile
from gptrs.runtime.programs.value_text import json_values
from gptrs_cli.model_loading import loaded_model
from gptrs_cli.observation import profile_fields
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import Waiting, note, printable
from gptrs_cli.terminal.tables import print_table


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    model: Path | None
    inputs: InputChoice
    out: Path | None


def run_and_print(request: Request, settings: Settings, profile: Profile | None = None) -> None:
    """Run the model and print; what is wrong with the request is said before."""
    if request.out is not None:
        require_writable(request.out)
    what = f"`{request.model}`" if request.model else "the demo model"
    with Waiting(f"loading {what}") as waiting:
        model = loaded_model(request.model, settings)
        waiting.now("reading the input")
        batch = batch_of(model, request.inputs)
        waiting.now(f"running on {model.backend.name}")
        with compilation_shown(model.backend, waiting):
            result = run_forward(model, batch)
        if request.out is not None:
            waiting.now(f"writing `{request.out}`")
            write_archive(request.out, {"logits": result.logits})
    if settings.json:
        print(json.dumps(_as_json(model, batch, result) | profile_fields(profile)))
        return
    _print(model, batch, result)
    written = f", written to {request.out}" if request.out is not None else ""
    # Results and notes go to different streams, and must not appear in another order.
    sys.stdout.flush()
    note(
        f"logits {_type(result.logits)} in {result.seconds:.3f} s, backend {model.backend.name},"
        f" loaded in {model.load_seconds:.2f} s{written}"
    )


def _print(model: LoadedModel, batch: Batch, result: Forward) -> None:
    """A table for each row, under the name of the file that it is from where there are several."""
    takes_images = "image_classifier" in model.capabilities
    columns = (
        ("probability", "class", "label") if takes_images else ("probability", "token", "text")
    )
    for position, (origin, best) in enumerate(zip(batch.origins, result.best, strict=True)):
        if position:
            print()
        if len(batch.origins) > 1:
            print(printable(origin))
        print_table(columns, [_cells(score, quotes=not takes_images) for score in best])


def _cells(score: Score, *, quotes: bool) -> Sequence[str]:
    # The text of a token may be white space: quotes show it.
    shown = json.dumps(score.name, ensure_ascii=False) if quotes else score.name
    return f"{score.probability:.4f}", str(score.index), shown


def _as_json(model: LoadedModel, batch: Batch, result: Forward) -> dict[str, object]:
    return {
        "model": model.name,
        "kind": model.kind,
        "backend": model.backend.name,
        "inputs": list(batch.origins),
        "shape": list(result.logits.shape),
        "dtype": "f32",
        "top5": [[_score_as_json(score) for score in best] for best in result.best],
        "timings": {"load_s": model.load_seconds, "forward_s": result.seconds},
    }


def _score_as_json(score: Score) -> dict[str, object]:
    return {
        "index": score.index,
        "name": score.name,
        "logit": json_values(np.array(score.logit)),
        "probability": json_values(np.array(score.probability)),
    }


def _type(array: np.ndarray) -> str:
    return f"f32[{', '.join(map(str, array.shape))}]"
