"""The container file of docs/deployment.md: known instructions, a command that `serve` takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gptrs_cli.command_group import command_of
from gptrs_serve.command import serve

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
PLAIN = {"FROM", "COPY", "RUN", "USER", "ENV", "EXPOSE"}
LISTS = {"VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def test_the_container_file_starts_a_server_that_there_is():
    (block,) = re.findall(r"```dockerfile\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line.split(" ", 1) for line in block.splitlines()]
    assert lines[0][0] == "FROM"
    assert {name for name, _ in lines} <= PLAIN | LISTS
    lists = {name: json.loads(text.removeprefix("CMD ")) for name, text in lines if name in LISTS}
    gptrs, name, *words = [*lists["ENTRYPOINT"], *lists["CMD"]]
    assert (gptrs, name) == ("gptrs", "serve")
    context = command_of(serve, "serve").make_context("serve", words)
    assert (context.params["host"], context.params["port"]) == ("0.0.0.0", 8000)
    compile(lists["HEALTHCHECK"][2], "healthcheck", "exec")
