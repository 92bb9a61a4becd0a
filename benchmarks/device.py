"""Conformance and speed on one accelerator, beside torch.compile, in at most six minutes.

`device.py --device gpu` runs stages in processes of their own, one after another, until the time is
up, and writes `results/DATE-DEVICE-device.json` and `.md` after each, so that a run that is cut off
keeps what it found. `--device cpu --size tiny` tries it without an accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from gpt2_checkpoint import save_gpt2
from llama_checkpoint import save_llama

ROOT = Path(__file__).resolve().parent
MODELS = {"gpt2": ("124M", save_gpt2), "llama": ("1.2B", save_llama)}
PROMPT, NEW, TEXTS, ROUNDS = 512, 128, 32, 3
"""Tokens of a prompt, new tokens, texts of a batch, and runs of which the best counts."""
TRAINED = (8, 256, 12)
"""Rows, tokens per row, and updates of the training stage."""
MOST = 4
"""A stage takes at most this part of the time: one that hangs leaves time for the others."""

Figures = dict[str, float]


def main() -> int:
    """Run the stages that fit into the time; return 1 if one of them failed, 2 without a device."""
    options = parse_options()
    if options.stage:
        print(json.dumps(STAGES[options.stage](options)))
        return 0
    deadline = time.monotonic() + options.seconds
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        for name in STAGES:
            left = deadline - time.monotonic()
            limit = min(left, options.seconds / MOST)
            found[name] = {"skipped": "no time left"} if left < 5 else run(name, work, limit)
            if name == "device" and "error" in found[name]:
                told = str(found[name]["error"]).splitlines()[-1]
                print(f"there is no device `{options.device}` to measure: {told}", file=sys.stderr)
                return 2
            print(f"{name}: {json.dumps(found[name])}", flush=True)
            write(options, found)
    return int(any("error" in each for each in found.values()))


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="gpu", help="of the backend jax (gpu)")
    parser.add_argument("--size", choices=("whole", "tiny"), default="whole", help="(whole)")
    parser.add_argument("--seconds", type=float, default=360.0, help="for all stages (360)")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="(benchmarks/results)")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", choices=STAGES, help="run this stage alone, print its figures")
    return parser.parse_args()


def run(stage: str, work: str, seconds: float) -> dict[str, Any]:
    """Run a stage in a process of its own; return its figures, or what went wrong."""
    command = [sys.executable, __file__, *sys.argv[1:], "--stage", stage, "--work", work]
    # JAX takes three quarters of the memory of a GPU at once unless told not to.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {seconds:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-600:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def write(options: argparse.Namespace, found: Mapping[str, Any]) -> None:
    """Write all figures so far as JSON, and as a table."""
    about = found.get("device", {})
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    name = "-".join(str(about.get("name", options.device)).lower().split())
    stem = options.out / f"{now}-{name}-device"
    stem.parent.mkdir(parents=True, exist_ok=True)
    result = {"date": now, "size": options.size, "stages": found}
    stem.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(table(result), encoding="utf-8")


def table(result: Mapping[str, Any]) -> str:
    """Return the figures of gptrs and torch side by side, then those of other stages."""
    lines = [f"# One device, {result['date']}, models of size {result['size']}", ""]
    lines += ["| work | gptrs | torch.compile | ratio |", "|---|---|---|---|"]
    stages = dict(result["stages"])
    for work in ("gpt2", "llama", "training"):
        ours, theirs = stages.pop(work, {}), stages.pop(f"{work} by torch", {})
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            pair = [each.get(name, "") for each in (ours, theirs)]
            known = all(isinstance(value, float) for value in pair) and pair[1]
            ratio = f"{pair[0] / pair[1]:.2f}" if known else ""
            shown = [f"{value:.4g}" if isinstance(value, float) else value for value in pair]
            lines.append(f"| {work}: {name} | {shown[0]} | {shown[1]} | {ratio} |")
    lines += ["", *(f"- {name}: {json.dumps(each)}" for name, each in stages.items())]
    return "\n".join(lines) + "\n"


# The stages.


def about_device(options: argparse.Namespace) -> dict[str, Any]:
    """Return the name of the device, and versions."""
    import jax  # noqa: PLC0415 - each stage imports its own library only
    import torch  # noqa: PLC0415

    jax.config.update("jax_platforms", platform(options))
    try:
        device = jax.devices()[0]
    except (RuntimeError, AssertionError):  # with and without a library for it
        sys.exit(f"JAX has none of the platform {platform(options)}: pip install 'jax[cuda13]'")
    versions = {"jax": jax.__version__, "torch": torch.__version__}
    return {"name": device.device_kind, "platform": device.platform, **versions}


def platform(options: argparse.Namespace) -> str:
    """Return JAX's name of the platform."""
    kind = options.device.partition(":")[0]
    return "cuda" if kind == "gpu" else kind


