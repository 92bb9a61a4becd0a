"""The encoders of `encoders.py`, made with random weights, and each library that runs them."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers import models as sentence_modules
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import gptrs


def _installed(name: str) -> Any:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


onnxruntime, openvino = _installed("onnxruntime"), _installed("openvino")
Cases = dict[str, Callable[[], np.ndarray]]
Embedders = dict[str, Callable[[list[str]], np.ndarray]]
Run = Callable[[dict[str, np.ndarray]], np.ndarray]
EMBED_AT_ONCE = 32
"""Texts of a batch, sorted by length: what sentence-transformers does without being told."""
_WIDTH, _MOST_TOKENS = 384, 256
_SHAPE = {
    "hidden_size": _WIDTH, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536, "vocab_size": 30522,
}  # fmt: skip


def save_embedder(folder: Path) -> Path:
    """Write a sentence embedder of the shape of all-MiniLM-L6-v2, once; return its folder."""
    if folder.exists():
        return folder
    torch.manual_seed(0)
    encoder = folder.with_name("encoder")
    transformers.BertModel(transformers.BertConfig(**_SHAPE)).save_pretrained(encoder)
    _tokenizer().save_pretrained(encoder)
    parts = [
        sentence_modules.Transformer(str(encoder), max_seq_length=_MOST_TOKENS),
        sentence_modules.Pooling(_WIDTH),
        sentence_modules.Normalize(),
    ]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    return folder


def _tokenizer() -> Any:
    """Return a tokenizer with a token a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = [*special, *(f"word{number}" for number in range(2000))]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{role}_token": token for role, token in roles.items()}
    )


def text_cases(folder: Path, threads: int) -> Embedders:
    """Return what gives texts their vectors, ours first."""
    torch.set_num_threads(threads)
    model = gptrs.load_model(folder, "numba", threads)
    theirs = SentenceTransformer(str(folder), device="cpu")
    found: Embedders = {
        "gptrs": lambda texts: gptrs.embed(model, texts),
        "sentence-transformers": lambda texts: theirs.encode(texts, show_progress_bar=False),
    }
    file = _exported_embedder(folder)
    runs = {} if file is None else _runs(file, threads)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(_MOST_TOKENS)
    tokenizer.enable_padding()
    return found | {who: _embedder(run, tokenizer) for who, run in runs.items()}


def _embedder(run: Run, tokenizer: Any) -> Callable[[list[str]], np.ndarray]:
    """Return the function from texts to vectors around a runtime, in batches by length."""

    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        vectors = np.empty((len(texts), _WIDTH), np.float32)
        for start in range(0, len(texts), EMBED_AT_ONCE):
            places = order[start : start + EMBED_AT_ONCE]
            read = tokenizer.encode_batch([texts[place] for place in places])
            mask = np.array([each.attention_mask for each in read])
            states = run({"input_ids": np.array([each.ids for each in read]), "mask": mask})
            weights = mask[:, :, None].astype(np.float32)
            mean = (states * weights).sum(1) / weights.sum(1)
            vectors[places] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors

    return embed


def image_cases(folder: Path, threads: int) -> Cases:
    """Return what classifies an image with ViT-B/16, ours first."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    tensor = torch.from_numpy(image)
    if not folder.exists():
        transformers.ViTForImageClassification(transformers.ViTConfig()).save_pretrained(folder)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    model = gptrs.load_model(folder, "numba", threads)

    def by_torch() -> np.ndarray:
        with torch.inference_mode():
            return theirs(tensor).logits.numpy()

    file = folder / "model.onnx"
    if _exporting() and not file.exists():
        _export(theirs, {"pixel_values": tensor}, file, None)
    runs = _runs(file, threads) if file.exists() else {}
    cases: Cases = {"gptrs": lambda: model.forward(image), "torch": by_torch}
    return cases | {who: lambda run=run: run({"pixel_values": image}) for who, run in runs.items()}


def _exported_embedder(folder: Path) -> Path | None:
    """Return the encoder as an ONNX file of any batch and length, None where none is written."""
    file = folder / "model.onnx"
    if _exporting() and not file.exists():
        encoder = transformers.BertModel.from_pretrained(folder).eval()
        ids = torch.randint(5, 2000, (2, 16))
        sizes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        _export(encoder, given, file, dict.fromkeys(given, sizes))
    return file if file.exists() else None


def _exporting() -> bool:
    someone = onnxruntime is not None or openvino is not None
    return someone and importlib.util.find_spec("onnxscript") is not None


def _export(model: Any, given: dict[str, Any], file: Path, sizes: Any) -> None:
    names = [{"attention_mask": "mask"}.get(name, name) for name in given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (), str(file), kwargs=given, input_names=names, dynamo=True, verbose=False,
            dynamic_shapes=sizes,
        )  # fmt: skip


def _runs(file: Path, threads: int) -> dict[str, Run]:
    """Return the first output of an ONNX file by each runtime that is installed."""
    found: dict[str, Run] = {}
    if onnxruntime is not None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(file), settings, ["CPUExecutionProvider"])
        found["ONNX Runtime"] = lambda inputs: session.run(None, inputs)[0]
    if openvino is not None:
        wanted = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            # Where the processor can, it would otherwise compute in bf16.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(str(file), "CPU", wanted)
        request = compiled.create_infer_request()
        found["OpenVINO"] = lambda inputs: request.infer(inputs)[compiled.output(0)]
    return found
