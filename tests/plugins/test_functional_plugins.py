"""Implementations of functionals that plugins bring: one installed for real, others laid out."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.errors import PluginError, UsageError
from gptrs.plugins.descriptions import FunctionalPlugin
from gptrs.plugins.manager import PluginManager, configure, manager
from gptrs.plugins.selection import Selection
from plugins.conftest import HERE, Probe, installed, probe_of

CALL = """
import sys
import gptrs
from gptrs import functionals as F
from gptrs.errors import GptrsError
imported = lambda: "swish_functionals.swish" in sys.modules
x = gptrs.tensor([1.0, -2.0])
"""
USE = (
    CALL
    + """
portable = F.silu(x).numpy()
names, before = F.implementations()["silu"], imported()
with gptrs.overrides({"silu": "tanh"}):
    programs = [gptrs.jit(F.silu).lower(x)]
    found = F.silu(x).numpy()
ops = sorted({step.op.name for step in programs[0].main.body.instructions})
answer = names, before, imported(), ops, abs(found - portable).max() < 1e-6
"""
)
FORCE = (
    CALL
    + """
with gptrs.overrides({"gelu": "swish"}):
    error = F.gelu(x).numpy() - [0.841344746, -0.045500264]
    try:
        answer = F.gelu(x, "tanh")
    except GptrsError as refusal:
        answer = type(refusal).__name__, str(refusal), 0.001 < abs(error).max() < 0.02
"""
)
MODEL = """
import numpy as np
import gptrs
model = gptrs.load_model(backend="ref")
answer = float(model.forward(np.array([[1, 2, 3]])).sum())
"""


@pytest.fixture(scope="session")
def swish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example."""
    return installed(tmp_path_factory, "swish", ["swish_functionals"])


@pytest.fixture
def probe(swish: Path) -> Probe:
    return partial(probe_of(swish), GPTRS_BACKEND="ref")


def test_it_is_known_by_name_imported_when_chosen_and_used(probe):
    names, before, after, ops, right = probe(USE)["answer"]
    assert names == ["portable", "tanh"]
    assert (before, after) == (False, True)
    assert "tanh" in ops
    assert "logistic" not in ops
    assert right


def test_a_forced_one_says_what_it_does_not_take(probe):
    kind, message, approximate = probe(FORCE)["answer"]
    assert kind == "UsageError"
    assert message == (
        "`gelu` is forced to `swish` by `gptrs.overrides`, which does not take this call:"
        " approximate='tanh' asks for another form; `prefer=swish` uses `portable` then;"
        " the others are `portable`"
    )
    assert approximate


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_environment_overrides_what_models_run(probe):
    plain = probe(MODEL)["answer"]
    assert probe(MODEL, GPTRS_OVERRIDES="gelu=portable, silu=tanh")["answer"] == plain
    other = probe(MODEL, GPTRS_OVERRIDES="gelu=prefer=swish")
    assert other["answer"] == plain  # the demo model asks for the tanh form, which it declines
    refused = subprocess.run(
        [sys.executable, "-c", MODEL],
        env={**os.environ, "GPTRS_OVERRIDES": "gelu=swish"},
        capture_output=True,
        text=True,
    )
    assert "functional `gelu` has no implementation `swish`" in refused.stderr


