"""`walk_recorder.py LIST OUT CODE` runs Python code and writes when it entered functions of a list.

The list has pairs of a file and a name; a name of a constant stands for the import of its file.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType


def recorded(wanted: list[list[str]], code: str) -> list[int]:
    """Run `code` and return the places in `wanted` that it entered, in order, without repeats."""
    places = {
        (path, "<module>" if name.isupper() else name): at for at, (path, name) in enumerate(wanted)
    }
    entered: list[int] = []

    def enter(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called = frame.f_code
            at = places.get((called.co_filename, called.co_qualname))
            if at is not None and entered[-1:] != [at]:
                entered.append(at)

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        exec(compile(code, "<walk>", "exec"), {})
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return entered


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(recorded(rows, sys.argv[3])), encoding="utf-8")
