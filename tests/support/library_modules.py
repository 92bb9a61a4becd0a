"""The Python modules of compiled libraries, imported from their wheels."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

from gptrs_runtime.libraries.write import CompiledLibrary


def module_of(made: CompiledLibrary, folder: Path) -> ModuleType:
    """Return the module of a library's wheel, which is unpacked into `folder`."""
    (wheel,) = (path for path in made.files if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    name = made.manifest.name
    spec = importlib.util.spec_from_file_location(name, folder / name / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
