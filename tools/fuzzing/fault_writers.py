"""The writers of files that faults are tried on, and the work of the processes that are killed."""

from __future__ import annotations

import json
import re
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from gptrs.capture.caching.optimized_programs import KeptCapture, OptimizedPrograms
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.errors import GptrsError
from gptrs.ir.parser import parse_program
from gptrs.ir.printer import print_program
from gptrs.optimizer.split import Split
from gptrs_backend_numba.codegen.kernel_store import KernelStore
from gptrs_backend_numba.kept_weights.weight_file import map_weight, write_weight
from gptrs_cli.generate.batch import ResultLines
from gptrs_observe.profile import Profile
from gptrs_observe.profile_files import write_profile
from gptrs_observe.timeline import Interval
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.quantize import quantize
from gptrs_runtime.sources.find_model import find_model

SIZE = 1 << 18
DEADLY_LIMIT = 1 << 17
_WIDTH = 192
_WORK = r"work \d+ of profile \d"
_DENSE = ("attention.output", "intermediate", "output")
_PROGRAM = "ptir.v0.5\nfunc @main(%x: f32[{n}]) -> f32[{n}] {{\n  return %x\n}}\n"


@dataclass(frozen=True)
class Writer:
    """`write` makes content 0 or 1 in a folder; `read` says which is there, None for nothing.

    `read` raises for anything else. `may_give_up`: a write that fails is no error. `seconds` is
    about how long a write takes.
    """

    write: Callable[[Path, int], None]
    read: Callable[[Path], int | None]
    may_give_up: bool = False
    seconds: float = 0.01


def _arrays(number: int) -> dict[str, np.ndarray]:
    return {"a": np.full(SIZE, number, np.uint8)}


def _which(values: np.ndarray) -> int:
    assert values.shape == (SIZE,)
    assert values.min() == values.max(), "a torn file"
    return int(values[0])


def _archive(suffix: str) -> Writer:
    def read(folder: Path) -> int | None:
        path = folder / f"x{suffix}"
        if not path.exists():
            return None
        archive = open_archive(path)
        try:
            return _which(np.array(archive.read("a")))
        finally:
            archive.close()

    return Writer(lambda folder, n: write_archive(folder / f"x{suffix}", _arrays(n)), read)


def _write_kernel(folder: Path, number: int) -> None:
    if not KernelStore(folder, "1", 1 << 30).save("kernel", bytes([number]) * SIZE):
        raise OSError("the kernel was not kept")


def _read_kernel(folder: Path) -> int | None:
    body = KernelStore(folder, "1", 1 << 30).load("kernel")
    if body is None:
        assert not (folder / "kernel").exists(), "a damaged entry"
        return None
    return _which(np.frombuffer(body, np.uint8))


def _write_weight(folder: Path, number: int) -> None:
    write_weight(folder / "weight", _arrays(number)["a"], lambda: False)


def _read_weight(folder: Path) -> int | None:
    if not (folder / "weight").exists():
        return None
    return _which(map_weight(folder / "weight", SIZE)[0])


def _write_program(folder: Path, number: int) -> None:
    text = _PROGRAM.format(n=number + 1)
    OptimizedPrograms(folder).keep("key", Split(parse_program(text), (0,)), None)


def _read_program(folder: Path) -> int | None:
    found = OptimizedPrograms(folder).find("key", None)
    if found is None:
        assert not list(folder.glob("key*")), "a torn file"
        return None
    return [print_program(parse_program(_PROGRAM.format(n=n + 1))) for n in (0, 1)].index(
        print_program(found[1].program)
    )


def _write_capture(folder: Path, number: int) -> None:
    programs, text = OptimizedPrograms(folder), _PROGRAM.format(n=1)
    name = programs.keep("optimized", Split(parse_program(text), (0,)), None)
    if name is not None:
        programs.keep_capture("key", KeptCapture(name, (), (number,), None, (), (), ()))


def _read_capture(folder: Path) -> int | None:
    found = OptimizedPrograms(folder).find_capture("key", None, lambda _: True)
    if found is None:
        return None
    assert print_program(found[1].program) == print_program(parse_program(_PROGRAM.format(n=1)))
    return found[0].bound[0]


def _write_quantized(folder: Path, number: int) -> None:
    quantize(_model(folder, number), folder / "quantized", "int8", rounding="nearest", force=True)


def _read_quantized(folder: Path) -> int | None:
    if not (folder / "quantized").exists():
        return None
    weights = find_model(folder / "quantized").weights
    found = [np.rint(weights.load(name)) for name in weights.names()]
    assert len(found) == len(_shapes())
    (number,) = {int(value) for array in found for value in (array.min(), array.max())}
    return number - 1


def _write_gguf(folder: Path, number: int) -> None:
    quantize("demo", folder / "x.gguf", ("q8", "q4")[number], rounding="nearest", force=True)


