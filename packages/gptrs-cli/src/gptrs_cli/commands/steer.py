"""`gptrs steer`: learns steering vectors from pairs of texts, and writes them to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Struct, field

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.errors import UsageError
from gptrs.quoting import counted
from gptrs_cli.loading import loaded_model, observed
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, ModelOption, Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note_below
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.results import Steer, SteeredLayer
from gptrs_observe.steering import LearnedVector, learn_vectors


class _Pair(Struct, forbid_unknown_fields=True):
    positive: str
    negative: str


class SteerOptions(Struct, frozen=True):
    """The pairs, the values that vectors are learned for, and the file."""

    pairs: Annotated[
        Path,
        option(
            "--pairs",
            'JSON lines of texts: `{"positive": TEXT, "negative": TEXT}`.',
            metavar="FILE",
        ),
    ]
    out: Annotated[
        Path,
        option("--out", "Write the vectors here: .safetensors, .npz or .gptrsten.", metavar="FILE"),
    ]
    layers: Annotated[
        list[str],
        option(
            "--layer",
            "Learn a vector for this value, such as `h.3` or `blocks.*.hook_resid_post`; by default"
            " for what the middle block returns. Can be repeated.",
            metavar="NAME",
        ),
    ] = field(default_factory=list[str])


@command_options(*MODEL)
def steer(*, model: ModelOption = None, learning: SteerOptions, settings: Settings) -> None:
    """Learn a steering vector from pairs of texts.

    It is the mean difference of the hidden states at the last tokens of positive and negative
    texts. `gptrs.Hooks` and `gptrs serve --interventions` add it to the same layer.
    """
    require_writable(learning.out)
    pairs = _pairs(learning.pairs)
    with observed(settings):
        loaded = loaded_model(model, settings)
        found = learn_vectors(loaded, pairs, learning.layers)
        write_archive(learning.out, {name: each.vector for name, each in found.items()})
    layers = [_told(name, each) for name, each in found.items()]
    if settings.json:
        print_result(
            Steer(
                model=loaded.name,
                kind=loaded.kind,
                backend=loaded.backend.name,
                pairs=len(pairs),
                file=str(learning.out),
                layers=layers,
            )
        )
        return
    rows = [
        (each.layer, f"f32[{each.width}]", f"{each.norm:.4g}", f"{each.separated:.0%}")
        for each in layers
    ]
    print_table(("layer", "type", "norm", "separated"), rows)
    note_below(f"learned from {counted(len(pairs), 'pair')}, written to {learning.out}")


def _told(name: str, learned: LearnedVector) -> SteeredLayer:
    norm = float(np.linalg.norm(learned.vector))
    width = learned.vector.size
    return SteeredLayer(layer=name, width=width, norm=norm, separated=learned.separated)


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Read the pairs; UsageError names the line that is none."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--pairs: `{path}` cannot be read: {error.strerror}") from error
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pair = msgspec.json.decode(line, type=_Pair)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--pairs: line {number} of `{path}` is not a pair: {error}",
                hint='write {"positive": TEXT, "negative": TEXT}',
            ) from error
        pairs.append((pair.positive, pair.negative))
    if not pairs:
        raise UsageError(f"--pairs: `{path}` has no pairs")
    return pairs
