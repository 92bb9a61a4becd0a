"""CONTRIBUTING says what the Makefile, the import linter and the settings of pytest say."""

import configparser
import re
import tomllib
from pathlib import Path

import doc_examples

ROOT = Path(doc_examples.__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_of_commands_is_that_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.M)) - {"help"}
    assert set(re.findall(r"^\| `make ([a-z]+)` \|", TEXT, re.M)) == targets


def test_the_layers_are_those_of_the_import_linter():
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    wanted = settings["importlinter:contract:core"]["layers"].split("\n")
    (block,) = re.findall(r"^```text\n(wiring .*?)^```", TEXT, re.M | re.S)
    layers = [re.split(r"  +", line)[0].strip() for line in block.splitlines()]
    assert layers == [line.strip() for line in wanted if line.strip()]


def test_every_mark_of_tests_is_explained():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for mark in settings["tool"]["pytest"]["ini_options"]["markers"]:
        name = mark.partition(":")[0]
        assert f"`{name}`" in TEXT, name