def conformance(level: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Return the stage that runs a level of the kit and counts what failed."""

    def stage(options: argparse.Namespace) -> dict[str, Any]:
        sample = ["--sample", "60"] if options.size == "tiny" else []
        command = [sys.executable, "-m", "gptrs", "conformance", "run", "--backend", "jax"]
        command += ["--level", level, "--claimed", "--json", "--jobs", str(os.cpu_count())]
        environment = {**os.environ, "GPTRS_JAX_PLATFORM": platform(options)}
        done = subprocess.run(
            [*command, *sample], capture_output=True, text=True, env=environment, check=False
        )
        if not done.stdout:
            raise SystemExit(done.stderr)
        report = json.loads(done.stdout)
        return {name: value for name, value in report.items() if isinstance(value, (int, float))}

    return stage


def folder(options: argparse.Namespace, kind: str) -> Path:
    """Return the folder of a model, made at first."""
    size, save = MODELS[kind]
    found = options.work / kind
    chosen = size if options.size == "whole" else "tiny"
    return found if found.exists() else save(found, chosen)


def best(call: Callable[[], object]) -> float:
    """Return the least seconds of some runs after the first, which compiles."""
    call()
    times: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def rates(generate: Callable[[int, int, int], object]) -> Figures:
    """Return tokens per second of `generate(texts, prompt, new)`: prefill, decode, and a batch.

    The time of one new token is that of the prompt.
    """
    first = best(lambda: generate(1, PROMPT, 1))
    whole = best(lambda: generate(1, PROMPT, NEW + 1))
    batch = best(lambda: generate(TEXTS, 16, 1))
    texts = best(lambda: generate(TEXTS, 16, NEW + 1))
    return {
        f"prefill of {PROMPT}, tokens/s": PROMPT / first,
        "decode, tokens/s": NEW / (whole - first),
        f"decode of {TEXTS} texts, tokens/s": NEW * TEXTS / (texts - batch),
    }


def prompts(texts: int, length: int) -> list[list[int]]:
    """Return prompts that no run has read before, so that no cache has them."""
    tokens = np.random.default_rng(time.perf_counter_ns()).integers(5, 450, (texts, length))
    return tokens.tolist()


def ours(kind: str) -> Callable[[argparse.Namespace], Figures]:
    """Return the stage that measures gptrs on a model."""

    def stage(options: argparse.Namespace) -> Figures:
        import gptrs  # noqa: PLC0415

        backend = gptrs.get_backend("jax", device=options.device)
        precision = None if platform(options) == "cpu" else "bf16"  # XLA's CPU has f32 alone
        model = gptrs.load_model(folder(options, kind), backend=backend, precision=precision)
        fields: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}

        def generate(texts: int, length: int, new: int) -> object:
            given = prompts(texts, length)
            return gptrs.generate_batch(model, given, batch_size=texts, max_tokens=new, **fields)

        return {**rates(generate), **memory()}

    return stage


def memory() -> Figures:
    """Return the most memory that JAX has held on the device, if it says so."""
    import jax  # noqa: PLC0415

    known = jax.devices()[0].memory_stats() or {}
    return {"most memory, GB": known["peak_bytes_in_use"] / 1e9} if known else {}


def torch_device(options: argparse.Namespace) -> str:
    """Return torch's name of the device."""
    return options.device.replace("gpu", "cuda")


def torch_memory(device: str) -> Figures:
    """Return the most memory that torch has held on a GPU."""
    import torch  # noqa: PLC0415

    on_gpu = device.startswith("cuda")
    return {"most memory, GB": torch.cuda.max_memory_allocated() / 1e9} if on_gpu else {}


def theirs(kind: str) -> Callable[[argparse.Namespace], Figures]:
    """Return the stage that measures transformers under torch.compile, with a static cache."""

    def stage(options: argparse.Namespace) -> Figures:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        device = torch_device(options)
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        model = load(folder(options, kind), dtype=torch.bfloat16).to(device).eval()
        model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

        def generate(texts: int, length: int, new: int) -> object:
            given = torch.tensor(prompts(texts, length), device=device)
            made = model.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False,
                max_new_tokens=new, min_new_tokens=new, cache_implementation="static",
            )  # fmt: skip
            return made.cpu()

        with torch.inference_mode():
            return {**rates(generate), **torch_memory(device)}

    return stage


def trained(options: argparse.Namespace) -> Figures:
    """Return the tokens per second of `gptrs train` on GPT-2."""
    rows, length, updates = TRAINED
    data = options.work / "train.bin"
    np.random.default_rng(0).integers(0, 450, 1 << 20).astype("<u2").tofile(data)
    command = [sys.executable, "-m", "gptrs", "train", str(folder(options, "gpt2")), "--data"]
    command += [str(data), "--out", str(options.work / "trained"), "--steps", str(updates)]
    command += ["--batch", str(rows), "--length", str(length), "--json"]
    command += [] if platform(options) == "cpu" else ["--precision", "bf16"]
    command += ["--backend", "jax", "--eval-every", str(updates)]
    environment = {**os.environ, "GPTRS_JAX_PLATFORM": platform(options)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = [json.loads(line) for line in (options.work / "trained" / "metrics.jsonl").open()]
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    return {"update, tokens/s": rows * length / float(min(np.diff(seconds)))}


def torch_trained(options: argparse.Namespace) -> Figures:
    """Return the tokens per second of updates by torch: compiled, bf16 autocast, fused AdamW."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    rows, length, updates = TRAINED
    device = torch_device(options)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder(options, "gpt2")).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = torch.compile(lambda tokens: model(input_ids=tokens, labels=tokens).loss)
    times: list[float] = []
    for _ in range(updates):
        tokens = torch.tensor(prompts(rows, length), device=device)
        started = time.perf_counter()
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # waits for the device
        times.append(time.perf_counter() - started)
    return {"update, tokens/s": rows * length / min(times), **torch_memory(device)}


STAGES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "device": about_device,
    "smoke": conformance("smoke"),
    "gpt2": ours("gpt2"),
    "gpt2 by torch": theirs("gpt2"),
    "llama": ours("llama"),
    "llama by torch": theirs("llama"),
    "training": trained,
    "training by torch": torch_trained,
    "core": conformance("core"),
}
"""In the order of their worth: the last ones are left out if the time runs short."""

if __name__ == "__main__":
    raise SystemExit(main())
