"""What MkDocs asks while it builds the site: pages, links, the dialect of Markdown, the search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs_site import api_reference, command_reference
from docs_site.markdown_dialect import for_python_markdown
from docs_site.notebook_outputs import with_outputs
from docs_site.search_check import mend_worker, node, wrong_answers
from docs_site.search_queries import FIRST
from docs_site.site_links import PAGES, relinked
from gptrs_cli.commands.docs import SEARCH_WORDS

_LOG = get_plugin_logger("search")
ROOT = Path(__file__).resolve().parents[2]
# Lists of names have every word that people search for many times over: guides come first.
_LISTS = (
    *("reference/", "project/", "requests.md", "json.md", "ptir.md"),
    *("onnx_operators.md", "torch_operators.md", "stablehlo_operations.md"),
)


def on_config(config: Any) -> None:
    """Add pages that the navigation does not name at its end, so that none is lost."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = (path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))
    left = sorted(page for page in pages if f" {page}\n" not in listed)
    if left:
        config.nav.append({"More": left})


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere in the repository, and those made from the code."""
    made = {PAGES[name]: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
    made |= {"reference/commands.md": command_reference.page()}
    made |= api_reference.pages()
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links that hold on the site, in the dialect that MkDocs reads."""
    if page.file.src_uri.startswith(_LISTS):
        page.meta["search"] = {"boost": 0.01}
    if page.file.src_uri == "notebooks.md":
        markdown = with_outputs(markdown, ROOT / "docs" / "assets" / "notebooks.ipynb")
    words = " ".join(SEARCH_WORDS.findall(markdown)).replace(",", " ")
    page.meta["tags"] = sorted({*words.split()})
    return for_python_markdown(relinked(markdown, page.file.src_uri, ROOT))


@event_priority(-100)  # after the plugin that writes the index
def on_post_build(config: Any) -> None:
    """Stop the build if a query that people type does not find the right page first."""
    if not mend_worker(Path(config.site_dir)):
        _LOG.warning("the search of this theme is another one: is `mend_worker` still needed?")
    program = node()
    if program is None:
        return _LOG.info("node is not installed: the answers of the search are not checked")
    wrong = wrong_answers(Path(config.site_dir), program, FIRST)
    if wrong:
        lines = (f"`{query}` finds {found}, not {page}" for query, page, found in wrong)
        raise PluginError("\n".join(["the search finds other pages first:", *lines]))
