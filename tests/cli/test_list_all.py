"""`gptrs list models --all`: kinds that are refused stand below those that run."""

from __future__ import annotations

from gptrs.plugins.manager import manager


def test_the_list_of_all_shows_both(gptrs):
    fields = gptrs("list", "models", "--all", "--json").json
    refused = {each["name"]: each["nearest"] for each in fields["refused"]}
    assert refused == manager().relatives()
    assert "refused" not in gptrs("list", "models", "--json").json
    lines = gptrs("list", "models", "--all").out.splitlines()
    (line,) = (line for line in lines if line.startswith("flaubert "))
    assert "refused" in line
    assert line.endswith("not supported; nearest is bert")
