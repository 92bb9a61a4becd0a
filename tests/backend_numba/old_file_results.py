"""Write what models of old files compute, in a process that may find what another one kept.

python old_file_results.py CACHE RESULTS FOLDER...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import gptrs
from gptrs.backend import weight_identity
from gptrs_backend_numba.codegen.compiled import kernel_store
from gptrs_backend_numba.kept_weights import weight_store
from gptrs_runtime.loaded_model import LoadedModel

TOKENS = np.array([[5, 1, 7, 7, 3]])
IMAGE = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)


def result(model: LoadedModel) -> np.ndarray:
    """Return the numbers that a model computes of an input."""
    if model.takes_images or "causal_lm" in model.capabilities:
        return model.forward(IMAGE if model.takes_images else TOKENS)
    if "ctc" in model.capabilities:
        return model.ctc().score_frames(IMAGE.reshape(1, -1)[:, :90], [90])
    mask = np.ones(TOKENS.shape, np.bool_)
    if "seq2seq" in model.capabilities:
        texts = model.seq2seq()
        return texts.write(TOKENS, texts.read_sources(TOKENS, mask))
    return model.text_embedder().encode(TOKENS, mask)


def main(cache: str, results: str, *folders: str) -> None:
    """Compute in each folder by numba, with every form of a weight kept below `cache`."""
    kernel_store()  # kernels are those of all tests
    os.environ["GPTRS_CACHE_DIR"] = cache
    vars(weight_identity)["_SETTLED_NS"] = -1 << 62
    weight_store.LEAST = 1
    loaded = {folder: gptrs.load_model(folder, "numba", threads=1) for folder in folders}
    np.savez(Path(results), **{folder: result(model) for folder, model in loaded.items()})
    weight_store.weight_store().writer.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
