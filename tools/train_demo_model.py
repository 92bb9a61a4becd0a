"""Train the bundled demo model on Python's standard library and save it as a model directory."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from transformers.utils.logging import disable_progress_bar

from demo_model.card import Results, TextSize, model_card
from demo_model.corpus import SourceFile, standard_library_corpus
from demo_model.directory import (
    check_target,
    generation_settings,
    round_to_float16,
    save_directory,
)
from demo_model.evaluation import held_out_loss, sample_text
from demo_model.tokenizer import encode_documents, end_of_text_id, train_tokenizer
from demo_model.training import ModelShape, TrainingPlan, new_model, train

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "packages/gptrs-models/src/gptrs_models/demo"
SAMPLE_PROMPT = 'def read_file(path):\n    """'
SAMPLE_TOKENS = 120
Number = TypeVar("Number", int, float)


def main() -> int:
    """Train and save the model as the command line says and return the exit code."""
    options = parse_options(sys.argv[1:])
    torch.set_num_threads(options.threads)
    try:
        check_target(options.out)
    except FileExistsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    disable_progress_bar()
    with stop_on_interrupt() as stopped:
        train_and_save(options, stopped)
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options in `arguments`: minutes, steps, seed, threads and out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=positive(float), default=60.0, help="time to train for (%(default)s)"
    )
    parser.add_argument(
        "--steps", type=positive(int), help="stop after this many steps if that is earlier"
    )
    parser.add_argument("--seed", type=int, default=0, help="for weights, order and sample (0)")
    parser.add_argument("--threads", type=positive(int), default=2, help="CPU threads (2)")
    parser.add_argument(
        "--out", type=Path, default=BUNDLED, help="the model directory (the bundled one)"
    )
    return parser.parse_args(arguments)


def positive(kind: type[Number]) -> Callable[[str], Number]:
    """Return a reader of a positive `kind` for argparse."""

    def read(text: str) -> Number:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"needs a number above 0, got {text}")
        return value

    return read


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that says if SIGINT came; a second SIGINT interrupts as usual."""
    interrupted = False

    def note(_signal: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, before)
        print("interrupted: saving what is trained so far (again: stop now)", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def train_and_save(options: argparse.Namespace, stopped: Callable[[], bool]) -> None:
    """Train a model, measure it as it will be stored, and save it with its card."""
    corpus = standard_library_corpus()
    shape = ModelShape()
    tokenizer = train_tokenizer((file.text for file in corpus.train), shape.vocab_size)
    train_ids = encode_documents(tokenizer, [file.text for file in corpus.train])
    held_out_ids = encode_documents(tokenizer, [file.text for file in corpus.held_out])
    train_size = text_size(corpus.train, train_ids)
    held_out_size = text_size(corpus.held_out, held_out_ids)
    print(f"training text: {train_size}\nheld-out text: {held_out_size}", flush=True)

    end_of_text = end_of_text_id(tokenizer)
    model = new_model(shape, end_of_text, options.seed)
    model.generation_config = generation_settings(end_of_text)
    plan = TrainingPlan(seconds=options.minutes * 60, steps=options.steps, seed=options.seed)
    record = train(model, train_ids, held_out_ids, plan, stopped)

    round_to_float16(model)
    results = Results(
        held_out_loss=held_out_loss(model, held_out_ids),
        sample=sample_text(model, tokenizer, SAMPLE_PROMPT, SAMPLE_TOKENS, options.seed),
        prompt_tokens=len(tokenizer.encode(SAMPLE_PROMPT).ids),
    )
    print(f"{record}\n{results.sample}", flush=True)
    card = model_card(model, train_size, held_out_size, record, results, command_line(options))
    size = save_directory(options.out, model, tokenizer, card)
    print(
        f"held-out loss {results.held_out_loss:.3f} nats per token, "
        f"{results.bits_per_byte(held_out_size):.3f} bits per byte\n"
        f"saved {size:,} bytes in `{options.out}`"
    )


def text_size(files: Sequence[SourceFile], ids: torch.Tensor) -> TextSize:
    """Return the size of `files`, which `ids` encodes."""
    return TextSize(len(files), sum(len(file.text.encode()) for file in files), len(ids))


def command_line(options: argparse.Namespace) -> str:
    """Return the command that trains the bundled model with these options, wherever it is run."""
    words = ["python", "tools/train_demo_model.py", "--minutes", f"{options.minutes:g}"]
    if options.steps is not None:
        words += ["--steps", str(options.steps)]
    words += ["--threads", str(options.threads), "--seed", str(options.seed)]
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
