"""Write random texts of random forms: one that ends by itself must be of its form.

The judges are `re` for regexes and grammars, which are written out as regexes, and jsonschema.
`PYTHONPATH=tests` leads to the tiny models, as in `make fuzz`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import numpy as np

from fuzzing.tiny_tokenizers import tokenizer_files
from gptrs.errors import UsageError
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.grammar import Form, Grammar
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from runtime.tiny_gpt2 import save_tiny_gpt2

MOST_TOKENS = 40
STOPS = ("a", "b", " ", "\n", "é", "ab", '"', "}", "1")
LETTERS = ("a", "b", "c", "0", "9", " ", "-", "\n", "é", "€", "😀", '"', "the")
CLASSES = ("[a-c]", "[^a-z]", "[0-9]", ".", "[0-9a-f]", "[ab €]", "[^\\n]")
COUNTS = ("*", "+", "?", "{2}", "{0,3}", "{1,2}", "{2,}")


@dataclass(frozen=True)
class Case:
    """A form, and what tells whether a text is of it."""

    form: Form
    source: str
    judge: Callable[[str], bool]


def random_case(dice: np.random.Generator) -> Case:
    """Return a random form: as often a regex, a schema and a grammar."""
    kind = dice.integers(3)
    if kind == 0:
        regex = _regex(dice, 3)
        return _hard_regex(dice) if dice.random() < 0.3 else Case("regex", regex, _matches(regex))
    if kind == 1:
        schema = _schema(dice, 2)
        return Case("json_schema", json.dumps(schema), lambda text: _validates(text, schema))
    source, regex = _grammar(dice)
    return Case("lark", source, _matches(regex))


def _matches(regex: str) -> Callable[[str], bool]:
    pattern = re.compile(regex)
    return lambda text: pattern.fullmatch(text) is not None


def _regex(dice: np.random.Generator, depth: int, *, counted: bool = True) -> str:
    """Return a regex that `re` and llguidance read alike, so without anchors.

    What is `counted` has no counts inside, which would take `re` for ever.
    """
    kind = dice.integers(6) if depth else 0
    if kind == 0:
        return str(dice.choice(CLASSES)) if dice.random() < 0.4 else re.escape(_text(dice))
    inner = [_regex(dice, depth - 1, counted=counted and kind > 1) for _ in range(3)]
    if kind == 1 and counted:
        return f"(?:{inner[0]}){dice.choice(COUNTS)}"
    return f"({inner[0]}|{inner[1]})" if kind == 2 else "".join(inner[: dice.integers(1, 4)])


def _text(dice: np.random.Generator) -> str:
    return "".join(dice.choice(LETTERS) for _ in range(dice.integers(1, 3)))


def _hard_regex(dice: np.random.Generator) -> Case:
    """Return a regex of which llguidance may give up, soon or late; texts are short beside it."""
    count = int(dice.integers(500, 3000))
    least = int(dice.choice([0, 2, count]))
    letters, few = (("a", ""), ("[ab]", ""), ("[a-c]", "{0,2}"))[dice.integers(3)]
    source = f"({letters}{few}?){{{count}}}a{{{least},{count}}}"
    return Case("regex", source, _matches(f"{letters}*a{{{least}}}"))


def _schema(dice: np.random.Generator, depth: int) -> dict[str, object]:
    simple: list[dict[str, object]] = [
        {"type": "integer", "minimum": int(dice.integers(-20, 3)), "maximum": 40},
        {"type": "string", "maxLength": int(dice.integers(5))},
        {"type": "string", "pattern": f"^({_regex(dice, 1)})$"},
        {"enum": [_text(dice), None, int(dice.integers(99))]},
        {"type": ["boolean", "null"]},
        {"const": [True, _text(dice)]},
        {"type": "number", "multipleOf": 4, "minimum": 0, "maximum": 99},
    ]
    kind = dice.integers(4) if depth else 0
    if kind == 0:
        return simple[dice.integers(len(simple))]
    inner = [_schema(dice, depth - 1) for _ in range(2)]
    if kind == 1:
        return {"type": "array", "items": inner[0], "maxItems": int(dice.integers(4))}
    if kind == 2:
        return {"anyOf": inner}
    return {
        "type": "object",
        "properties": {"a": inner[0], "b": inner[1]},
        "required": [["a"], ["b"], ["a", "b"]][dice.integers(3)],
        "additionalProperties": bool(dice.integers(2)),
    }


def _validates(text: str, schema: Mapping[str, object]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def _grammar(dice: np.random.Generator) -> tuple[str, str]:
    """Return a grammar of Lark whose rules lead downwards, and the regex that it is."""
    if dice.random() < 0.2:  # a text of two regexes at once: perhaps there is none
        both = [_regex(dice, 2) for _ in range(2)]
        regex = f"(?=(?:{both[0]})\\Z)(?:{both[1]})"
        return f"start: T\nT: {' & '.join(map(_in_lark, both))}\n", regex
    rules = int(dice.integers(1, 4))
    lines: list[str] = []
    regex: dict[str, str] = {}
    for number in range(rules):
        part = _regex(dice, 1, counted=False)
        lines.append(f"T{number}: {_in_lark(part)}")
        regex[f"T{number}"] = f"(?:{part})"
    for number in reversed(range(rules)):
        name = "start" if number == 0 else f"r{number}"
        options: list[str] = []
        written: list[str] = []
        for _ in range(dice.integers(1, 3)):
            used = [list(regex)[dice.integers(len(regex))] for _ in range(dice.integers(1, 4))]
            counts = [dice.choice(("", "", "?", "*", "+")) for _ in used]
            pairs = list(zip(used, counts, strict=True))
            options.append(" ".join(f"{each}{count}" for each, count in pairs))
            written.append("".join(f"(?:{regex[each]}){count}" for each, count in pairs))
        lines.append(f"{name}: {' | '.join(options)}")
        regex[name] = f"(?:{'|'.join(written)})"
    return "\n".join([*reversed(lines), ""]), regex["start"]


def _in_lark(regex: str) -> str:
    return "/" + regex.replace("/", "\\/").replace("\n", "n").replace("\\ ", " ") + "/"


class Writer:
    """Writes texts of a tiny model by random logits; the model itself is not run."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._size = model.causal_lm().vocab_size
        self._ends = list(model.eos_tokens)

    def write(self, case: Case, dice: np.random.Generator) -> GeneratedText:
        """Return a text of a form, perhaps with a stop string, perhaps with tokens suppressed."""
        banned = dice.random(self._size) < dice.choice([0, 0, 0.3, 1])

        def ban(_: np.ndarray, logits: np.ndarray) -> np.ndarray:
            logits[banned] = -np.inf
            return logits

        options = GenerationOptions(
            max_tokens=MOST_TOKENS,
            sampling=Sampling(temperature=0.0),
            stop=(str(dice.choice(STOPS)),) if dice.random() < 0.3 else (),
            logits_processors=(ban,) if dice.random() < 0.3 else (),
            form=Grammar(self._model, case.form, case.source),
        )
        text = GenerationSetup(self._model, options).new_text([3])
        ending = float(dice.choice([0, 4]))
        while not text.ended:
            logits = dice.gumbel(size=self._size).astype(np.float32)
            logits[self._ends] += ending
            text.append(logits)
        return text


