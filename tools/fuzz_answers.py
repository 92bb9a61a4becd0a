"""Read random answers of models, cut into random pieces, and compare with what they are made of.

PYTHONPATH=tests python tools/fuzz_answers.py --count 20000
"""

from __future__ import annotations

import argparse
import random
import sys

from gptrs_runtime.chat.answer_reader import AnswerForm
from gptrs_runtime.chat.messages import BARE, LISTED, NAMED, PIPED, TAGGED, THOUGHTS
from runtime.answer_texts import TOOLS, cut, random_answer, read

FAMILIES = (TAGGED, BARE, LISTED, NAMED, PIPED)


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if an answer was read wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.count)
    wrong = [seed for seed in seeds if _is_wrong(seed)]
    print(f"{len(seeds):8} answers, seeds {seeds.start} to {seeds.stop - 1}")
    print(f"{len(wrong):8} were read wrongly: seeds {wrong[:20]}")
    return 1 if wrong else 0


def _is_wrong(seed: int) -> bool:
    rng = random.Random(seed)
    family, thoughts = rng.choice(FAMILIES), rng.choice([None, *THOUGHTS])
    opened = thoughts is not None and rng.random() < 0.3
    made = random_answer(rng, family, thoughts, opened=opened)
    form = AnswerForm(thoughts, family, TOOLS)
    places = [[rng.randrange(10**6) for _ in range(rng.randrange(40))] for _ in range(3)]
    pieces = [[made.text], list(made.text), *(cut(made.text, each) for each in places)]
    return any(read(form, each, opened=opened) != made.answer for each in pieces)


if __name__ == "__main__":
    sys.exit(main())
