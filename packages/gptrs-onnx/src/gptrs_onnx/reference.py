"""Outputs of a file as ONNX Runtime computes them, for `gptrs validate`, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.importers import clipped
from gptrs_onnx.search import shown


def runtime(path: Path) -> tuple[str, Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]]:
    """Return the name of ONNX Runtime, and what runs the file with it on its CPU.

    UnsupportedError where it is not installed; ModelError, also of the function, for what it
    refuses.
    """
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        raise UnsupportedError(
            "ONNX Runtime, which an ONNX file is compared with, is not installed",
            hint="`pip install onnxruntime`, or name another reference with --against",
        ) from None
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session: Any = _done(
        path,
        lambda: onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        ),
    )
    names = [each.name for each in session.get_outputs()]

    def run(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = _done(path, lambda: session.run(None, dict(arrays)))
        return {name: np.asarray(each) for name, each in zip(names, found, strict=True)}

    return f"ONNX Runtime {onnxruntime.__version__}", run


def _done(path: Path, work: Callable[[], Any]) -> Any:
    """Return what `work` does; ModelError for an error of ONNX Runtime, which has its own types."""
    try:
        return work()
    except Exception as error:
        # The reason comes last, after the path of the file.
        why = clipped(str(error), 400)
        raise ModelError(f"ONNX Runtime refuses `{shown(path)}`: {why}") from error
