"""How far ours and llama.cpp's predictions from one GGUF file are from those of the model in f32.

python benchmarks/llama_divergence.py demo q8 q4 q4_asym
python benchmarks/llama_divergence.py MODEL.gguf

The first writes the model of a folder as files of these types, and compares them with the folder;
the second compares a file with its own decoded weights. Text is that of quantization_table.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import gptrs
from demo_model.corpus import standard_library_corpus
from gptrs_runtime.load import load_model

WINDOW = 512
Predict = Callable[[np.ndarray], np.ndarray]
"""Logits f32 [N, V] of the tokens of one text [N]."""


@dataclass(frozen=True)
class Divergence:
    """The Kullback-Leibler divergence in nats, its standard error, and the share of same tokens."""

    mean: float
    error: float
    same: float


def divergence(found: Predict, exact: Predict, tokens: np.ndarray) -> Divergence:
    """Compare predictions on windows of a text, all but the first position of each."""
    kl: list[np.ndarray] = []
    same: list[np.ndarray] = []
    for start in range(0, len(tokens) - 1, WINDOW):
        piece = tokens[start : start + WINDOW]
        p, q = (_log_softmax(predict(piece)[:-1]) for predict in (exact, found))
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    all_kl = np.concatenate(kl)
    error = float(all_kl.std(ddof=1) / np.sqrt(all_kl.size))
    return Divergence(float(all_kl.mean()), error, float(np.concatenate(same).mean()))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def ours(path: Path | str, precision: str | None) -> Predict:
    """Return the predictions of a model here; None is the precision that it has by default."""
    lm = load_model(path, precision=precision).causal_lm()
    return lambda tokens: lm.forward(tokens[np.newaxis])[0]


def llama(path: Path) -> Predict:
    """Return the predictions of llama.cpp with one thread."""
    model = llama_cpp.Llama(
        str(path), n_ctx=WINDOW, n_batch=WINDOW, n_threads=1, logits_all=True, verbose=False
    )

    def predict(tokens: np.ndarray) -> np.ndarray:
        model.reset()
        model.eval(tokens.tolist())
        return model.scores[: len(tokens)].copy()

    return predict


def files(source: str, types: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file to compare."""
    if not types:
        yield Path(source).name, Path(source)
    for type_ in types:
        path = folder / f"{type_}.gguf"
        gptrs.quantize(source, path, type_)
        yield type_, path


def main() -> None:
    """Print a row for each file, of ours and of llama.cpp."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="a model here, or a GGUF file")
    parser.add_argument("types", nargs="*", help="types of GGUF files to write")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of text")
    options = parser.parse_args()
    text = "\n".join(file.text for file in standard_library_corpus().held_out)
    reference = load_model(options.source, precision="f32")
    tokens = np.array(reference.prompt_tokens(text[: 8 * options.tokens])[: options.tokens])
    exact = ours(options.source, "f32")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(options.source, options.types, Path(folder)):
            for who, predict in (("gptrs", ours(path, None)), ("llama.cpp", llama(path))):
                found = divergence(predict, exact, tokens)
                figures = f"{found.mean:.5f} +- {found.error:.5f}, same token {found.same:.1%}"
                print(f"{name:10} {who:10} {figures}", flush=True)


if __name__ == "__main__":
    main()
