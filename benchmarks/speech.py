"""Measure Whisper on the numba backend and by transformers on torch, in turns in one process.

    python benchmarks/speech.py [--rounds 5] [--tokens 100] [--seconds 30]

The weights are random, of the shape of whisper-tiny (the defaults of `WhisperConfig`): 39 million.
Each side hears one window and writes `--tokens` tokens, one thread. Times are of the processor; the
real-time factor is such a time by the seconds of the sound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import gptrs
from gptrs_runtime.speech.sound_files import log_mel

_START, _END, _NO_TIMES = 50258, 50257, 50363
_GENERATION = {
    **{"decoder_start_token_id": _START, "eos_token_id": _END, "pad_token_id": _END},
    **{"no_timestamps_token_id": _NO_TIMES, "lang_to_id": {"<|en|>": 50259}},
    **{"task_to_id": {"transcribe": 50359, "translate": 50358}, "is_multilingual": True},
    **{"return_timestamps": False, "suppress_tokens": [_END]},
}
"""A text that may not end has all of its tokens."""
Cases = dict[str, Callable[[], np.ndarray]]


def main() -> None:
    """Measure whole transcriptions and their parts, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0, help="at most 30: one window")
    options = parser.parse_args()
    os.environ["GPTRS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        reference = _saved(Path(folder), options.tokens)
        samples = _sound(options.seconds)
        for what, cases in _cases(Path(folder), reference, samples, options.tokens).items():
            _measure(what, cases, options.rounds, options.seconds)


def _saved(folder: Path, tokens: int) -> Any:
    """Save the model, and return it as transformers has it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.WhisperConfig(pad_token_id=_END, eos_token_id=_END, bos_token_id=_END)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    settings = {**_GENERATION, "max_new_tokens": tokens}
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return model


def _sound(seconds: float) -> np.ndarray:
    at = np.arange(int(seconds * 16000)) / 16000
    noise = np.random.default_rng(0).standard_normal(at.size) * 0.02
    return (np.sin(800 * at * (1 + np.sin(3 * at))) * 0.4 + noise).astype(np.float32)


def _cases(folder: Path, reference: Any, samples: np.ndarray, tokens: int) -> dict[str, Cases]:
    """Return what is measured: whole transcriptions, the features, and the encoder."""
    model = gptrs.load_model(folder, backend="numba")
    whole = np.pad(samples, (0, 480_000 - samples.size))
    extractor = transformers.WhisperFeatureExtractor()
    features = log_mel(whole, 80)[None]

    def ours() -> np.ndarray:
        found = gptrs.transcribe(model, samples, language="en", timestamps=False)
        return np.array(found.segments[0].token_ids)

    def theirs() -> np.ndarray:
        given = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
        with torch.inference_mode():
            found = reference.generate(given, language="en", task="transcribe")
        return found[0, -tokens:].numpy()

    def heard() -> np.ndarray:
        return model.transcriber().hear(features).source[0][0].numpy()

    def encoded() -> np.ndarray:
        with torch.inference_mode():
            given = reference.model.encoder(torch.from_numpy(features)).last_hidden_state
            attention = reference.model.decoder.layers[0].encoder_attn
            found = attention.k_proj(given).reshape(1, 1500, 6, 64).transpose(1, 2).numpy()
            # Ours has the keys and values of all decoder layers, too.
            for layer in reference.model.decoder.layers:
                layer.encoder_attn.v_proj(given)
            for layer in reference.model.decoder.layers[1:]:
                layer.encoder_attn.k_proj(given)
        return found

    mels = partial(log_mel, whole, 80)
    extracted = partial(extractor, samples, sampling_rate=16000, return_tensors="np")
    return {
        f"transcription, {tokens} tokens": {"gptrs": ours, "transformers": theirs},
        "features": {"gptrs": mels, "transformers": lambda: extracted().input_features},
        "encoder": {"gptrs": heard, "transformers": encoded},
    }


def _measure(what: str, cases: Cases, rounds: int, seconds: float) -> None:
    results = {who: run() for who, run in cases.items()}
    times: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            begin = time.process_time()
            run()
            times[who].append(time.process_time() - begin)
    ours, theirs = (np.asarray(result).ravel() for result in results.values())
    if ours.dtype.kind == "i":
        note = f"{int((ours == theirs).sum())} of {ours.size} tokens are equal"
    else:
        note = f"results differ by {np.abs(ours - theirs).max() / np.abs(theirs).max():.1e}"
    middle = {who: statistics.median(spent) for who, spent in times.items()}
    for who, spent in times.items():
        print(
            f"{what:26} {who:13} median {middle[who]:6.3f} s  best {min(spent):6.3f} s"
            f"  real-time factor {middle[who] / seconds:.4f}"
            f"  ratio {middle[who] / middle['gptrs']:5.2f}",
            flush=True,
        )
    print(f"{what:26} {note}", flush=True)


if __name__ == "__main__":
    main()
