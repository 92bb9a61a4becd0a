"""`gptrs list functionals`: implementations, the one in use, and who chose it."""

from __future__ import annotations

import json
import shutil

import pytest

from functionals.temporary import implemented

IMPLEMENTATION = {"name", "state", "plugin", "distribution", "version", "reason", "hint"}


@pytest.fixture(scope="module", autouse=True)
def _implementation():
    with implemented("silu", {"test_listed": lambda x: x}):
        yield


def listed(outcome) -> dict[str, dict]:
    assert outcome.code == 0, outcome.err
    return {row["name"]: row for row in outcome.json["functionals"]}


def test_json_is_the_contract(gptrs):
    rows = listed(gptrs("list", "functionals", "--json"))
    assert rows.keys() >= {"softmax", "layer_norm", "gelu", "attention", "linear"}
    for row in rows.values():
        assert row.keys() == {"name", "active", "because", "implementations", "choices"}
        assert (row["active"], row["because"]) == ("portable", "portable")
        assert all(i.keys() == IMPLEMENTATION for i in row["implementations"])
        assert row["implementations"][0]["name"] == "portable"
    assert [i["name"] for i in rows["silu"]["implementations"]] == ["portable", "test_listed"]


def test_a_table_shows_what_is_not_portable(gptrs):
    result = gptrs("list", "functionals", "--override", "silu=prefer=test_listed")
    assert (result.code, result.err) == (0, "")
    header, *rows = result.out.splitlines()
    assert header.split("  ")[0] == "FUNCTIONAL"
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["silu"] == ["prefer=test_listed", "--override", "test_listed"]
    assert cells["softmax"] == ["portable"]
    own = [row for row in rows if row.startswith(("silu ", "softmax ", "adaptive_average"))]
    assert max(map(len, own)) <= 80


@pytest.mark.parametrize(
    ("arguments", "active"),
    [
        (["list", "functionals", "--override", "silu=test_listed"], "test_listed"),
        (["--override", "silu=force=test_listed", "list", "functionals"], "test_listed"),
        (["--override", "silu=portable", "list", "functionals", "--override", "silu=benchmark"],
         "benchmark"),
        (["list", "functionals", "--override", "silu=benchmark(cache=5)"], "benchmark(cache=5)"),
    ],
)  # fmt: skip
def test_the_option_stands_before_and_after_the_command(gptrs, arguments, active):
    silu = listed(gptrs(*arguments, "--json"))["silu"]
    assert (silu["active"], silu["because"]) == (active, "--override")


def test_the_environment_and_a_model_choose_too(gptrs, model_directory, tmp_path, monkeypatch):
    folder = tmp_path / "configured"
    shutil.copytree(model_directory, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    chosen = {"functional_overrides": {"silu": "test_listed", "softmax": "benchmark"}}
    text = json.dumps({**config, "runtime": chosen})
    (folder / "config.json").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GPTRS_OVERRIDES", "softmax=portable, tanh=benchmark")
    rows = listed(
        gptrs("list", "functionals", "--model", folder, "--override", "tanh=portable", "--json")
    )
    found = {name: (rows[name]["active"], rows[name]["because"]) for name in rows}
    assert found["silu"] == ("test_listed", "config")
    assert found["softmax"] == ("portable", "environment")
    assert found["tanh"] == ("portable", "--override")
    assert found["relu"] == ("portable", "portable")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gelu", "error: `--override` needs `FUNCTIONAL=POLICY`, got `gelu`; for example"),
        ("gelo=portable", "error: there is no functional `gelo`; did you mean `gelu`"),
        ("silu=fast", "error: functional `silu` has no implementation `fast`; it has: portable"),
        ("silu=forec=test_listed", "error: `forec=test_listed` is not a policy for the functional"),
    ],
)
@pytest.mark.parametrize("command", [["list", "functionals"], ["generate", "--prompt-ids", "1"]])
def test_an_override_that_cannot_be_is_an_error_of_usage(gptrs, command, override, message):
    result = gptrs(*command, "--override", override)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)


def test_generation_says_so_when_an_override_changes_nothing_in_a_program(gptrs, tmp_path):
    program = tmp_path / "p.ptir"
    program.write_text(
        "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n  return %x\n}\n", encoding="utf-8"
    )
    asked = ("run", program, "--random-seed", "1")
    assert "overrides" not in gptrs(*asked).err
    result = gptrs(*asked, "--override", "silu=test_listed")
    assert result.code == 0
    assert "a program is made of ops" in result.err
    assert gptrs(*asked, "--override", "gelu=fast").code == 2


def test_help_names_the_option(gptrs):
    for command in ([], ["generate"], ["run"], ["list", "functionals"]):
        assert "--override" in gptrs(*command, "--help").out
