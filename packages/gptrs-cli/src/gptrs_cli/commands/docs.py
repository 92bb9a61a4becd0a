"""`gptrs docs`: the documentation of the installed version, on a terminal and in pipes."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from math import log1p
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import UNSET, Struct, UnsetType

from gptrs.errors import PluginError, UsageError
from gptrs.install_hints import install_own
from gptrs.quoting import did_you_mean, quoted
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import is_terminal, note, rich_output
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.results import Result

_FENCE: Final = re.compile(r"^ *```")
_HEADING: Final = re.compile(r"^(#+) (.*)")
_WORD: Final = re.compile(r"[a-z0-9.]*[a-z0-9]")
_ENDING: Final = re.compile(r"(?:ings?|ed|e?(?<!http)s|e|ers?|ions?)$")  # https is not many http
_SHORT: Final = 4
"""Words of at most so many letters have no ending that is left out."""
_MOST_FOUND: Final = 12
_LISTS: Final = (
    *("json", "ptir", "requests", "onnx_operators", "torch_operators", "stablehlo_operations"),
    *("architecture", "how_it_works", "backends/", "words"),
)
"""Lists of names, and pages about the inside: they have every word, and guides come first."""
_LESS: Final = -9.0
SEARCH_WORDS: Final = re.compile(r"^<!-- search: (.*) -->$", re.MULTILINE)
"""Words below the title of a page that people look for, and that its text does not have."""
_COMMENTS: Final = re.compile(r"^<!-- .* -->\n+", re.MULTILINE)
_FLAGS: Final = re.compile(r"^( *```\w+) no-run$", re.MULTILINE)


class DocsPage(Struct, frozen=True):
    """A page, or a part of one, by the name that `gptrs docs` takes."""

    name: str
    title: str
    section: str | UnsetType = UNSET


class Docs(Result, frozen=True, kw_only=True, tag="gptrs.docs/1"):
    """`gptrs docs`: a page with its text, or the pages and sections that were found."""

    pages: list[DocsPage]
    text: str | UnsetType = UNSET


@command_options()
def docs(
    *,
    page: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAGE | WORDS]",
            help="The name of a page, or words to look for in all of them.",
            show_default=False,
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Show the documentation, or look for words in it.

    A terminal shows a page formatted, in the pager of the system; a pipe gets its Markdown.
    """
    pages = {path.relative_to(root).with_suffix("").as_posix(): path for root, path in _files()}
    asked = " ".join(page or ())
    name = asked.removesuffix(".md").replace("-", "_")
    if not asked:
        _list_pages([DocsPage(each, _title(path)) for each, path in pages.items()], settings)
    elif name in pages:
        _show(name, pages[name], settings)
    else:
        _list_pages(_search(asked, pages), settings, asked=asked)


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield the folder of the pages and each page; those of a clone come before installed ones.

    Raises PluginError if neither is there.
    """
    clone = Path(__file__).parents[5]
    installed = importlib.util.find_spec("gptrs_docs")  # a folder of the distribution `gptrs`
    folders = list(installed.submodule_search_locations or ()) if installed else []
    if (clone / "mkdocs.yml").is_file():
        folders.insert(0, str(clone / "docs"))
    if not folders:
        raise PluginError(
            "the documentation comes with the distribution `gptrs`, which is not installed",
            hint=install_own("gptrs"),
        )
    root = Path(folders[0])
    for path in sorted(root.rglob("*.md")):
        yield root, path


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").lstrip("# ").rstrip()


def _list_pages(found: list[DocsPage], settings: Settings, asked: str = "") -> None:
    if settings.json:
        return print_result(Docs(pages=found))
    columns = ["page", "title", "section"] if asked else ["page", "title"]
    rows = [[each.name, each.title, each.section or ""][: len(columns)] for each in found]
    print_table(columns, rows)
    note("`gptrs docs PAGE` shows a page, `gptrs docs WORDS` looks for words")


def _search(asked: str, pages: dict[str, Path]) -> list[DocsPage]:
    """Return the sections for some words, the best first, of the pages that have all of them.

    If none has, of those with the most of them, at least half, and a note says so.
    """
    words = _stems(asked)
    found: dict[int, list[tuple[float, DocsPage]]] = {}
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        title, whole = _title(path), text.lower()
        listed = [_stems(each) for line in SEARCH_WORDS.findall(text) for each in line.split(", ")]
        counts = [_count(word, whole) for word in words]
        had = sum(map(bool, counts))
        if not had or 2 * had < len(words):
            continue
        of_page = _LESS if name.startswith(_LISTS) else 0.0
        of_page += sum(12 * len(each) for each in listed if set(each) <= set(words))
        for word, count in zip(words, counts, strict=True):
            of_page += 8 * bool(_count(word, f"{name} {title}".lower()))
            of_page += log1p(min(count, 50))
        for heading, below in _sections(text):
            score = of_page + sum(log1p(_count(word, below.lower())) for word in words)
            if heading == title:
                score += 4  # the page as a whole
            else:
                score += sum(3 * bool(_count(word, heading.lower())) for word in words)
            if score > of_page:
                section = DocsPage(name, title, "" if heading == title else heading)
                found.setdefault(had, []).append((score, section))
    if not found:
        raise UsageError(
            f"no page is called {quoted(asked)}, and none has these words",
            hint=f"{did_you_mean(asked, pages)}`gptrs docs` lists the pages",
        )
    most = max(found)
    if most < len(words):
        note(f"no page has all of these words; these have {most} of {len(words)}")
    best = sorted(found[most], key=lambda each: -each[0])
    return [page for _, page in best[:_MOST_FOUND]]


def _stems(text: str) -> list[str]:
    """Return the words of a text, the longer ones without their endings."""
    words: list[str] = _WORD.findall(text.lower())
    return [_ENDING.sub("", word) if len(word) > _SHORT else word for word in words]


def _count(stem: str, text: str) -> int:
    """Return how many words of a text in lower case begin with a stem."""
    return len(re.findall(rf"(?<![a-z0-9]){re.escape(stem)}", text))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the headings of a page with the text below each, up to the next one."""
    heading, lines, in_code = "", list[str](), False
    for line in text.splitlines():
        in_code ^= bool(_FENCE.match(line))
        match = None if in_code else _HEADING.match(line)
        if match is None:
            lines.append(line)
            continue
        if heading:
            yield heading, "\n".join(lines)
        heading, lines = match[2], []
    yield heading, "\n".join(lines)


def _show(name: str, path: Path, settings: Settings) -> None:
    # Comments and flags are for the search and the tests of the pages, not for readers.
    text = _FLAGS.sub(r"\1", _COMMENTS.sub("", path.read_text(encoding="utf-8")))
    if settings.json:
        print_result(Docs(pages=[DocsPage(name, _title(path))], text=text))
    elif is_terminal(sys.stdout):
        rich_output().page_markdown(text)
    else:
        sys.stdout.write(text)
