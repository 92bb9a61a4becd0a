"""Write random answers for the schemas of the JSON-Schema test suite: every one must validate."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import jsonschema
import numpy as np

import gptrs
from gptrs.errors import UsageError
from gptrs_runtime.generation.grammar import Grammar
from gptrs_runtime.loaded_model import LoadedModel

MOST_TOKENS = 300
CLOSING = ('"', "}", "]", '"}', '"]', "}}", "]]", '",')
"""Texts whose tokens are likelier than others, so that answers end."""


@dataclass
class Tally:
    """What came of the schemas."""

    answers: int = 0
    cut: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """What each token cost besides the model."""


def schemas(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the schemas in the files of a draft of the suite, named."""
    for file in sorted(folder.glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            yield f"{file.stem}: {case['description']}", case["schema"]


class Writer:
    """Answers of random logits over the vocabulary of a model, which itself is not run."""

    def __init__(self, model: LoadedModel, seed: int) -> None:
        self._model = model
        self._size = model.causal_lm().vocab_size
        self._ends = model.eos_tokens
        self._dice = np.random.default_rng(seed)
        self._bias = np.zeros(self._size, np.float32)
        for text in CLOSING:
            tokens = model.tokenizer.encode(text)
            if len(tokens) == 1:
                self._bias[tokens[0]] = 6
        self._bias[list(self._ends)] = 6

    def write(self, schema: object, tally: Tally) -> str | None:
        """Return a text of the schema, None for one that was cut; UsageError if it is refused."""
        compact = {"x-guidance": {"whitespace_flexible": False}}
        told = {**schema, **compact} if isinstance(schema, dict) else schema
        processor = Grammar(self._model, "json_schema", json.dumps(told)).new_processor(0)
        tokens: list[int] = []
        while len(tokens) < MOST_TOKENS:
            logits = self._dice.gumbel(size=self._size).astype(np.float32) + self._bias
            started = perf_counter()
            logits = processor(np.array(tokens, np.int64), logits)
            tally.seconds.append(perf_counter() - started)
            token = int(logits.argmax())
            if token in self._ends:
                return self._model.tokenizer.decode(tokens)
            tokens.append(token)
        return None


def check(name: str, schema: object, writer: Writer, count: int, tally: Tally) -> None:
    """Write `count` answers for a schema, and note those that do not validate."""
    for _ in range(count):
        try:
            text = writer.write(schema, tally)
        except UsageError as error:
            tally.refused.append(f"{name}: {error.message.splitlines()[0]}")
            return
        if text is None:
            tally.cut += 1
            continue
        tally.answers += 1
        try:
            validator = jsonschema.validators.validator_for(
                schema, default=jsonschema.Draft202012Validator
            )
            validator(schema).validate(json.loads(text))
        except (re.error, OverflowError) as error:  # a pattern, or a number beyond f64
            tally.answers -= 1
            tally.refused.append(f"{name}: the validator cannot check an answer: {error}")
            return
        except (jsonschema.ValidationError, json.JSONDecodeError) as error:
            tally.wrong.append(f"{name}: {text[:200]!r}: {str(error).splitlines()[0]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the schemas of a folder; 1 if an answer does not validate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a draft, such as tests/draft2020-12")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--answers", type=int, default=3, help="for each schema")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    writer = Writer(gptrs.load_model(options.model, "ref"), options.seed)
    tally, number = Tally(), 0
    for name, schema in schemas(options.folder):
        number += 1
        check(name, schema, writer, options.answers, tally)
    for problem in (*tally.refused, *(f"WRONG {one}" for one in tally.wrong)):
        print(problem)
    cost = 1000 * np.percentile(tally.seconds, [50, 99]) if tally.seconds else [0, 0]
    print(
        f"{number} schemas, {len(tally.refused)} refused; {tally.answers} answers,"
        f" {len(tally.wrong)} wrong, {tally.cut} cut; a mask costs {cost[0]:.3f} ms at the median,"
        f" {cost[1]:.3f} at 99 %"
    )
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