def flaw_of(text: GeneratedText, case: Case) -> str | None:
    """Return what is wrong with a text that has ended, None for nothing."""
    made = text.generation()
    if made.finish_reason in ("eos", "stop") and not case.judge(made.text):
        return f"ended by {made.finish_reason}, and is not of the form: {made.text!r}"
    if (made.finish_reason == "error") != (made.error is not None):
        return f"ended by {made.finish_reason}, with the error {made.error!r}"
    # The lexer of a grammar takes what it can: not every text of the rules is one of the form.
    stopped = case.form != "lark" and "stop string" in (made.error or "")
    if stopped and case.judge(made.text):
        return f"is of the form, and is said not to be: {made.text!r}"
    return None


def tiny_models(folder: Path) -> list[LoadedModel]:
    """Return two models: a tokenizer of bytes, and one of pieces with a space before words."""
    pieces = json.loads(tokenizer_files()[1])
    pieces["model"]["vocab"] |= {"▁t": 262, "a": 263, "▁a": 264, "1": 265, "</s>": 266}
    other = save_tiny_gpt2(folder / "pieces", vocab_size=267, eos_token_id=266, tokenizer=False)
    end = {"id": 266, "content": "</s>", "special": True, "single_word": False, "lstrip": False}
    pieces["added_tokens"].append({**end, "rstrip": False, "normalized": False})
    (other / "tokenizer.json").write_text(json.dumps(pieces), "utf-8")
    return [load_model(save_tiny_gpt2(folder / "bytes"), backend="ref"), load_model(other, "ref")]


def examine(seeds: Iterable[int], most_seconds: float) -> tuple[Counter[str], dict[int, str]]:
    """Return how texts ended, and the flaws by seed; no form begins after `most_seconds`."""
    ended, flaws, until = Counter[str](), dict[int, str](), time.monotonic() + most_seconds
    with tempfile.TemporaryDirectory() as folder:
        writers = [Writer(model) for model in tiny_models(Path(folder))]
        for seed, writer in zip(seeds, itertools.cycle(writers)):
            if time.monotonic() > until:
                break
            dice = np.random.default_rng(seed)
            case = random_case(dice)
            try:
                texts = [writer.write(case, dice) for _ in range(3)]
            except UsageError:
                ended["refused"] += 1
                continue
            ended.update(text.reason for text in texts)
            found = [flaw for text in texts if (flaw := flaw_of(text, case)) is not None]
            if found:
                flaws[seed] = f"{case.form} {case.source!r}: {found[0]}"
    return ended, flaws


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if a text is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", type=int, default=20_000, help="how many to try")
    parser.add_argument("--seconds", type=float, default=600, help="how long to try, at most")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.forms)
    ended, flaws = examine(seeds, options.seconds)
    for seed, flaw in flaws.items():
        print(f"seed {seed}: {flaw}")
    print(", ".join(f"{count} {reason}" for reason, count in sorted(ended.items())))
    print(f"{len(flaws):8} forms with texts that are wrong", flush=True)
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
