"""`gptrs list`: tables for people, JSON for scripts, reasons for what does not work."""

from __future__ import annotations

import pytest

RECORD = {
    *("name", "kind", "distribution", "version", "api", "state", "reason", "hint"),
    *("entry_point", "summary"),
}


def by_name(records: list[dict]) -> dict[str, dict]:
    return {record["name"]: record for record in records}


def test_plugins_as_json_are_the_contract(gptrs):
    records = gptrs("list", "plugins", "--json").json["plugins"]
    assert all(record.keys() == RECORD for record in records)
    found = {(r["kind"], r["name"], r["distribution"], r["state"]) for r in records}
    assert ("backend", "ref", "gptrs-backend-ref", "available") in found
    assert ("model", "gpt2", "gptrs-models", "available") in found
    assert by_name(records)["ref"]["entry_point"] == "gptrs_backend_ref.plugin:PLUGIN"
    assert by_name(records)["ref"]["api"] == "0.1"


def test_backends_as_json_name_the_default(gptrs, monkeypatch):
    monkeypatch.delenv("GPTRS_BACKEND")
    backends = gptrs("list", "backends", "--json").json["backends"]
    assert all(record.keys() == RECORD | {"priority", "default"} for record in backends)
    default = [record for record in backends if record["default"]]
    assert [record["priority"] for record in default] == [max(r["priority"] for r in backends)]


def test_the_environment_changes_the_default(gptrs):
    default = [
        r["name"] for r in gptrs("list", "backends", "--json").json["backends"] if r["default"]
    ]
    assert default == ["ref"]


def test_models_are_kinds_and_bundled_models(gptrs):
    kinds = {(r["kind"], r["name"]) for r in gptrs("list", "models", "--json").json["models"]}
    assert {("model", "gpt2"), ("demo_model", "demo")} <= kinds


@pytest.mark.parametrize("what", ["backends", "models", "plugins"])
def test_a_table_has_aligned_columns(gptrs, what):
    result = gptrs("list", what)
    assert (result.code, result.err) == (0, "")
    header, *rows = result.out.splitlines()
    assert header == header.upper()
    assert len(rows) == len(gptrs("list", what, "--json").json[what])
    state = header.index("STATE")
    # The command itself is loaded.
    assert all(row[state:].startswith(("available ", "loaded ")) for row in rows)


def test_a_disabled_plugin_is_listed_with_the_reason(gptrs):
    result = gptrs("-p", "no:ref", "list", "backends")
    assert "disabled" in result.out
    assert "backend `ref` is disabled: disabled as `ref`; leave out `-p no:ref`" in result.out
    records = by_name(gptrs("list", "backends", "--json", "-p", "no:ref").json["backends"])
    assert records["ref"]["state"] == "disabled"
    assert records["ref"]["default"] is False


def test_several_plugins_can_be_disabled_at_once(gptrs):
    records = gptrs("-p", "no:gptrs-models", "list", "plugins", "-p", "no:ref", "--json").json[
        "plugins"
    ]
    disabled = {record["name"] for record in records if record["state"] == "disabled"}
    assert {"ref", "gpt2", "demo"} <= disabled


def test_a_name_that_disables_nothing_is_a_warning(gptrs):
    result = gptrs("-p", "no:abacus", "list", "models")
    assert result.code == 0
    assert result.err.startswith("warning: no plugin or distribution is called `abacus`")
    assert result.err.count("\n") == 1


def test_a_disabled_backend_that_is_asked_for_exits_with_4(gptrs, model_directory):
    asked = ("generate", "--model", model_directory, "--prompt-ids", "1", "--backend", "ref")
    result = gptrs("-p", "no:ref", *asked)
    assert result.code == 4
    assert "disabled as `ref`" in result.err
