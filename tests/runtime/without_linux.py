"""Run gptrs in a process in which the calls, constants and files that only Linux has are missing.

It is no Mac: the C library stays that of Linux. What is looked for by name, or by the name of the
system, is as it is there.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import mmap
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import pytest

LINUX_ONLY = {
    os: (
        "sched_getaffinity sched_setaffinity memfd_create copy_file_range posix_fadvise"
        " posix_fallocate eventfd pidfd_open getrandom O_TMPFILE O_DIRECT O_PATH"
    ),
    mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_POPULATE_READ MAP_POPULATE MADV_REMOVE",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS",
}
_open, _io_open, _os_open, _find = builtins.open, io.open, os.open, ctypes.CDLL.__getattr__


def refuse_system_files(path: Any) -> None:
    """FileNotFoundError for files that Linux makes up."""
    if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))


def opened(path: Any, *rest: Any, **more: Any) -> Any:
    refuse_system_files(path)
    return _io_open(path, *rest, **more)


def os_opened(path: Any, *rest: Any, **more: Any) -> int:
    refuse_system_files(path)
    return _os_open(path, *rest, **more)


def found(library: ctypes.CDLL, name: str) -> Any:
    if name in ("renameat2", "mallopt", "sched_getcpu"):
        raise AttributeError(name)
    return _find(library, name)


def leave_linux() -> None:
    """Take away what other systems do not have."""
    for looks_at_the_system in (numba, llvmlite.binding):
        assert looks_at_the_system.__name__ in sys.modules
    for module, names in LINUX_ONLY.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    setattr(tempfile, "_O_TMPFILE_WORKS", False)  # noqa: B010 (private, found at its import)
    platform.system = lambda: "Darwin"
    builtins.open = io.open = opened
    os.open = os_opened
    setattr(ctypes.CDLL, "__getattr__", found)  # noqa: B010 (its type is that of a method)


def products_on_two_threads() -> None:
    """Products are right, and workers that have nothing to do sleep."""
    import gptrs

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, np.float32) for shape in ((256, 512), (512, 768)))
    expected = np.einsum("ik,kj->ij", x, y)  # `@` has threads of its own, which wait awake
    with gptrs.use_backend(gptrs.get_backend("numba", 2)):
        for _ in range(3):
            result = (gptrs.tensor(x) @ gptrs.tensor(y)).numpy()
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.25, "idle workers keep a processor busy"


def text_and_files(folder: Path) -> None:
    """A model is loaded, continued, written anew and exchanged for another."""
    import gptrs
    from gptrs.errors import GptrsError
    from gptrs.plugins.manager import manager
    from gptrs_runtime.converting.convert import convert

    model = gptrs.load_model(backend="ref")
    greedy = gptrs.generate(model, "import os\n", max_tokens=2, temperature=0)
    assert len(greedy.token_ids) == 2
    convert(str(manager().demo_model_path()), str(folder / "model"), dtype="f32")
    with pytest.raises(GptrsError, match="remove the old one first"):
        convert(str(manager().demo_model_path()), str(folder / "model"), force=True)
    again = gptrs.load_model(str(folder / "model"), backend="ref")
    assert again.forward(np.array([[1, 2]])).shape == model.forward(np.array([[1, 2]])).shape


if __name__ == "__main__":
    leave_linux()
    products_on_two_threads()
    text_and_files(Path(sys.argv[1]))
    print("all of it works")
