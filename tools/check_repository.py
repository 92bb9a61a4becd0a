"""Check the rules of the repository that no other tool knows; exit 1 with one line per problem."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from map_rules import map_problems
from prose_rules import prose_problems
from source_rules import parse, small_modules, source_problems

MAX_LINES = 800
NOTED_LINES = 500
MAX_FILE_BYTES = 1_000_000
MAX_DEMO_BYTES = 8_000_000
DEMO_MODEL = PurePosixPath("packages/gptrs-models/src/gptrs_models/demo")
FORBIDDEN_MODULES = frozenset({"utils", "helpers", "common", "base", "misc"})
# Sources that must work with any plugin, and so may name none, and the groups that plugins enter.
NEUTRAL_SOURCES = (
    PurePosixPath("packages/gptrs-runtime/src/gptrs_runtime"),
    PurePosixPath("packages/gptrs-cli/src/gptrs_cli"),
)
PLUGIN_GROUPS = ("gptrs.backends", "gptrs.models")
# llama.cpp is a program; that file has the names of tokenizers, which kinds share.
FOREIGN_NAMES = ("llama.cpp", "sentence_bert_config.json", "$ref")
NAMES_OF_TOKENIZERS = NEUTRAL_SOURCES[0] / "sources" / "gguf_tokenizer.py"
_PROSE = frozenset({tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)})


def main() -> int:
    """Check the repository that holds this file and return the exit code."""
    root = Path(__file__).resolve().parent.parent
    files = tracked_files(root)
    trees = parse(root, files)
    of_words, notes = prose_problems(root, files, trees)
    for note in (*long_files(root, files, NOTED_LINES), *small_modules(root, trees), *notes):
        print(f"note: {note}")
    of_map = map_problems(root, files)
    problems = sorted((*find_problems(root, files), *source_problems(trees), *of_words, *of_map))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def find_problems(root: Path, files: list[PurePosixPath]) -> list[str]:
    """Return one line for each broken rule among `files`, which are relative to `root`."""
    return [
        *long_files(root, files, MAX_LINES),
        *forbidden_names(files),
        *large_files(root, files),
        *version_mismatches(root, files),
        *license_mismatches(root, files),
        *plugin_names_in_neutral_sources(root, files),
    ]


def tracked_files(root: Path) -> list[PurePosixPath]:
    """Return the files that git tracks, or would track if they were added, without deleted ones."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    paths = sorted({PurePosixPath(name) for name in listing.split("\0") if name})
    return [path for path in paths if (root / path).is_file()]


def long_files(root: Path, files: Iterable[PurePosixPath], limit: int) -> Iterator[str]:
    """Yield a line for each Python file of more than `limit` lines."""
    for path in files:
        if path.suffix == ".py":
            count = len((root / path).read_bytes().splitlines())
            if count > limit:
                yield f"{path}: {count} lines, more than {limit}; split it by subject"


def forbidden_names(files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each module or package whose name does not say what it holds."""
    for path in files:
        if path.suffix == ".py":
            for name in (*path.parent.parts, path.stem):
                if name.strip("_") in FORBIDDEN_MODULES:
                    yield f"{path}: `{name}` does not say what it holds; name it by its subject"


def large_files(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each large file, and for a demo model that is too large in all."""
    demo_bytes = 0
    for path in files:
        size = (root / path).stat().st_size
        if path.is_relative_to(DEMO_MODEL):
            demo_bytes += size
        elif size > MAX_FILE_BYTES:
            yield f"{path}: {size} bytes, more than {MAX_FILE_BYTES}; keep it out of git"
    if demo_bytes > MAX_DEMO_BYTES:
        yield f"{DEMO_MODEL}: {demo_bytes} bytes in all, more than {MAX_DEMO_BYTES}"


def version_mismatches(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each version, or pin of one, that differs from the meta-distribution's."""
    projects = read_projects(root, files)
    meta = projects.pop(PurePosixPath("pyproject.toml"))
    version = meta["version"]
    names = {project["name"] for project in projects.values()}
    wanted = {f"{name}=={version}" for name in names}
    for path, project in projects.items():
        if project["version"] != version:
            yield f"{path}: version {project['version']}, but `gptrs` is {version}"
        for pin in own_pins(project, names) - wanted:
            yield f"{path}: depends on `{pin}`; pin it as `=={version}`"
    for pin in sorted(wanted ^ own_pins(meta, names)):
        state = "is not a dependency" if pin in wanted else f"differs from version {version}"
        yield f"pyproject.toml: `{pin}` {state}"


def own_pins(project: dict, names: set[str]) -> set[str]:
    """Return the requirements of `project`, of its extras too, for distributions of our own."""
    optional = project.get("optional-dependencies", {}).values()
    specs = [*project.get("dependencies", []), *(spec for extra in optional for spec in extra)]
    requirements = [re.sub(r"\[.*?\]", "", spec) for spec in specs]
    return {spec for spec in requirements if re.split(r"[^\w.-]", spec, maxsplit=1)[0] in names}


def license_mismatches(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each package whose copy of the license is missing or differs."""
    text = (root / "LICENSE").read_bytes()
    for path in read_projects(root, files):
        copy = root / path.parent / "LICENSE"
        if not copy.is_file() or copy.read_bytes() != text:
            yield f"{path.parent / 'LICENSE'}: not a copy of the LICENSE of the repository"


def plugin_names_in_neutral_sources(root: Path, files: list[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each backend or model kind that the runtime or the command line spells."""
    names = plugin_names(root, files)
    if not names:
        return
    ours, theirs = ("|".join(map(re.escape, each)) for each in (names, FOREIGN_NAMES))
    word = re.compile(rf"{theirs}|(?<![A-Za-z0-9])({ours})(?![A-Za-z0-9])", re.I)
    for path in files:
        neutral = any(path.is_relative_to(part) for part in NEUTRAL_SOURCES)
        if path.suffix == ".py" and neutral and path != NAMES_OF_TOKENIZERS:
            source = (root / path).read_text(encoding="utf-8")
            for line, text in prose(source):
                for name in filter(None, word.findall(text)):
                    spelled = f"spells the plugin name `{name}`"
                    yield f"{path}:{line}: {spelled}; ask the plugins for it"


WORDS = frozenset({"bit", "clip", "new"})
"""Names of kinds that are plain words."""


def plugin_names(root: Path, files: Iterable[PurePosixPath]) -> list[str]:
    """Return the names that the packages register for backends and model kinds."""
    names: set[str] = set()
    for path, project in read_projects(root, files).items():
        for group in PLUGIN_GROUPS:
            entries = dict(project.get("entry-points", {}).get(group, {}))
            if "*" in entries:  # the names are keys of a table of the module
                module = entries.pop("*").partition(":")[0].replace(".", "/")
                names.update(_keys(root / path.parent / "src" / f"{module}.py"))
            names.update(entries)
    return sorted(names - WORDS)


def _keys(path: Path) -> Iterator[str]:
    """Yield the strings that are keys of dicts in a Python file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string and comment of a Python source.

    Identifiers are left out: a variable `ref` names no backend, and imports have their own check.
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _PROSE:
            for offset, text in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, text


def read_projects(root: Path, files: Iterable[PurePosixPath]) -> dict[PurePosixPath, dict]:
    """Return the `project` table of the root and of each package under `packages/`."""
    return {
        path: tomllib.loads((root / path).read_text(encoding="utf-8"))["project"]
        for path in files
        if path.name == "pyproject.toml" and (len(path.parts) == 1 or path.match("packages/*/*"))
    }


if __name__ == "__main__":
    sys.exit(main())
