"""The files that a run writes: an adapter as PEFT has it or a model folder, with a report."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from gptrs.api import ModelError, UsageError
from gptrs.checkpoint.adapter_config import BASE_DIGEST
from gptrs.checkpoint.adapter_config import CONFIG as ADAPTER_CONFIG
from gptrs.checkpoint.adapter_config import WEIGHTS as ADAPTER_WEIGHTS
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.safetensors import write_safetensors
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.converting.atomic_folder import atomic_folder
from gptrs_runtime.converting.convert import WRITERS, Destination, require_apart
from gptrs_runtime.converting.model_content import StoredModel, in_dtype, stored_model
from gptrs_runtime.sources.model_folder import (
    MODEL_CONFIG,
    MODULES,
    TRANSFORMER_CONFIG,
    hub_name,
    module_folders,
)
from gptrs_runtime.sources.model_source import CONFIG, MAX_TOKENIZER_BYTES, ModelSource
from gptrs_train.heads import HeadLearner
from gptrs_train.learner import FACTORS, Learner, factor_name
from gptrs_train.saved_run import METRICS, folder_is_new

REPORT: Final = "training.json"
CURVE: Final = "training.svg"
_PREFIX: Final = "base_model.model."
_BODIES: Final = {"h": "transformer.", "layers": "model."}
"""The prefix of transformers for the body of a model whose checkpoint lacks it."""


def require_new(out: Path, run: str, sources: Sequence[Path], *, resume: bool, force: bool) -> None:
    """UsageError if `out` holds anything other than the product of the run with the digest `run`.

    With `force` a model or an adapter may be replaced, but no folder that holds something else, and
    none that has one of `sources`, the model and the data.
    """
    shown = quoted(str(out), 200)
    if folder_is_new(out):
        return
    if resume and _written_by(out) == run:
        return
    if not force:
        raise UsageError(
            f"{shown} exists",
            hint="--force replaces it, --resume continues the run that wrote it",
        )
    # Even with --force: the run would remove the model or the data that it reads.
    for source in sources:
        require_apart(source / CONFIG, out)  # a file in it: `out` may be the source itself
    names = os.listdir(out) if out.is_dir() else []
    # An embedder has a folder for each of its modules.
    own = module_folders(out)
    folders = any((out / name).is_dir() for name in names if name not in own)
    if folders or not {CONFIG, ADAPTER_CONFIG}.intersection(names):
        raise UsageError(
            f"{shown} is not a model or adapter, which --force could replace",
            hint="choose another folder, or remove it yourself",
        )


def _written_by(out: Path) -> object:
    """Return the digest of the run that wrote a folder, None if no report states it."""
    try:
        return parse_object((out / REPORT).read_bytes(), REPORT).get("run")
    except (OSError, ModelError):
        return None


def write_product(
    out: Path,
    learner: Learner,
    trained: Mapping[str, np.ndarray],
    report: Mapping[str, object],
    metrics: Sequence[Mapping[str, Any]],
    *,
    fresh: bool,
) -> None:
    """Write the trained weights to the folder `out`, completely or not at all."""
    about = {
        REPORT: json.dumps(report, indent=2).encode() + b"\n",
        METRICS: b"".join(json.dumps(row).encode() + b"\n" for row in metrics),
        CURVE: curve(metrics).encode(),
    }
    if learner.adapter is not None and learner.writes_adapter:
        _write_adapter(out, learner, trained, about)
        return
    model = _untrained(learner.source) if fresh else stored_model(learner.source)
    tensors = {each.name: each for each in model.tensors if learner.is_written(each.name)}
    for name, array in learner.whole_weights(trained).items():
        made = OutgoingTensor.of(name, array)
        # Weights keep the type of the checkpoint; those of a new model are f32.
        tensors[name] = made if name not in tensors else in_dtype(made, tensors[name].type.dtype)
    named = [replace(each, name=learner.stored_name(name)) for name, each in tensors.items()]
    files = {**model.files, **about}
    if isinstance(learner, HeadLearner):
        files = _files_of_head(learner, files)
    whole = replace(model, tensors=named, config=learner.config, files=files)
    WRITERS["hf"](whole, Destination(out, None, True))


def _files_of_head(learner: HeadLearner, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a model with those that sentence-transformers reads beside an embedder.

    Other heads are without them: they would say that the model is an embedder.
    """
    task = learner.goal.task
    if task == "embed":
        return dict(files) if MODULES in files else {**files, **_mean_modules(learner)}
    about = learner.source.read_json(MODEL_CONFIG) or {}
    own = task == "rank" and about.get("model_type") == "CrossEncoder"
    dropped = (MODULES, TRANSFORMER_CONFIG, *(() if own else (MODEL_CONFIG,)))
    return {n: data for n, data in files.items() if n not in dropped and "/" not in n}


