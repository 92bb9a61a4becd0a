"""Generate texts of random lengths, and load models again and again: memory must stay the same."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

import gptrs

WARM = 0.2
"""The part of all turns after which nothing may grow: caches are full, all sizes were seen."""
LINES = 10
"""Lines on the way."""


@dataclass(frozen=True)
class State:
    """What a process holds."""

    mib: float
    maps: int
    descriptors: int
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.mib:.1f} MiB, {self.maps} maps, {self.descriptors} descriptors,"
            f" {self.threads} threads"
        )


MAY_GROW = State(mib=16, maps=16, descriptors=2, threads=0)
"""Noise of the allocator."""


def state() -> State:
    """Return what this process holds now, without garbage."""
    gc.collect()
    own = Path("/proc/self")
    pages = int((own / "statm").read_text(encoding="ascii").split()[1])
    return State(
        pages * os.sysconf("SC_PAGESIZE") / 2**20,
        (own / "maps").read_text(encoding="utf-8", errors="replace").count("\n"),
        len(os.listdir(own / "fd")),
        threading.active_count(),
    )


def generating(dice: random.Random) -> Callable[[], None]:
    """Return a turn: a text of random length after a random prompt, sometimes left midway."""
    model = gptrs.load_model("demo")
    vocabulary = model.causal_lm().vocab_size

    def turn() -> None:
        prompt = [dice.randrange(vocabulary) for _ in range(dice.randrange(1, 60))]
        stream = gptrs.stream(model, prompt, max_tokens=dice.randrange(1, 24), seed=1)
        left_after = dice.choice([None, None, None, 2])
        for number, _ in enumerate(stream):
            if number == left_after:
                break

    return turn


def loading(dice: random.Random) -> Callable[[], None]:
    """Return a turn: a model is loaded, used once, and dropped."""

    def turn() -> None:
        model = gptrs.load_model("demo")
        tokens = np.array([[dice.randrange(model.causal_lm().vocab_size)]])
        assert np.isfinite(np.asarray(model.forward(tokens))).all()

    return turn


KINDS: Mapping[str, Callable[[random.Random], Callable[[], None]]] = {
    "generate": generating,
    "load": loading,
}


def main(arguments: list[str] | None = None) -> int:
    """Do as `arguments` say, with lines on the way; 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    for kind, count in (("generate", 5000), ("load", 500)):
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    return int(any([_grew(kind, getattr(options, kind), options.seed) for kind in KINDS]))


def _grew(kind: str, count: int, seed: int) -> bool:
    """Return whether something grew after the first turns."""
    turn = KINDS[kind](random.Random(seed))
    warm = max(1, int(count * WARM))
    started, before = time.monotonic(), state()
    for number in range(1, count + 1):
        turn()
        if number == warm:
            before = state()
        if number == warm or number % max(1, count // LINES) == 0:
            print(f"{kind:9} {number:6}: {state()}", flush=True)
    after = state()
    grown = [
        now - then > most
        for now, then, most in zip(*map(astuple, (after, before, MAY_GROW)), strict=True)
    ]
    verdict = "grew" if any(grown) else "flat"
    print(
        f"{kind:9} {count} turns, {verdict}: from {before} to {after},"
        f" in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return any(grown)


if __name__ == "__main__":
    sys.exit(main())