def _read_gguf(folder: Path) -> int | None:
    if not (folder / "x.gguf").exists():
        return None
    weights = find_model(folder / "x.gguf").weights
    assert all(np.isfinite(weights.load(name)).all() for name in weights.names())
    tags = {weights.locate(name)[1].tag for name in weights.names()}
    return int("Q4_0" in tags)


def _write_profile(folder: Path, number: int) -> None:
    profile = Profile()
    for work in range(2000):
        name = f"work {work} of profile {number} {'x' * 100}"
        profile.timeline.add(Interval("kernel", name, "", float(work), 0.5, 0))
    write_profile(profile, folder)


def _read_profile(folder: Path) -> int | None:
    for path in folder.glob("report.html"):
        assert path.read_bytes().endswith(b"</html>\n"), "a torn file"
    whole = {path.name: json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    if "trace.json" not in whole:
        return None
    (number,) = {int(name.split()[4]) for name in re.findall(_WORK, str(whole["trace.json"]))}
    return number


def _model(folder: Path, number: int) -> Path:
    """Return a BERT of one layer, all of whose weights are `number` + 1."""
    model = folder / f"bert{number}"
    if not (model / "model.safetensors").exists():
        model.mkdir(exist_ok=True)
        config = {
            "model_type": "bert", "vocab_size": 8, "hidden_size": _WIDTH, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": _WIDTH, "max_position_embeddings": 4,
        }  # fmt: skip
        (model / "config.json").write_text(json.dumps(config))
        arrays = {n: np.full(shape, number + 1, np.float32) for n, shape in _shapes().items()}
        write_archive(model / "model.safetensors", arrays)
    return model


def _shapes() -> dict[str, tuple[int, ...]]:
    layer = "encoder.layer.0"
    attention = [f"{layer}.attention.{each}" for each in ("self.query", "self.key", "self.value")]
    products = [*attention, *(f"{layer}.{each}.dense" for each in _DENSE)]
    norms = ["embeddings", f"{layer}.attention.output", f"{layer}.output"]
    tables = {"word_embeddings": 8, "position_embeddings": 4, "token_type_embeddings": 2}
    return {
        **{f"embeddings.{name}.weight": (rows, _WIDTH) for name, rows in tables.items()},
        **{f"{name}.weight": (_WIDTH, _WIDTH) for name in products},
        **{f"{name}.bias": (_WIDTH,) for name in products},
        **{f"{name}.LayerNorm.{end}": (_WIDTH,) for name in norms for end in ("weight", "bias")},
    }


def _write_checkpoint(folder: Path, number: int) -> None:
    model = folder / f"model{number}"
    if not (model / "model.safetensors").exists():
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text('{"model_type": "tiny"}')
        write_archive(model / "model.safetensors", _arrays(number))
    convert(model, folder / "x.gptrschk", force=True)


def _read_checkpoint(folder: Path) -> int | None:
    if not (folder / "x.gptrschk").exists():
        return None
    return _which(np.array(find_model(folder / "x.gptrschk").weights.load("a")))


def _write_result(folder: Path, number: int) -> None:
    with ResultLines(folder / "results", "model") as lines:
        lines.write({"id": number, "text": str(number) * SIZE, "model": "model"})


def _read_result(folder: Path) -> int | None:
    with ResultLines(folder / "results", "model"):  # a run that goes on
        found = (folder / "results").read_bytes().splitlines()
    if not found:
        return None
    return _which(np.frombuffer(json.loads(found[-1])["text"].encode(), np.uint8) - ord("0"))


WRITERS: Mapping[str, Writer] = {
    "safetensors": _archive(".safetensors"),
    "gptrsten": _archive(".gptrsten"),
    "npz": _archive(".npz"),
    "kernel": Writer(_write_kernel, _read_kernel),
    "weight": Writer(_write_weight, _read_weight),
    "checkpoint": Writer(_write_checkpoint, _read_checkpoint),
    "results": Writer(_write_result, _read_result),
    "program": Writer(_write_program, _read_program, may_give_up=True),
    "capture": Writer(_write_capture, _read_capture, may_give_up=True),
    "quantized": Writer(_write_quantized, _read_quantized, seconds=0.15),
    "gguf": Writer(_write_gguf, _read_gguf, seconds=0.4),
    "profile": Writer(_write_profile, _read_profile, seconds=0.3),
}


def write_for_ever(name: str, folder: Path, started: Event) -> None:
    """Write two contents in turns, and say when that begins."""
    number = 0
    started.set()
    while True:
        number = 1 - number
        WRITERS[name].write(folder, number)


def write_within(name: str, folder: Path, limit: int) -> None:
    """Write content 1 to a disk that takes `limit` bytes of a file; exits with 3 on an error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        WRITERS[name].write(folder, 1)
    except (GptrsError, OSError):
        raise SystemExit(3) from None