def _mean_modules(learner: HeadLearner) -> dict[str, bytes]:
    """Return the files of an embedder that averages its tokens and divides by the length."""
    package = "sentence_transformers.models"
    parts = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    found: dict[str, object] = {
        MODULES: [
            {"idx": n, "name": str(n), "path": path, "type": f"{package}.{kind}"}
            for n, (path, kind) in enumerate(parts)
        ],
        TRANSFORMER_CONFIG: {"max_seq_length": learner.length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": learner.width,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }
    return {name: json.dumps(value, indent=2).encode() + b"\n" for name, value in found.items()}


def _untrained(source: ModelSource) -> StoredModel:
    """Return the settings and the tokenizer of a folder, which may lack weights."""
    files = {
        name: source.read_bytes(name, limit=MAX_TOKENIZER_BYTES) or b""
        for name in source.file_names()
        if "/" not in name and name.endswith((".json", ".jinja", ".txt", ".model"))
    }
    return StoredModel(source.path, [], source.config, files)


def _write_adapter(
    out: Path, learner: Learner, trained: Mapping[str, np.ndarray], about: Mapping[str, bytes]
) -> None:
    tensors = [
        OutgoingTensor.of(f"{_PREFIX}{factor_name(written, factor)}", array)
        for name, written in _written_names(learner).items()
        for factor in FACTORS
        for array in (trained[factor_name(name, factor)],)
    ]
    config = json.dumps(adapter_config(learner), indent=2).encode()
    with atomic_folder(out, replace=True) as folder:
        for name, data in {ADAPTER_CONFIG: config, **about}.items():
            with folder.file(name) as file:
                file.write(data)
        with folder.file(ADAPTER_WEIGHTS) as file:
            write_safetensors(file, tensors, {"format": "pt", BASE_DIGEST: learner.identity})


def _written_names(learner: Learner) -> dict[str, str]:
    """Return the names of modules in an adapter by the names of layers and matrices of experts."""
    routers = _routers(learner)
    names = {name: _full(routers.get(name, name)) for name in learner.layers}
    modules: dict[str, list[str]] = {}
    for name in learner.experts:
        modules.setdefault(learner.params.asked.experts[name].module, []).append(name)
    for module, own in modules.items():
        # PEFT wraps a module once for each parameter: the first one is innermost.
        for depth, name in enumerate(reversed(own)):
            names[name] = _full(module) + ".base_layer" * depth
    return names


def _routers(learner: Learner) -> dict[str, str]:
    """Return the names in transformers of the layers that choose among experts.

    There they are no linear layers, and PEFT takes them as parameters.
    """
    return dict(each.router for each in learner.params.asked.experts.values())


def adapter_config(learner: Learner) -> dict[str, object]:
    """Return the settings of an adapter, as `save_pretrained` of PEFT writes them."""
    assert learner.adapter is not None, "there is an adapter"
    uses = learner.params.uses()
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        # Not the path of a cache, which other machines lack.
        "base_model_name_or_path": hub_name(learner.source.path) or str(learner.source.path),
        "r": learner.adapter.rank,
        "lora_alpha": learner.adapter.alpha,
        "lora_dropout": learner.dropout.low_rank,
        "bias": "none",
        "fan_in_fan_out": any(uses.get(f"{name}.weight") == "turned" for name in learner.layers),
        "target_modules": _target_modules(learner),
        **_parameter_settings(learner),
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }


def _target_modules(learner: Learner) -> list[str]:
    """Return the last parts of the names of layers, whole names where others have that part."""
    own, known = set(learner.layers), learner.params.asked.layers
    found: list[str] = []
    routers = _routers(learner)
    for layer in learner.layers:
        if layer in routers:
            continue
        last = layer.rpartition(".")[2]
        alike = [name for name in known if name.rpartition(".")[2] == last]
        found.append(last if own.issuperset(alike) and not last.isdigit() else _full(layer))
    return sorted(set(found))


def _parameter_settings(learner: Learner) -> dict[str, object]:
    """Return the settings for routers and matrices of experts, shortened if all layers have them.

    With a version of PEFT: earlier ones have other factors for the same matrices.
    """
    routers = {layer: f"{name}.weight" for layer, name in _routers(learner).items()}
    own = {*learner.experts, *(routers[layer] for layer in learner.layers if layer in routers)}
    known = [*learner.params.asked.experts, *routers.values()]
    found: set[str] = set()
    for name in own:
        short = re.sub(r"^.*?\.[0-9]+\.", "", name)
        alike = [each for each in known if each.endswith(f".{short}")]
        found.add(short if own.issuperset(alike) else _full(name))
    return {"target_parameters": sorted(found), "peft_version": "0.19.0"} if found else {}


def _full(layer: str) -> str:
    return _BODIES.get(layer.partition(".")[0], "") + layer


# The curve of a run as a picture.

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 56, 16
_RIGHT, _BOTTOM = _WIDTH - 16, _HEIGHT - 36
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#555}path{fill:none;stroke-width:1.5}"
    "line{stroke:#ddd}.train{stroke:#3b76c4}.valid{stroke:#d9822b}"
)


def curve(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of the losses by update: those learnt from, and the held-out ones."""
    lines = {
        "train": [(row["step"], row["loss"]) for row in metrics if "loss" in row],
        "valid": [(row["step"], row["valid_loss"]) for row in metrics if "valid_loss" in row],
    }
    losses = [loss for points in lines.values() for _, loss in points] or [0.0]
    least, most = min(losses), max(losses)
    # One point, or equal losses: the scale would divide by 0.
    most = most if most > least else least + 1.0
    last = max((step for points in lines.values() for step, _ in points), default=1)

    def at(step: float, loss: float) -> tuple[float, float]:
        x = _LEFT + (_RIGHT - _LEFT) * step / last
        return round(x, 1), round(_BOTTOM - (_BOTTOM - _TOP) * (loss - least) / (most - least), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">']
    parts.append(f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>')
    for number in range(5):
        loss = least + (most - least) * number / 4
        y = at(0, loss)[1]
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{loss:.3g}</text>')
        step = math.ceil(last * number / 4)
        x = at(step, least)[0]
        parts.append(f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{step}</text>')
    for name, points in lines.items():
        if points:
            path = " ".join("{} {}".format(*at(step, loss)) for step, loss in points)
            parts.append(f'<path class="{name}" d="M {path}"/>')
    legend = "updates; blue: loss of each, orange: loss of the held-out part, in nats per token"
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{legend}</text></svg>')
    return "\n".join(parts) + "\n"
