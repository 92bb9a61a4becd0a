"""Feed mutated programs to gptrs for a while; save those that are not handled as they must be."""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from fuzzing import json_mutations, program_mutations, text_mutations
from fuzzing.judge import Form, judge
from gptrs.backend.contract import Backend
from gptrs.ir import Program, print_json, print_program
from gptrs_backend_ref.backend import create
from gptrs_conformance.program_generator import random_program
from gptrs_conformance.program_generator.dice import Dice

MEMORY = 6 * 2**30
"""Bytes of address space: who asks for more gets a MemoryError."""
MAX_FLAWS = 20


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if an input was not handled well."""
    options = _parser().parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))
    backend = create(None)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    deadline = time.monotonic() + options.seconds
    outcomes: Counter[str] = Counter()
    flaws = 0
    for number in range(options.count) if options.count else itertools.count():
        if time.monotonic() > deadline or flaws == MAX_FLAWS:
            break
        form, text = make_input(seed, number)
        flaw = examine(text, form, backend, outcomes)
        if flaw is not None:
            flaws += 1
            path = save(options.out, f"{seed}-{number}", form, text, flaw)
            print(f"{path}: {flaw.strip().splitlines()[-1][:300]}", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")
    print(f"{flaws:8} not handled as they must be" + (f", in {options.out}" if flaws else ""))
    return 1 if flaws else 0


def make_input(seed: int, number: int) -> tuple[Form, str]:
    """The input of this number: a form and a text in it."""
    dice = Dice(seed * 2**32 + number)
    size = dice.pick((1, 2, 4, 8, 20))
    first, second = (_program(dice, size) for _ in range(2))
    if dice.chance(0.3):
        return "text", print_program(program_mutations.mutated(dice, first))
    if dice.chance(0.35):
        return "json", json_mutations.mutated(dice, print_json(first), print_json(second))
    return "text", text_mutations.mutated(dice, print_program(first), print_program(second))


def _program(dice: Dice, size: int) -> Program:
    return random_program(dice.bits(48), size=size)


def examine(text: str, form: Form, backend: Backend, outcomes: Counter[str]) -> str | None:
    """Count what becomes of `text`; what is wrong with that, None if nothing is."""
    try:
        outcomes[f"{form} {judge(text, form, backend)}"] += 1
    except Exception:
        return traceback.format_exc()
    return None


def save(folder: Path, name: str, form: Form, text: str, flaw: str) -> Path:
    """Write an input and, beside it, what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{'ptir' if form == 'text' else 'json'}"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    path.with_suffix(".txt").write_text(flaw, encoding="utf-8", errors="replace")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="stop after this time")
    parser.add_argument("--count", type=int, help="stop after this many inputs")
    parser.add_argument("--seed", type=int, help="makes a run repeatable; default: the time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where to save")
    return parser


if __name__ == "__main__":
    sys.exit(main())
