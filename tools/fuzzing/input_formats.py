"""Files that are no models: prompts, entry points, images, templates, and our own caches."""

from __future__ import annotations

import importlib.metadata
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fuzzing import byte_mutations
from fuzzing.file_formats import FileFormat
from gptrs.backend.contract import Backend
from gptrs.capture.caching.optimized_programs import OptimizedPrograms
from gptrs.disk_cache import DamagedEntryError
from gptrs.errors import CheckpointError
from gptrs.ir.parser import parse_program
from gptrs.optimizer.split import Split
from gptrs.plugins.entry_points import installed_in
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs_backend_numba.codegen.kernel_store import KERNELS
from gptrs_backend_numba.kept_weights.weight_file import (
    UnusableFileError,
    map_weight,
    write_weight,
)
from gptrs_cli.generate.prompt_lines import prompt_parts
from gptrs_conformance.program_generator.dice import Dice
from gptrs_runtime.chat.template import ChatTemplate
from gptrs_runtime.images.decoding import read_image

_GROUPS = [point.group for point in EXTENSION_POINTS]
_LINE_WORDS = (
    b"\n", b"\r", b"\0", b"\xff", b"[", b"]", b"=", b"#", b":", b"\xef\xbb\xbf", b"gptrs.backends",
    b"[gptrs.models]\n", b"x = a:b\n", b" ", b"{", b"}", b'"id": 1', b'"prompt": ', b"null",
)  # fmt: skip
_JINJA_WORDS = (
    b"{{", b"}}", b"{%", b"%}", b"''.__class__", b"range(10**9)", b"messages", b"|tojson",
    b"{% for m in messages %}", b"{% endfor %}", b"{{ 'a' * 10**9 }}", b"namespace", b".__init__",
    b"{% set x = x ~ x %}", b"lipsum.__globals__", b"{% include '/etc/passwd' %}", b"cycler", b"**",
)  # fmt: skip
_KERNELS = {"kernel_a": ("1 x86", b"\x90" * 300), "kernel_b": ("1 x86", b"\xc3" * 200)}
_WEIGHT = np.arange(3000, dtype=np.float32)
_others: list[bytes] = []
"""Sound contents of other files of the format that is being tried."""
_names: list[str] = []
"""The names of the files of programs, the one that is tried first."""
_PROGRAM = """ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = tanh %x : f32[2]
  return %0
}
"""


def _mutate_lines(dice: Dice, data: bytes, other: bytes) -> bytes:
    if dice.chance(0.1):
        return data
    return byte_mutations.mutated(dice, data, other, _LINE_WORDS)


def _prepare_prompts(folder: Path, backend: Backend) -> Sequence[bytes]:
    lines = [{"prompt": "the cat"}, {"id": "b", "prompt_ids": [1, 2]}]
    chats = [{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}, {"prompt": "é\n"}]
    return ["\n".join(map(json.dumps, chosen)).encode() for chosen in (lines, chats, lines + chats)]


def _read_prompts(path: Path, dice: Dice) -> None:
    lines = [line for part in prompt_parts(path) for line in part]
    assert len({line.id for line in lines}) == len(lines) > 0


def _prepare_entry_points(folder: Path, backend: Backend) -> Sequence[bytes]:
    info = folder / "x-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: x\nVersion: 1.0\n")
    return [
        b"[gptrs.backends]\nx = x:P\n\n[gptrs.models]\na.b-c = x.y:Z\n",
        b"[console_scripts]\nx = x:main\n[gptrs.commands]\n# caf\xc3\xa9\nx = x.y:C [extra]\n",
    ]


def _read_entry_points(path: Path, dice: Dice) -> None:
    found = importlib.metadata.Distribution.at(path.parent)
    read = installed_in([found], _GROUPS)
    for each in read:
        assert (each.distribution, each.version) == ("x", "1.0")
        if each.error is not None:
            raise CheckpointError(str(each.error)[:200])


def _prepare_images(folder: Path, backend: Backend) -> Sequence[bytes]:
    pixels = np.random.default_rng(1).integers(0, 256, (9, 11, 3), np.uint8)
    contents: list[bytes] = []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, form)
        contents.append(buffer.getvalue())
    return contents


