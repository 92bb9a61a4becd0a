"""Runs tiny models on one device and on a mesh; a process of its own, for eight CPU devices.

python mesh_models.py FOLDER MESH [auto | HOST:PORT PROCESSES PROCESS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np

import gptrs
from gptrs.api.backends import ProcessGroup
from gptrs.backend.contract import Backend
from gptrs_backend_jax.executable import JaxExecutable
from gptrs_backend_jax.grid import GridCall
from gptrs_conformance.kit import checks_of, run_check

SPLIT = "split tensors are whole"
UNOPTIMIZED = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "True",
    "xla_cpu_use_fusion_emitters": "False",
}
"""Options for XLA: a third of the time for machine code. Programs are split as they always are."""
Arrays = dict[str, np.ndarray]


def results(folder: Path, backend: Backend) -> tuple[Arrays, list[int]]:
    """The outputs of a model on inputs that all runs share, and the text that it writes."""
    model = gptrs.load_model(folder, backend=backend)
    random = np.random.default_rng(1)
    if "image_classifier" in model.capabilities:
        return {"logits": model.forward(random.standard_normal((4, 3, 64, 64), np.float32))}, []
    tokens = random.integers(1, 60, (4, 16))
    if "seq2seq" in model.capabilities:
        module = model.seq2seq()
        state = module.read_sources(tokens, np.ones(tokens.shape, np.bool_))
        first, *later = [module.write(tokens[:, place : place + 2], state) for place in (0, 2, 4)]
        return {"logits": first, "later logits": np.concatenate(later, 1)}, []
    if "causal_lm" not in model.capabilities:
        encode = model.text_embedder().encode
        return {"states": encode(tokens, np.ones(tokens.shape, np.bool_))}, []
    text = gptrs.generate(model, tokens[0].tolist(), max_tokens=6, temperature=0, ignore_eos=True)
    return {"logits": model.forward(tokens)}, list(text.token_ids)


def programs(calls: list[GridCall]) -> str:
    """What XLA made of all programs that ran on the mesh."""
    return "\n".join(text for call in calls for text in call.texts())


def main() -> None:
    folder, mesh = Path(sys.argv[1]), sys.argv[2]
    processes = None
    if sys.argv[3:] == ["auto"]:
        processes = ProcessGroup.launched(os.environ)
    elif len(sys.argv) > 3:
        processes = ProcessGroup(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    calls: list[GridCall] = []
    make = JaxExecutable.__init__

    def noted(self: JaxExecutable, *arguments: object, **settings: object) -> None:
        make(self, *arguments, **settings)  # pyright: ignore[reportArgumentType]
        call = vars(self)["_call"]
        if isinstance(call, GridCall):
            calls.append(call)

    with patch.object(JaxExecutable, "__init__", noted):
        _compare(folder, mesh, calls, processes)


def _compare(
    folder: Path, mesh: str, calls: list[GridCall], processes: ProcessGroup | None
) -> None:
    for each in sorted(folder.iterdir()):
        one, text = results(each, gptrs.get_backend("ref"))
        calls.clear()
        backend = gptrs.get_backend(
            "jax", device="cpu", mesh=mesh, processes=processes, options=UNOPTIMIZED
        )
        if processes is None:
            (check,) = [each for each in checks_of("core") if each.name == SPLIT]
            outcome = run_check(backend, check)
            assert outcome.status == "pass", outcome.reason
        many, same_text = results(each, backend)
        assert text == same_text, f"{each.name} writes {same_text}, {text} on one device"
        for name, expected in one.items():
            error = np.abs(many[name] - expected).max() / np.abs(expected).max()
            assert error < 1e-5, f"{each.name}: {name} is off by {error:.1e}"
        (each / "programs.txt").write_text(programs(calls), encoding="utf-8")
        print(f"{each.name}: same {' and '.join(one)}{', same text' if text else ''}")


if __name__ == "__main__":
    main()
