"""The public names of `gptrs.api` exist, and listing plugins imports nothing heavy."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest

import gptrs.api
import gptrs_models
from gptrs.plugins.capabilities import PROTOCOLS
from gptrs.plugins.entry_points import load_reference

API = gptrs.api
MODULES = (API, API.backends, API.models, API.passes, API.importers, API.programs)
PUBLIC = [(module, name) for module in MODULES for name in vars(module)["__all__"]]
NAMES = {name for _, name in PUBLIC}
HEAVY = {
    "ml_dtypes",
    "numba",
    "numpy",
    "rich",
    "safetensors",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
}


@pytest.mark.parametrize("name", vars(gptrs)["__all__"])
def test_every_name_of_the_package_resolves(name: str):
    assert getattr(gptrs, name) is not None


@pytest.mark.parametrize(
    ("module", "name"), PUBLIC, ids=lambda each: getattr(each, "__name__", each)
)
def test_every_public_name_resolves_and_is_documented(module: ModuleType, name: str):
    found = getattr(module, name)
    assert found is not None
    error = isinstance(found, type) and name.endswith("Error")
    assert f"`{name}`" in (module.__doc__ or "") or error


def test_a_public_name_is_in_one_module():
    assert len(NAMES) == len(PUBLIC)
    for module in (gptrs, *MODULES):
        assert module.__all__ == dir(module)


def test_a_name_that_is_elsewhere_is_told_with_its_module():
    with pytest.raises(AttributeError, match=r"`OpTable`; it is in `gptrs\.api\.backends`"):
        _ = gptrs.api.OpTable  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"`GptrsError`; it is in `gptrs\.api`"):
        _ = gptrs.api.models.GptrsError  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"mean `OpTable` of `gptrs.api.backends`\?"):
        _ = gptrs.api.programs.OpTabel  # pyright: ignore[reportAttributeAccessIssue]


def test_a_name_is_the_object_that_its_module_has():
    assert gptrs.api.backends.Backend is load_reference("gptrs.backend.contract:Backend")
    assert gptrs.api.models.nn is gptrs.nn is sys.modules["gptrs.nn"]
    assert vars(gptrs.api.backends)["Backend"] is gptrs.api.backends.Backend  # found once, kept


def test_what_a_model_may_promise_is_public():
    for protocol in PROTOCOLS.values():
        assert getattr(gptrs.api.models, protocol.__name__) is protocol


def test_models_need_no_more_than_is_public():
    """What the models of this project import, an author of another kind can import as well."""
    needed: dict[str, set[str]] = {}
    for path in Path(gptrs_models.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                needed.setdefault(node.module, set()).update(alias.name for alias in node.names)
            assert not isinstance(node, ast.Import) or "gptrs" not in ast.unparse(node)
    ours = {name: names for name, names in needed.items() if name.partition(".")[0] == "gptrs"}
    nn = ours.pop("gptrs.nn")
    assert {name.partition(".api")[0] for name in ours} == {"gptrs"}
    assert set().union(*ours.values()) <= NAMES
    assert nn <= set(gptrs.api.models.nn.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no public name `Tensr`; did you mean `Tensor`\?"):
        _ = gptrs.api.models.Tensr  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        exec("from gptrs.api.models import Tensr", {})


def test_the_error_of_an_unknown_name_is_shown_and_pickled_as_a_plain_one():
    with pytest.raises(AttributeError) as caught:
        gptrs.lod_model()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    said = "`gptrs` has no public name `lod_model`; did you mean `load_model`?"
    shown = traceback.format_exception_only(caught.value)
    assert shown == [f"AttributeError: {said}\n"]
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (type(restored), str(restored)) == (AttributeError, said)
    assert repr(restored) == repr(caught.value)


@pytest.mark.parametrize(
    ("name", "package"), [("load_model", "gptrs_runtime"), ("dumping", "gptrs_observe")]
)
def test_a_name_of_a_package_that_is_not_installed_says_what_to_install(name: str, package: str):
    code = f"""
import sys
import traceback
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
import gptrs
gptrs.{name}
"""
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    distribution = package.replace("_", "-")
    assert f"`gptrs.{name}` is part of {distribution}, which is not installed; run `" in last
    assert last.count(distribution) == 2


@pytest.mark.parametrize("name", ["Scalar", "FunctionName"])
def test_new_types_document_themselves(name: str):
    found = getattr(gptrs.api.programs, name)
    assert found.__doc__.startswith("A ")
    assert "NewType" not in found.__doc__


@pytest.mark.parametrize(
    "code",
    [
        "import gptrs.api",
        "from gptrs.plugins.manager import manager; assert manager().records()",
        "from gptrs.plugins.capabilities import capabilities_of; capabilities_of(object())",
    ],
)
def test_listing_plugins_imports_nothing_heavy(code: str):
    script = f"import sys\n{code}\nprint(*({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
