"""`python -m gptrs`: the command line, where it is installed."""

from __future__ import annotations

import sys

from gptrs.install_hints import install_own
from gptrs.metadata_library import metadata


def main() -> int:
    """Run the command `gptrs` of whichever distribution has it; return its exit code."""
    found = list(metadata.entry_points(group="console_scripts", name="gptrs"))
    if not found:
        print(
            f"error: the command line is not installed; {install_own('gptrs-cli')}", file=sys.stderr
        )
        return 2
    return int(found[0].load()())


if __name__ == "__main__":
    sys.exit(main())
