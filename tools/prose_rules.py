"""Rules for words: links that lead somewhere, and sentences that need not be read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from source_rules import definitions

# How often each phrase may still occur. The numbers may only shrink: the aim is 0.
PHRASES = {
    "it is they that": 0,
    "of which": 0,
    "What is not": 0,
    "whose turn": 0,
    "comes of it": 0,
    "but for": 8,
    "anew": 6,
    "whoever": 3,
    "of ours": 0,
    "in the place of": 2,
    "told of": 4,
    "what is no": 0,
    "as they lie": 2,
    "says what is wrong": 0,
    "errors are those of": 4,
    "Errors are those of": 0,
    "Errors as those of": 0,
    "when it is none": 0,
    "stays it": 0,
    "to be had": 0,
    "nobody but": 0,
    "let go of": 0,
    "told apart": 0,
    "taken apart": 0,
    "begin anew": 1,
    "behind a norm": 0,
    "those of before": 0,
    "is no good": 0,
    "None where": 11,
    "asks for nothing": 0,
    "gone on with": 0,
    "that is asked for": 0,
    "that are asked for": 0,
    "as it must be": 0,
    "has it cut": 0,
    "is no sound": 0,
    "computed of": 10,
    "Go on in": 2,
    "out of a file": 2,
}
OPENINGS = {"What": 0, "As in": 0, "See": 0}
_WRITTEN = frozenset({"packages", "docs", "README.md", "CONTRIBUTING.md"})
# Words of a phrase may stand on two lines, in a comment too.
_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"\s+(#\s+)?"))
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s\"]+)\)")
_NAMED_FILE = re.compile(r"\[`([^`\]]+\.(?:json|md|ptir|py|toml))`\]\(([^)#\s]+)")
"""A link whose text is the name of a file."""
_FENCED = re.compile(r"^```.*?^```", re.S | re.M)


def prose_problems(
    root: Path, files: list[PurePosixPath], trees: Mapping[PurePosixPath, ast.Module]
) -> tuple[list[str], list[str]]:
    """Return the broken rules among `files`, and notes on limits that are higher than need be.

    `trees` are those of the Python files.
    """
    problems, notes = [*dead_links(root, files), *misnamed_links(root, files)], list[str]()
    for name, limit, places in counted_phrases(root, files, trees):
        found = f"{name} stands in {len(places)} places"
        if len(places) > limit:
            advice = "write a short active sentence"
            problems.append(f"{places[-1]}: {found}, {limit} are allowed; {advice}")
        elif len(places) < limit:
            notes.append(f"tools/prose_rules.py: {found}; allow no more")
    return problems, notes


def dead_links(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each relative link of a Markdown file to a file that does not exist."""
    for path in files:
        if path.suffix == ".md":
            text = _FENCED.sub("", (root / path).read_text(encoding="utf-8"))
            for target in _LINK.findall(text):
                name = target.partition("#")[0]
                if name and "://" not in name and not (root / path.parent / name).exists():
                    yield f"{path}: links to `{target}`, which does not exist"


def misnamed_links(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each link of a Markdown file that has the name of another file."""
    for path in files:
        if path.suffix == ".md":
            text = _FENCED.sub("", (root / path).read_text(encoding="utf-8"))
            for name, target in _NAMED_FILE.findall(text):
                if PurePosixPath(name).name != PurePosixPath(target).name:
                    yield f"{path}: the link `{name}` leads to `{target}`"


def counted_phrases(
    root: Path, files: list[PurePosixPath], trees: Mapping[PurePosixPath, ast.Module]
) -> Iterator[tuple[str, int, list[str]]]:
    """Yield each phrase with its limit and the places where it stands."""
    places: dict[str, list[str]] = {phrase: [] for phrase in PHRASES}
    for path in files:
        if path.parts[0] in _WRITTEN and path.suffix in {".py", ".md"}:
            for match in _PHRASE.finditer((root / path).read_text(encoding="utf-8")):
                places[" ".join(match[0].replace("#", " ").split())].append(str(path))
    for phrase, limit in PHRASES.items():
        yield f"`{phrase}`", limit, places[phrase]
    docstrings = [found for path, tree in trees.items() for found in _docstrings(path, tree)]
    for word, limit in OPENINGS.items():
        found = [place for place, text in docstrings if re.match(rf"{word}\b", text)]
        yield f"a docstring that opens with `{word}`", limit, found


def _docstrings(path: PurePosixPath, tree: ast.Module) -> Iterator[tuple[str, str]]:
    if path.parts[0] == "packages":
        for node in definitions(tree):
            if text := ast.get_docstring(node):
                yield f"{path}:{node.body[0].lineno}", text
