"""Install the lowest versions of all dependencies into a throw-away environment, and try gptrs.

What installs them comes from pip's own settings. A floor that does not work is to be raised.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from requirement_floors import ROOT, floors

SMOKE = (
    "tests/runtime/test_generate.py",
    "tests/runtime/test_tokenizer_file.py",
    "tests/runtime/test_long_texts.py",
    "tests/runtime/test_images.py",
    "tests/models/test_encoded_sounds.py",
    "tests/runtime/test_chat_template.py",
    "tests/plugins/test_discovery.py",
    "tests/checkpoint/test_safetensors.py",
    "tests/cli/test_help.py",
    "tests/cli/test_list.py",
    "tests/backend_numba/test_gemm.py::test_batches",
)
"""Tests that use each dependency, and need few test tools."""
APART = ("gptrs-backend-jax", "gptrs-torch")
"""Parts whose library asks for newer versions of others than gptrs does, and is large."""
_QUICK = ("-m", "not long", "-p", "no:cacheprovider")
_AS_WARNINGS = ("-o", "filterwarnings=default")
_TOOLS = (
    "pytest>=8.3",
    "hatchling>=1.27",
    "filelock>=3.13",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
)


def main() -> int:
    """Return the exit code of the smoke tests, 1 if the floors cannot be installed together."""
    pins = [f"{name}=={version}" for name, version in floors(without=APART).items()]
    print(f"floors: {', '.join(pins)}", flush=True)
    folders = [path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    packages = [str(folder) for folder in folders if folder.name not in APART]
    with tempfile.TemporaryDirectory(prefix="gptrs-floors-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        editable = [word for package in packages for word in ("--editable", package)]
        steps = (
            [*pip, "install", "--only-binary", ":all:", *pins, *_TOOLS],
            [*pip, "install", "--no-build-isolation", "--no-deps", *editable],
            [python, "-m", "pip", "--disable-pip-version-check", "check"],
            # Old versions warn of newer ones of their own dependencies.
            [python, "-m", "pytest", "-q", *_QUICK, *_AS_WARNINGS, *SMOKE],
        )
        for step in steps:
            code = subprocess.run(step, cwd=ROOT, check=False).returncode
            if code:
                print(f"failed: {' '.join(step[:6])} ...", file=sys.stderr)
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
