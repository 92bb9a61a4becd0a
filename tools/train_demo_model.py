"""Train the bundled demo model on Python's standard library, by `gptrs train`, and save it.

A run that is stopped or killed goes on when the tool is started again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demo_model.card import Results, TextSize, model_card
from demo_model.corpus import SourceFile, standard_library_corpus
from demo_model.directory import check_target, round_weights, save_directory
from demo_model.evaluation import held_out_loss, sample_text
from demo_model.recipe import ModelShape, Plan, write_inputs
from demo_model.tokenizer import encode_documents, train_tokenizer
from gptrs_runtime.load import load_model
from gptrs_train.saved_run import STATE

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "packages/gptrs-models/src/gptrs_models/demo"
WORK = ROOT / "build/demo-model"
SAMPLE_PROMPT = 'def read_file(path):\n    """'
SAMPLE_TOKENS = 120
PLAN = Plan()


def main() -> int:
    """Train and save the model as the command line says and return the exit code."""
    options = parse_options(sys.argv[1:])
    try:
        check_target(options.out)
    except FileExistsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return train_and_save(options)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options in `arguments`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=positive, default=PLAN.steps, help="updates (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for weights, order and sample (0)")
    parser.add_argument("--threads", type=positive, default=1, help="CPU threads (1)")
    parser.add_argument("--precision", default=PLAN.precision, help="of products (%(default)s)")
    parser.add_argument("--backend", default=PLAN.backend, help="that trains (%(default)s)")
    parser.add_argument("--work", type=Path, default=WORK, help="files of the run (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=BUNDLED, help="the model directory (the bundled one)"
    )
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Return a number above 0 for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a number above 0, got {text}")
    return int(text)


def train_and_save(options: argparse.Namespace) -> int:
    """Train a model, measure it as it will be stored, and save it with its card."""
    corpus, shape = standard_library_corpus(), ModelShape()
    tokenizer = train_tokenizer((file.text for file in corpus.train), shape.vocab_size)
    train_ids = encode_documents(tokenizer, [file.text for file in corpus.train])
    held_out_ids = encode_documents(tokenizer, [file.text for file in corpus.held_out])
    train_size = text_size(corpus.train, train_ids)
    held_out_size = text_size(corpus.held_out, held_out_ids)
    print(f"training text: {train_size}\nheld-out text: {held_out_size}", flush=True)

    write_inputs(options.work, shape, tokenizer, train_ids, held_out_ids)
    trained, rounded = options.work / "trained", options.work / "rounded"
    chosen = ("steps", "seed", "threads", "precision", "backend")
    plan = Plan(**{name: getattr(options, name) for name in chosen})
    code = run_gptrs(plan.command(options.work, trained, resume=has_begun(trained)))
    if code:
        print("no model is written; the same command continues the run in --work", file=sys.stderr)
        return code

    round_weights(trained, rounded)
    model = load_model(rounded, options.backend)
    results = Results(
        held_out_loss=held_out_loss(model, held_out_ids),
        sample=sample_text(model, SAMPLE_PROMPT, SAMPLE_TOKENS, options.seed),
        prompt_tokens=len(tokenizer.encode(SAMPLE_PROMPT).ids),
    )
    report = json.loads((trained / "training.json").read_bytes())["result"]
    config = json.loads((rounded / "config.json").read_bytes())
    command = command_line(options)
    card = model_card(config, report, train_size, held_out_size, results, command)
    size = save_directory(rounded, options.out, card)
    print(
        f"{results.sample}\nheld-out loss {results.held_out_loss:.3f} nats per token, "
        f"{results.bits_per_byte(held_out_size):.3f} bits per byte\n"
        f"saved {size:,} bytes in `{options.out}`"
    )
    return 0


def has_begun(trained: Path) -> bool:
    """Return whether there is a state of a run that writes this folder."""
    return (trained.with_name(f"{trained.name}.run") / STATE).is_file()


def run_gptrs(words: Sequence[str]) -> int:
    """Run a command of gptrs and return its exit code; Ctrl-C is for it alone."""
    print(shlex.join(["gptrs", *words]), flush=True)
    process = subprocess.Popen([sys.executable, "-m", "gptrs", *words])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has the usual handler
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def text_size(files: Sequence[SourceFile], ids: np.ndarray) -> TextSize:
    """Return the size of `files`, which `ids` encodes."""
    return TextSize(len(files), sum(len(file.text.encode()) for file in files), len(ids))


def command_line(options: argparse.Namespace) -> str:
    """Return the command that trains the bundled model with these options, wherever it is run."""
    words = ["python", "tools/train_demo_model.py", "--steps", str(options.steps)]
    words += ["--threads", str(options.threads), "--seed", str(options.seed)]
    if (options.precision, options.backend) != (PLAN.precision, PLAN.backend):
        words += ["--precision", options.precision, "--backend", options.backend]
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