def gptrs_cli(folder: Path, *arguments: str, **variables: str):
    return subprocess.run(
        [sys.executable, "-m", "gptrs_cli", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_lists_show_where_it_comes_from_and_who_chose_it(swish: Path):
    listed = gptrs_cli(swish, "list", "functionals", "--override", "silu=tanh")
    assert listed.returncode == 0, listed.stderr
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines()}
    assert rows["silu"][1:] == ["tanh", "--override", "tanh", "(swish-functionals", "0.3.0)"]
    assert rows["gelu"][1:] == ["portable", "swish", "(swish-functionals", "0.3.0)"]
    plugins = gptrs_cli(swish, "list", "plugins").stdout
    assert "silu.tanh" in plugins


def test_generation_takes_an_override(swish: Path):
    asked = ["generate", "--prompt-ids", "1,2", "--max-tokens", "3", "--greedy", "--backend", "ref"]
    forced = gptrs_cli(swish, "--override", "gelu=swish", *asked)
    assert forced.returncode == 2
    assert "`gelu` is forced to `swish` by `--override`" in forced.stderr
    preferred = gptrs_cli(swish, *asked, "--override", "gelu=prefer=swish")
    assert preferred.returncode == 0, preferred.stderr
    assert preferred.stderr.count("`gelu` uses `portable` where `swish` declines") == 1


def test_the_example_is_two_files_and_knows_public_names_only():
    files = sorted(path for path in (HERE / "swish_functionals").iterdir() if path.is_file())
    assert [path.name for path in files] == ["plugin.py", "pyproject.toml", "swish.py"]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert {line.split()[1] for line in lines if line.startswith(("import ", "from "))} == {
        "gptrs.api",
        "gptrs.api.models",
    }


SOURCE = """
from gptrs.api import FunctionalPlugin
def plugin(name, functional, factory, declines=None):
    return FunctionalPlugin(name=name, functional=functional, summary="s", api="0.1",
                            factory="laid_out_code:" + factory, declines=declines)
DOUBLE = plugin("double", "tanh", "double", "laid_out_code:declines_rank_0")
GONE = plugin("gone", "tanh", "no_such_function")
BAD = plugin("bad", "tanh", "double", "laid_out_code:NUMBER")
TYPO = plugin("typo", "tanhh", "double")
"""
CODE = """
NUMBER = 3
def double(x):
    return x * 2
def declines_rank_0(x):
    return None if x.rank else "it needs an axis"
"""
ENTRIES = {"double": "DOUBLE", "gone": "GONE", "bad": "BAD", "typo": "TYPO", "lost": "LOST"}


@pytest.fixture(scope="module")
def reference() -> Backend:
    """A backend as it is before others than the plugins below are out of sight."""
    return PluginManager(Selection()).get_backend("ref")


@pytest.fixture
def laid_out(reference, install):
    entries = {name: f"laid_out:{value}" for name, value in ENTRIES.items()}
    modules = {"laid_out": SOURCE, "laid_out_code": CODE}
    install("laid-out", {"gptrs.functionals": entries}, modules)
    configure()
    with gptrs.use_backend(reference):
        yield


@pytest.mark.usefixtures("laid_out")
class TestLaidOut:
    def test_an_implementation_with_a_predicate(self):
        with gptrs.overrides({"tanh": "force=double"}):
            assert F.tanh(gptrs.tensor([3.0])).item() == 6
            with pytest.raises(UsageError, match="does not take this call: it needs an axis"):
                F.tanh(gptrs.tensor(3.0))

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("gone", r"functional `gone` \(from laid-out 1.0\) is broken: AttributeError"),
            ("bad", r"`bad` .* is broken: `laid_out_code:NUMBER` must be callable"),
            ("lost", r"`lost` .* is broken: AttributeError: module 'laid_out' has no attribute"),
        ],
    )
    def test_a_broken_one_is_an_error_when_chosen_and_listed_as_broken(self, name, reason):
        for _ in range(2):
            with pytest.raises(PluginError, match=reason), gptrs.overrides({"tanh": name}):
                pass
        states = {r.name: str(r.state) for r in manager().records(FunctionalPlugin)}
        assert states[name] == "broken"
        with gptrs.overrides({"tanh": "double"}):
            assert F.tanh(gptrs.tensor([3.0])).item() == 6

    def test_a_disabled_one_says_so(self):
        configure(disabled=["double"])
        with pytest.raises(PluginError, match="is disabled"), gptrs.overrides({"tanh": "double"}):
            pass

    def test_a_broken_one_is_left_out_of_a_benchmark(self, caplog):
        x = gptrs.tensor([0.0, 0.0])
        with gptrs.overrides({"tanh": "benchmark"}):
            assert F.tanh(x).numpy().tolist() == [0, 0]
        broken = [r for r in caplog.records if "leaves out `gone`: PluginError" in r.getMessage()]
        assert len(broken) == 1

    def test_one_for_a_functional_that_does_not_exist_is_found_by_the_list(self):
        from gptrs_runtime.functional_listing import list_functionals

        (tanh,) = [row for row in list_functionals() if row.name == "tanh"]
        found = {i.name: str(i.state) for i in tanh.implementations if i.plugin}
        assert found == {"double": "available", "gone": "available", "bad": "available"}
        (typo,) = [r for r in manager().records(FunctionalPlugin) if r.name == "typo"]
        assert (str(typo.state), typo.reason) == ("broken", "there is no functional `tanhh`")


@pytest.mark.parametrize("name", ["portable", "benchmark", "tanh.portable", "tanh."])
def test_names_that_policies_use_are_taken(name):
    with pytest.raises(PluginError, match="name` must be another word than a policy has"):
        FunctionalPlugin(name=name, functional="tanh", summary="s", api="0.1", factory="a:b")


def test_a_predicate_is_a_reference():
    with pytest.raises(PluginError, match=r"`FunctionalPlugin.declines` must be"):
        FunctionalPlugin(
            name="x", functional="tanh", summary="s", api="0.1", factory="a:b", declines="a.b"
        )
