"""The recipe for a new kind of model, followed in a copy of the package: a module and a row."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import doc_examples
from gptrs.plugins.capabilities import PROTOCOLS, members_of
from plugins.attention_only_model import greedy_tokens, save_attention_only

ROOT = Path(doc_examples.__file__).parents[1]
RECIPE = ROOT / "docs" / "recipes" / "add_a_model_kind.md"
EXAMPLE = ROOT / "tests" / "plugins" / "attention_only" / "attention_only.py"
PIECE = re.compile(r"```python no-run\n +# (?P<path>\S+)\n(?P<code>.*?)```", re.DOTALL)
MODULE = re.compile(r"\*\*`(?P<path>packages/\S+\.py)`\*\*, the module without the description")
DESCRIPTION = re.compile(r"\nPLUGIN = ModelPlugin\(.*?\n\)\n", re.DOTALL)
TABLE = "\nKINDS: tuple[Family, ...] = (\n"


def pieces() -> dict[str, str]:
    """The code of the recipe by the file that it belongs to."""
    found = PIECE.finditer(RECIPE.read_text(encoding="utf-8"))
    return {match["path"]: re.sub(r"(?m)^   ", "", match["code"]).rstrip() for match in found}


def follow(root: Path) -> Path:
    """Copy the package to `root` and add the kind; returns the folder of the package."""
    package = Path("packages/gptrs-models")
    ignored = shutil.ignore_patterns("__pycache__", "demo")
    shutil.copytree(ROOT / package, root / package, ignore=ignored)
    ((path, row),) = pieces().items()
    text = (root / path).read_text(encoding="utf-8")
    assert text.count(TABLE) == 1
    (root / path).write_text(text.replace(TABLE, f"{TABLE}{row}\n"), encoding="utf-8")
    module = MODULE.search(RECIPE.read_text(encoding="utf-8"))
    assert module is not None
    source, removed = DESCRIPTION.subn("", EXAMPLE.read_text(encoding="utf-8"))
    assert removed == 1
    source = source.replace("PLUGIN.name", '"attention_only"')
    (root / module["path"]).write_text(source, encoding="utf-8")
    return root / package


def test_capabilities_are_listed_with_all_their_members() -> None:
    rows = re.findall(r"^   \| `(\w+)` \|.*\| ([^|]+) \|$", RECIPE.read_text("utf-8"), re.MULTILINE)
    found = {name: set(re.findall(r"`(\w+)`", members)) for name, members in rows}
    assert found == {name: {*members_of(protocol)} for name, protocol in PROTOCOLS.items()}


def test_the_recipe_works(tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *offline, str(follow(tmp_path))], check=True, timeout=300)
    model = save_attention_only(tmp_path / "small")
    asked = ["generate", "--model", str(model), "--prompt-ids", "4,9,2", "--max-tokens", "5"]
    run = subprocess.run(
        [sys.executable, "-m", "gptrs_cli", *asked, "--greedy", "--json", "--backend", "ref"],
        env={**os.environ, "PYTHONPATH": f"{target}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["token_ids"] == greedy_tokens(model, [4, 9, 2], 5)
