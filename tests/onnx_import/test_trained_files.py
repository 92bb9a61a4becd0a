"""Trained files out of packages: right, and nothing is made again for sizes that come later."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same files")

import gptrs_onnx  # noqa: E402
from gptrs_backend_numba.lowering.amx_matmul import is_wanted  # noqa: E402
from gptrs_onnx.conversion import Conversion  # noqa: E402

Arrays = Mapping[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def voice(batch: int, rate: int) -> Arrays:
    return {
        "input": floats(batch, 576 if rate == 16000 else 288),
        "state": floats(2, batch, 128),
        "sr": np.array(rate),
    }


def frames(count: int) -> Arrays:
    return {"input": floats(count, 576), "h": floats(1, 1, 128), "c": floats(1, 1, 128)}


def image(height: int, width: int) -> Arrays:
    return {"x": floats(1, 3, height, width)}


OCR = "rapidocr_onnxruntime/models/ch_"
# A package, its file, the calls, and the most conversions of all of them.
FILES: dict[str, tuple[str, str, list[Arrays], int]] = {
    "a voice detector with a branch for each rate": (
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad.onnx",
        [voice(1, 16000), voice(1, 8000), voice(2, 16000), voice(2, 8000), voice(5, 16000)],
        8,
    ),
    "a voice detector of many frames": (
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        [frames(3), frames(5), frames(4), frames(9)],
        1,
    ),
    "lines of text": (
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}PP-OCRv4_rec_infer.onnx",
        [image(48, width) for width in (64, 80, 121, 97)],
        2,
    ),
    "text in images": (
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}PP-OCRv4_det_infer.onnx",
        [image(*size) for size in ((64, 96), (96, 64), (32, 128), (160, 96))],
        4,
    ),
    "objects in images": (
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        [{"images": floats(1, 3, *size)} for size in ((64, 96), (96, 64), (32, 128), (160, 96))],
        3,
    ),
}
LARGE = ("text in images", "lines of text", "objects in images")
"""Files that take seconds where no kernel has been compiled."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that downloads a package, and gives the folder of its files."""
    folders: dict[str, Path] = {}

    def folder_of(package: str) -> Path:
        if package not in folders:
            folder = tmp_path_factory.mktemp("package")
            command = ["-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:"]
            found = subprocess.run(
                [sys.executable, *command, "--retries", "0", "--dest", str(folder), package],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if found.returncode:
                pytest.skip(f"no index gives {package}: {found.stderr.strip()[-200:]}")
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            folders[package] = folder
        return folders[package]

    return folder_of


def compared(name: str, folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all calls twice; AssertionError for what differs or is converted too often."""
    _, file, calls, most = FILES[name]
    count = 0
    begin = Conversion.__init__

    def counted(self: Conversion, *arguments: Any) -> None:
        nonlocal count
        count += 1
        begin(self, *arguments)

    monkeypatch.setattr(Conversion, "__init__", counted)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(str(folder / file), options)
    model = gptrs_onnx.load(folder / file, backend)
    for arrays in [*calls, *calls]:
        for found, right in zip(model(**arrays).values(), peer.run(None, arrays), strict=True):
            assert found.shape == right.shape
            worst = np.abs(found - right).max() / np.abs(right).max()
            # Scores near 0 are sigmoids of large numbers: the last bits of these show in them.
            # Noise as an image of text: 1.05e-5 by AVX2's order of sums, 0.3e-5 by that of ref.
            assert worst <= 2e-5 or np.abs(found - right).max() <= 1e-6
    # Products of few rows and of many have kernels of their own on AMX.
    assert count <= most + is_wanted()


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [name for name in FILES if name not in LARGE])
def test_files_compute_what_onnx_runtime_does(
    name: str, unpacked: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(name, unpacked(FILES[name][0]), "numba", monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE)
def test_large_files_compute_what_onnx_runtime_does(
    name: str, unpacked: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(name, unpacked(FILES[name][0]), "numba", monkeypatch)