def _mutate_image(dice: Dice, data: bytes, other: bytes) -> bytes:
    if dice.chance(0.5):  # a few bytes, so that some are still images
        changed = bytearray(data)
        changed[dice.below(len(changed))] ^= 1 << dice.below(8)
        return bytes(changed)
    return byte_mutations.mutated(
        dice, data, other, (b"\xff\xff\xff\xff", b"\0\0", b"IDAT", b"IHDR")
    )


def _read_image(path: Path, dice: Dice) -> None:
    pixels = read_image(path)
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3


def _prepare_templates(folder: Path, backend: Backend) -> Sequence[bytes]:
    return [
        b"{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}",
        b"{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
        b"{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
    ]


def _mutate_template(dice: Dice, data: bytes, other: bytes) -> bytes:
    if dice.chance(0.3):
        return data
    return byte_mutations.mutated(dice, data, other, _JINJA_WORDS)


def _read_template(path: Path, dice: Dice) -> None:
    template = ChatTemplate(path.read_bytes().decode("utf-8", "replace"), {"bos_token": "<s>"})
    text = template.render([{"role": "user", "content": "hi"}])
    assert "root:" not in text


def _prepare_kernels(folder: Path, backend: Backend) -> Sequence[bytes]:
    _others[:] = [KERNELS.encode("kernel_b", *_KERNELS["kernel_b"])]
    return [KERNELS.encode("kernel_a", *_KERNELS["kernel_a"])]


def _mutate_own(dice: Dice, data: bytes, other: bytes) -> bytes:
    if dice.chance(0.3):
        return data
    if dice.chance(0.1):
        return dice.pick(_others)
    return byte_mutations.mutated(dice, data, other, (b"\0", b"\xff" * 8, b"gptrs"))


def _read_kernel(path: Path, dice: Dice) -> None:
    try:
        found = KERNELS.decode("kernel_a", path.read_bytes())
    except DamagedEntryError as error:
        raise CheckpointError(str(error)) from error
    assert found == _KERNELS["kernel_a"], "a damaged entry, or that of another kernel, was taken"


def _prepare_programs(folder: Path, backend: Backend) -> Sequence[bytes]:
    folder.chmod(0o700)
    kept = folder / "kept"
    kept.mkdir(mode=0o700)
    for key in ("one", "two"):
        OptimizedPrograms(kept).keep(key, Split(parse_program(_PROGRAM), (0,)), None)
    _names[:] = sorted(path.name for path in kept.iterdir())
    one, two = ((kept / name).read_bytes() for name in _names)
    _others[:] = [two]
    return [one]


def _read_program(path: Path, dice: Dice) -> None:
    kept = path.parent / "kept"
    file = kept / _names[0]
    file.write_bytes(path.read_bytes())
    file.chmod(0o600)
    found = OptimizedPrograms(kept).find("one", None)
    if found is None:
        raise CheckpointError("it counts as absent")
    assert found[1].program.main.name == "main"


def _prepare_weights(folder: Path, backend: Backend) -> Sequence[bytes]:
    for name in ("packed", "other"):
        write_weight(folder / name, _WEIGHT, lambda: False)
    _others[:] = [(folder / "other").read_bytes()]
    return [(folder / "packed").read_bytes()]


def _read_weight(path: Path, dice: Dice) -> None:
    path.chmod(0o600)
    try:
        array, _ = map_weight(path, _WEIGHT.nbytes)
    except UnusableFileError as error:
        raise CheckpointError(str(error)) from error
    assert array.tobytes() == _WEIGHT.tobytes(), "a damaged weight was taken"


OTHER_FORMATS = {
    "prompts": FileFormat("prompts.jsonl", _prepare_prompts, _mutate_lines, _read_prompts),
    "entry-points": FileFormat(
        "x-1.0.dist-info/entry_points.txt", _prepare_entry_points, _mutate_lines, _read_entry_points
    ),
    "image": FileFormat("image", _prepare_images, _mutate_image, _read_image),
    "chat-template": FileFormat(
        "chat_template.jinja",
        _prepare_templates,
        _mutate_template,
        _read_template,
        may=("subprocess.Popen", "open '/dev/null'"),  # the process that renders
    ),
    "kernel": FileFormat("kernel", _prepare_kernels, _mutate_own, _read_kernel),
    "program": FileFormat(
        "program",
        _prepare_programs,
        _mutate_own,
        _read_program,
        may=("pickle.find_class ('gptrs.",),
    ),
    "weights": FileFormat("packed", _prepare_weights, _mutate_own, _read_weight),
}
"""As `FORMATS`; the last three are files that gptrs writes for itself."""
