"""Measure what guessing ahead by prompt lookup saves on texts that repeat themselves, or costs.

    python benchmarks/guessing.py [--model FOLDER] [--draft] [--tokens N] [--rounds N]
                                  [--threads N] [--json]

Without a model it is GPT-2 124M with random weights, whose blocks change little: its likeliest
token is the last one. A greedy text repeats itself, a hot one never does, and one among the 3
likeliest tokens seems to. A text with guesses and one without are written side by side, a few steps
of each in turn, so that other work on the machine disturbs both alike. With `--draft` a model of 2
narrow layers guesses instead: one that also writes the last token again, and one that never agrees.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gpt2_checkpoint import SIZES, save_gpt2
from msgspec import Struct
from msgspec.structs import asdict, replace
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs_runtime.generation.guessing.guesser import GuessCounts
from gptrs_runtime.loaded_model import LoadedModel

CASES: Mapping[str, Mapping[str, float | int]] = {
    "repeats itself": {"temperature": 0},
    "does not repeat": {"temperature": 4.0, "seed": 1},
    "seems to repeat": {"temperature": 50.0, "seed": 1, "top_k": 3},
}
PROMPT = list(range(1000, 1060))
_TURN = 4
"""Pieces of a text before it is the turn of the other one."""


class Row(Struct, frozen=True):
    """Tokens a second of CPU time and of the clock, without guesses and with, and the guesses."""

    case: str
    plain_cpu: float
    guessed_cpu: float
    plain: float
    guessed: float
    proposed: int
    accepted: int

    def shown(self) -> str:
        """Return the row as a line."""
        return (
            f"{self.case:16} {self.guessed_cpu / self.plain_cpu:5.2f}x by CPU time,"
            f" {self.guessed / self.plain:5.2f}x by the clock"
            f" ({self.plain:.0f} -> {self.guessed:.0f} tok/s),"
            f" {self.accepted} of {self.proposed} guessed tokens came true"
        )


def measured(
    model: LoadedModel, case: str, tokens: int, rounds: int, draft: LoadedModel | None = None
) -> Row:
    """Return the rates of a case over all rounds, guessed by `draft`, else by prompt lookup."""
    spent: dict[tuple[bool, str], float] = {}
    counts = GuessCounts()
    for number in range(-1, rounds):
        if number <= 0:  # the one before is for what is compiled and packed
            spent = {(guesses, kind): 0.0 for guesses in (False, True) for kind in ("cpu", "clock")}
            counts = GuessCounts()
        streams = {
            guesses: gptrs.stream(
                model, PROMPT, max_tokens=tokens, ignore_eos=True,
                prompt_lookup=guesses and draft is None, draft=draft if guesses else None,
                **CASES[case],
            )
            for guesses in (False, True)
        }  # fmt: skip
        for stream in streams.values():
            next(stream)  # the prompt is read
        going = dict(streams)
        while going:
            for guesses, stream in list(going.items()):
                clock, cpu = time.perf_counter(), time.process_time()
                if len(list(itertools.islice(stream, _TURN))) < _TURN:
                    del going[guesses]
                spent[guesses, "cpu"] += time.process_time() - cpu
                spent[guesses, "clock"] += time.perf_counter() - clock
        plain, guessed = (streams[guesses].generation for guesses in (False, True))
        assert plain.token_ids == guessed.token_ids, "guesses changed a text"
        counts += guessed.guesses or GuessCounts()
    rates = {key: rounds * (tokens - 1) / seconds for key, seconds in spent.items()}
    return Row(
        case, rates[False, "cpu"], rates[True, "cpu"], rates[False, "clock"], rates[True, "clock"],
        counts.proposed, counts.accepted,
    )  # fmt: skip


def save_repeating(folder: Path, size: str = "124M") -> Path:
    """Save GPT-2 with random weights, whose likeliest token is the last one."""
    save_gpt2(folder, size)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in weights:
        if name == "wpe.weight" or "c_proj" in name:
            weights[name] = weights[name] * 1e-3
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def drafted(
    model: LoadedModel, folder: Path, tokens: int, rounds: int, threads: int | None
) -> list[Row]:
    """Return the rows of two drafts, of which the second never agrees."""
    SIZES["narrow"] = {**SIZES["124M"], "n_embd": 64, "n_layer": 2, "n_head": 4}
    agreeing = save_repeating(folder / "agreeing", "narrow")
    other = save_gpt2(folder / "other", "narrow")
    found: list[Row] = []
    for name, path in (("draft agrees", agreeing), ("it never does", other)):
        draft = gptrs.load_model(path, threads=threads)
        row = measured(model, "repeats itself", tokens, rounds, draft)
        found.append(replace(row, case=name))
    return found


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or save_repeating(Path(folder) / "gpt2")
        model = gptrs.load_model(path, threads=given.threads)
        if given.draft:
            rows = drafted(model, Path(folder), given.tokens, given.rounds, given.threads)
        else:
            rows = [measured(model, case, given.tokens, given.rounds) for case in CASES]
        for row in rows:
            print(json.dumps(asdict(row)) if given.json else row.shown())


if __name__ == "__main__":
    main()
