"""Importers: found by the suffix of a file, blamed for what they do wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gptrs.api.importers import ModelInput, named_arguments
from gptrs.api.programs import dtypes
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import ModelError, PluginError, UsageError
from gptrs.plugins.exporters import import_model, importer_of
from gptrs.plugins.manager import configure
from gptrs_backend_ref.backend import create
from gptrs_cli.commands.run import inputs_of
from gptrs_runtime.imported.batch import named_sizes
from gptrs_runtime.programs import InputFiles

SOURCE = """
import json
import numpy as np
from gptrs.api import ImporterPlugin, ModelError
from gptrs.api.importers import ModelInput
from gptrs.api.programs import dtypes


def described(name, factory, suffix):
    return ImporterPlugin(
        name=name, summary="s", factory=f"lines:{factory}", suffixes=(suffix,), api="0.1"
    )


class Line:
    '''y = a * x + b, with a and b out of a file of JSON.'''

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.inputs = {"x": ModelInput("x", dtypes.f32, ("n", 2))}
        self.outputs = ("y",)

    def __call__(self, x):
        return {"y": (self.a * x + self.b).astype(np.float32)}


def read(path, backend):
    try:
        return Line(*json.loads(path.read_text()))
    except ValueError as error:
        raise ModelError(f"no line: {error}") from error


def breaks(path, backend):
    raise SystemExit("no licence")


def other(path, backend):
    return "a model"


LINE = described("line", "read", ".line")
BROKEN = described("broken", "breaks", ".broken")
OTHER = described("other", "other", ".other")
TWIN = described("twin", "read", ".twin")
SECOND = described("second", "read", ".twin")
"""
NAMES = ("line", "broken", "other", "twin", "second")


@pytest.fixture(autouse=True)
def _importers(install) -> None:
    entries = {name: f"lines:{name.upper()}" for name in NAMES}
    install("some-importers", {"gptrs.importers": entries}, {"lines": SOURCE})
    configure()


def read(folder: Path, suffix: str, text: str = "[2, 1]"):
    """Write a file with that suffix, and read it by its importer."""
    path = folder / f"model.{suffix}"
    path.write_text(text, encoding="utf-8")
    importer = importer_of(path)
    assert importer is not None
    return import_model(path, importer, create(None))


def test_an_importer_is_found_by_the_suffix(tmp_path):
    assert importer_of("model.line") == "line"
    assert importer_of("MODEL.LINE") == "line"
    assert importer_of("model.other_suffix") is None
    assert importer_of("model") is None
    model = read(tmp_path, "line")
    assert str(model.inputs["x"]) == "x: f32[n, 2]"
    assert model(x=np.ones((1, 2), np.float32))["y"].tolist() == [[3, 3]]


def test_several_importers_of_one_suffix_are_an_error():
    several = r"several importers read `\.twin` files: second, twin"
    with pytest.raises(PluginError, match=several) as caught:
        importer_of("model.twin")
    assert caught.value.hint == "leave all but one out, as by `-p no:importer:twin`"


@pytest.mark.parametrize(
    ("suffix", "message"),
    [("broken", "no licence"), ("other", "a `str`, an `ImportedModel` is needed")],
)
def test_an_importer_that_breaks_is_named(tmp_path, suffix, message):
    with pytest.raises(PluginError, match=message) as caught:
        read(tmp_path, suffix)
    assert f"`{suffix}`" in str(caught.value)


def test_errors_of_gptrs_pass_through(tmp_path):
    with pytest.raises(ModelError, match="no line: "):
        read(tmp_path, "line", "{")


def test_inputs_come_from_files_and_say_free_sizes(tmp_path):
    model = read(tmp_path, "line")
    x = np.asarray([[1, 2], [3, 4]], np.float32)
    write_archive(tmp_path / "in.npz", {"x": x})
    with InputFiles([tmp_path / "in.npz"]) as files:
        assert inputs_of(model, files, {}, None)["x"].tolist() == x.tolist()


def test_inputs_are_made_up_with_sizes_by_name(tmp_path):
    model = read(tmp_path, "line")
    with InputFiles([]) as files:
        made = [inputs_of(model, files, named_sizes(["n=4"]), seed)["x"] for seed in (1, 1, 2)]
    assert made[0].shape == (4, 2)
    assert made[0].tobytes() == made[1].tobytes() != made[2].tobytes()


def test_inputs_that_do_not_fit_are_refused(tmp_path):
    model = read(tmp_path, "line")
    write_archive(tmp_path / "z.npz", {"z": np.zeros(1, np.float32)})
    unknown = pytest.raises(UsageError, match="the model has no input `z`")
    with InputFiles([tmp_path / "z.npz"]) as files, unknown:
        inputs_of(model, files, {}, 1)
    with InputFiles([]) as files:
        with pytest.raises(UsageError, match="no input is given for `x: f32"):
            inputs_of(model, files, {}, None)
        with pytest.raises(UsageError, match=r"the size `n` of .* is not known"):
            inputs_of(model, files, {}, 1)
    with pytest.raises(UsageError, match="`4` is not a size"):
        named_sizes(["4"])


SLOTS = {
    "x": ModelInput("x", dtypes.f32, ("n", 2)),
    "n": ModelInput("n", dtypes.ui8, ()),
    "mask": ModelInput("mask", dtypes.i1, None, optional=True),
}


def test_arguments_go_to_inputs_in_order_or_by_name() -> None:
    assert named_arguments("m", SLOTS, (1, 2), {}) == {"x": 1, "n": 2}
    assert list(named_arguments("m", SLOTS, (1,), {"mask": 3, "n": 2})) == ["x", "n", "mask"]
    assert named_arguments("m", SLOTS, (1, 2, None), {}) == {"x": 1, "n": 2}


@pytest.mark.parametrize(
    ("arguments", "named", "problem"),
    [
        ((1, 2, 3, 4), {}, "`m` takes 3 inputs, got 4"),
        ((1, 2), {"y": 3}, "`m` takes no input `y`"),
        ((1, 2), {"x": 3}, "`m` got the input `x` twice"),
        ((1,), {"mask": 3}, "`m` lacks the input `n`"),
        ((None, 2), {}, "`m` lacks the input `x`"),
    ],
)
def test_arguments_that_do_not_fit_the_inputs(
    arguments: tuple[object, ...], named: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        named_arguments("m", SLOTS, arguments, named)
    assert caught.value.hint == "its inputs are x: f32[n, 2], n: ui8[], mask: i1[..]?"


def test_lists_and_numbers_become_arrays_where_nothing_is_lost() -> None:
    assert SLOTS["x"].array([[1, 2]]).dtype == np.float32
    assert SLOTS["n"].array(255).dtype == np.uint8
    assert SLOTS["mask"].array([True]).dtype == np.bool_
    for name, value in {"n": 256, "mask": [1]}.items():
        with pytest.raises(UsageError, match="got an array of int64"):
            SLOTS[name].array(value)
    with pytest.raises(UsageError, match="got an array of float64"):
        SLOTS["n"].array(1.0)
    with pytest.raises(UsageError, match="got an array of float64"):
        SLOTS["x"].array(np.ones((1, 2)))
    with pytest.raises(UsageError, match=r"got an array of shape \[1, 3\]"):
        SLOTS["x"].array([[1, 2, 3]])
