"""Programs of torch.export, in memory and in files."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")

from torch import nn  # noqa: E402
from torch.nn.functional import interpolate  # noqa: E402

import gptrs_torch  # noqa: E402
from gptrs.errors import ModelError, UnsupportedError, UsageError  # noqa: E402
from gptrs_cli.main import main  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class Pair(nn.Module):
    """Two results in a dict, and a buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any, scale: Any = None) -> Any:
        self.calls.add_(1)
        y = self.layer(x.reshape(-1, 8)) * self.calls
        return {"y": y, "scaled": y if scale is None else y * scale}


def exported(model: nn.Module | None = None, *, free: bool = True) -> Any:
    args = (torch.randn(3, 2, 8), torch.randn(4))
    sizes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}, "scale": None}
    return torch.export.export(model or Pair(), args, dynamic_shapes=sizes if free else None)


def saved(program: Any, path: Path) -> Path:
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_program_gives_what_torch_gives_and_keeps_its_state(kind: str, tmp_path: Path) -> None:
    program = exported()
    torch_runs = program.module()
    given = program if kind == "memory" else saved(program, tmp_path / "m.pt2")
    model = gptrs_torch.load(given, "ref")
    for batch in (1, 3, 7):
        x, scale = torch.randn(batch, 2, 8), torch.randn(4)
        torch.testing.assert_close(model.module(x, scale), torch_runs(x, scale))
    assert "f32[?0, 2, 8]" in str(model.program(x, scale))


def test_results_in_a_class_with_fields_are_a_dict_in_a_file(tmp_path: Path) -> None:
    """As transformers returns them; torch registers the class, which a file only names."""
    outputs = pytest.importorskip("transformers.modeling_outputs", reason="needs transformers")

    class Fields(nn.Module):
        def forward(self, x: Any) -> Any:
            return outputs.ImageClassifierOutput(logits=2 * x, hidden_states=(x + 1, x - 1))

    x = torch.randn(3)
    program = torch.export.export(Fields(), (x,))
    in_memory = gptrs_torch.load(program, "ref")
    model = gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")
    assert in_memory.outputs == model.outputs == ("logits", "hidden_states.0", "hidden_states.1")
    np.testing.assert_allclose(model(x)["hidden_states.1"], x.numpy() - 1)
    torch.testing.assert_close(model.module(x), {"logits": 2 * x, "hidden_states": (x + 1, x - 1)})
    assert isinstance(in_memory.module(x), outputs.ImageClassifierOutput)


def test_results_in_another_class_are_refused_in_a_file(tmp_path: Path) -> None:
    def renamed(name: str, data: bytes) -> bytes:
        old = rb"{\"type\": \"builtins.dict\", \"context\": \"[\\\"y\\\", \\\"scaled\\\"]\""
        new = rb"{\"type\": \"os.path\", \"context\": \"[\\\"y\\\"]\""
        return data.replace(old, new)

    path = rewritten(saved(exported(), tmp_path / "m.pt2"), renamed)
    with pytest.raises(UnsupportedError, match=r"takes or returns a `os\.path`; only tuples"):
        gptrs_torch.load(path, "ref")


def test_a_model_takes_arrays_by_name() -> None:
    model = gptrs_torch.load(exported(), "ref")
    assert list(model.inputs) == ["x", "scale"]
    found = model(np.ones((2, 2, 8), np.float32), scale=np.ones(4, np.float32))
    assert [value.shape for value in found.values()] == [(4, 4), (4, 4)]
    assert repr(model).startswith("<TorchModel the exported program(x: f32[s")


def test_an_input_that_the_program_changes_is_written_to() -> None:
    class Grows(nn.Module):
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    program = torch.export.export(Grows(), (torch.zeros(3),))
    x = torch.ones(3)
    assert gptrs_torch.load(program, "ref").module(x).tolist() == [4, 4, 4]
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, "lacks the input `x`"),
        ((1, 2, 3), {}, "takes 2 inputs, got 3"),
        ((), {"z": 1}, "takes no input `z`"),
        ((np.ones((2, 2, 8)), np.ones(4)), {}, "got an array of float64"),
        ((np.ones((2, 3, 8), np.float32), np.ones(4, np.float32)), {}, r"of shape \[2, 3, 8\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arrays: tuple, named: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gptrs_torch.load(exported(), "ref")(*arrays, **named)
    with pytest.raises(UsageError, match="not nested as in the export"):
        gptrs_torch.load(exported(), "ref").module([torch.ones(1, 2, 8)])


class Twice(nn.Module):
    """Two inputs, one of which has twice as many rows."""

    def forward(self, x: Any, y: Any) -> Any:
        return x * 2 + y.reshape(2, -1).sum(0)[:, None]


@pytest.mark.parametrize(
    ("rows", "twice", "message"),
    [
        (9, 18, r"`?x.* has 9 elements along axis 0, the export allows 1 to 8"),
        (3, 8, r"y.* has 8 elements along axis 0, not 6"),
        (3, 6, None),
        (2, 4, None),
        (1, 2, r"a condition of the export: `\(L\['y'\].size\(\)\[0\] // 2\) != 1`"),  # torch's
    ],
)
def test_sizes_are_those_that_the_export_allows(
    rows: int, twice: int, message: str | None, tmp_path: Path
) -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    given = torch.randn(4, 2), torch.randn(8)
    program = torch.export.export(Twice(), given, dynamic_shapes=({0: batch}, {0: 2 * batch}))
    model = gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")
    x, y = torch.randn(rows, 2), torch.randn(twice)
    if message is None:
        torch.testing.assert_close(model.module(x, y), Twice()(x, y))
        return
    for call in (model.module, model, model.program):
        with pytest.raises(UsageError, match=message):
            call(x, y)


def test_sparse_tensors_are_refused() -> None:
    model = gptrs_torch.load(exported(), "ref")
    x = torch.ones(3, 2, 8).to_sparse()
    with pytest.raises(UsageError, match="got a tensor of the layout sparse_coo") as caught:
        model.module(x, torch.ones(4))
    assert caught.value.hint is not None
    assert "to_dense" in caught.value.hint


def test_operators_that_are_not_converted_are_refused_by_name() -> None:
    class Special(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    model = gptrs_torch.load(torch.export.export(Special(), (torch.eye(3),)), "ref")
    with pytest.raises(UnsupportedError, match=r"`special_bessel_j0\.default` .* does not convert"):
        model(np.eye(3, dtype=np.float32))


def test_a_file_runs_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = saved(exported(free=False), tmp_path / "m.pt2")
    np.savez(tmp_path / "in.npz", x=np.ones((3, 2, 8), np.float32), scale=np.ones(4, np.float32))
    arguments = ["--input", str(tmp_path / "in.npz"), "--json", "--backend", "ref"]
    assert main(["run", str(path), *arguments]) == 0
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert first["shape"] == second["shape"] == [6, 4]


def rewritten(path: Path, change: Any) -> Path:
    """Return a copy of an archive whose entries `change(name, data)` returns anew."""
    made = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))
    return made


class Opened:
    """What unpickling would do."""

    def __reduce__(self) -> Any:
        return (open, ("/proc/version",))


class Pairs(nn.Module):
    """A result for each pair of tokens, as masks of transformers have one."""

    def forward(self, x: Any) -> Any:
        pairs = x[:, :, None] * x[:, None, :]
        return pairs.reshape(x.shape[0], -1)


def test_a_square_of_a_free_size_is_read_and_large_powers_are_not(tmp_path: Path) -> None:
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Pairs(), (torch.randn(2, 3),), dynamic_shapes=({1: length},))
    path = saved(program, tmp_path / "m.pt2")
    model = gptrs_torch.load(path, "ref")
    for count in (3, 5):
        x = torch.randn(2, count)
        (found,) = model(x.numpy()).values()
        np.testing.assert_array_equal(found, Pairs()(x).numpy())
    for power in (b"Integer(9)", b"Pow(Integer(4), Integer(4))"):

        def large(name: str, data: bytes, power: bytes = power) -> bytes:
            return data.replace(b"Integer(2))", power + b")")

        with pytest.raises(UnsupportedError, match="is not a supported expression"):
            gptrs_torch.load(rewritten(path, large), "ref")


@pytest.mark.parametrize(
    ("function", "count", "refused"),
    [
        (lambda x: x.sum() if x.shape[0] % 2 == 0 else x, 6, 5),
        (lambda x: x[: int(x.shape[0] * 0.75)], 9, 11),
    ],
)
def test_sizes_that_take_another_branch_are_refused(
    function: Any, count: int, refused: int, tmp_path: Path
) -> None:
    """As torch does, by the conditions that the export wrote as Python code."""
    model, sizes = Applies(function), ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(model, (torch.randn(8, 3),), dynamic_shapes=sizes)
    path = saved(program, tmp_path / "m.pt2")
    for given in (program, path):
        loaded, x = gptrs_torch.load(given, "ref"), torch.randn(count, 3)
        torch.testing.assert_close(loaded.module(x), model(x))
        with pytest.raises(UsageError, match=r"a condition of the export: `.*L\['x'\]"):
            loaded.module(torch.randn(refused, 3))

    nested = b"(" * 12 + b"3" + b" ** 4)" * 12 + b" == 1"  # 8 million digits
    for code in (b"exit()", b"L['y'].size()[0] == 2", b"2 ** 9 ** 9 == 1", b"(" * 500, nested):

        def changed(name: str, data: bytes, code: bytes = code) -> bytes:
            return data.replace(json.dumps(program._guards_code[0]).encode(), b'"%s"' % code)

        with pytest.raises(UnsupportedError, match="has a condition that is not read"):
            gptrs_torch.load(rewritten(path, changed), "ref")


def test_floats_of_free_sizes_are_computed_by_one_program(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        nearest = interpolate(x, scale_factor=2)
        wider = interpolate(nearest / x.shape[2] ** 0.5, scale_factor=1.5, mode="bilinear")
        return wider * (x.shape[2] / x.shape[0])

    auto = torch.export.Dim.AUTO
    sizes = ({0: auto, 2: auto, 3: auto},)
    program = torch.export.export(
        Applies(function), (torch.randn(2, 3, 4, 5),), dynamic_shapes=sizes
    )
    loaded = gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")
    for shape in ((2, 3, 4, 5), (3, 3, 7, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(loaded.module(x), function(x))
    assert "?0" in str(loaded.program(x))


def test_nothing_is_unpickled_or_evaluated(tmp_path: Path) -> None:
    path = saved(exported(), tmp_path / "m.pt2")
    stream = io.BytesIO()
    torch.save(Opened(), stream)

    def sample(name: str, data: bytes) -> bytes:
        return stream.getvalue() if "sample_inputs" in name else data

    gptrs_torch.load(rewritten(path, sample), "ref")  # never read

    def pickled(name: str, data: bytes) -> bytes:
        return data.replace(b'"use_pickle": false', b'"use_pickle": true')

    with pytest.raises(UnsupportedError, match="is pickled, which can run any code"):
        gptrs_torch.load(rewritten(path, pickled), "ref")

    def size(name: str, data: bytes) -> bytes:
        return data.replace(b"Mul(Integer(2)", b"Mul(eval('1')")

    with pytest.raises(UnsupportedError, match="is not a supported expression"):
        gptrs_torch.load(rewritten(path, size), "ref")

    def target(name: str, data: bytes) -> bytes:
        return data.replace(b"torch.ops.aten.reshape.default", b"torch.hub.load")

    with pytest.raises(UnsupportedError, match=r"`torch\.hub\.load` is not from ATen"):
        gptrs_torch.load(rewritten(path, target), "ref")


def test_files_that_are_no_programs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file"):
        gptrs_torch.load(tmp_path / "none.pt2")
    file = tmp_path / "m.pt2"
    file.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ModelError, match=r"not an archive of torch\.export.*; torch\.export\.save"):
        gptrs_torch.load(file)
    torch.save({"a": torch.ones(2)}, file)
    with pytest.raises(ModelError, match=r"is a pickle of torch\.save, .*; torch\.export\.save"):
        gptrs_torch.load(file)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("m/data.pkl", b"\x80\x04")
        made.writestr("m/code/__torch__.py", b"")
    with pytest.raises(ModelError, match=r"is TorchScript of torch\.jit\.save.*; torch converts"):
        gptrs_torch.load(file)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("m/version", b"1")
    with pytest.raises(ModelError, match=r"holds no program of torch\.export; torch"):
        gptrs_torch.load(file)


def test_a_torchscript_file_is_converted_as_its_error_says(tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.ones(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls scripts deprecated
        torch.jit.save(torch.jit.trace(model, x), tmp_path / "m.pt")
        with pytest.raises(ModelError, match=r"TorchScript") as refused:
            gptrs_torch.load(tmp_path / "m.pt")
        assert "TS2EPConverter(torch.jit.load(SCRIPT), inputs).convert()" in str(refused.value.hint)
        converter = pytest.importorskip("torch._export.converter", reason="torch may move it")
        script = torch.jit.load(tmp_path / "m.pt")
        program = converter.TS2EPConverter(script, (x,)).convert()
        torch.export.save(program, tmp_path / "m.pt2")
    found = gptrs_torch.load(tmp_path / "m.pt2", "ref").module(x)
    torch.testing.assert_close(found, model(x))


class Branches(nn.Module):
    """A branch that reads weights and has a branch inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        def then(x: Any) -> Any:
            return torch.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x - x.shape[0], (x,))

        return torch.cond(x.sum() > 0, then, self.layer, (x,))


def test_a_branch_of_torch_is_a_branch_of_the_program(tmp_path: Path) -> None:
    def renamed(name: str, data: bytes) -> bytes:
        return data.replace(b'"true_graph_0"', b'"forward"')

    model, positive = Branches(), torch.ones(4, 5)
    sizes = ({0: torch.export.Dim("rows", min=1, max=9)},)
    program = torch.export.export(model, (positive,), dynamic_shapes=sizes)
    path = saved(program, tmp_path / "m.pt2")
    below = torch.ones(2, 5)
    below[0, 0] = -1
    for given in (program, path):
        loaded = gptrs_torch.load(given, "ref")
        for x in (positive, -positive, below):
            torch.testing.assert_close(loaded.module(x), model(x))
    assert "cond" in str(loaded.program(positive))
    with pytest.raises(UnsupportedError, match="a graph `forward` inside"):
        gptrs_torch.load(rewritten(path, renamed), "ref")


class Contexts(nn.Module):
    """Blocks without gradients and with other types, one in the other, which change a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.calls.add_(1)
            with torch.autocast("cpu", torch.bfloat16):
                y = self.layer(x)
        return y, x * self.calls


def test_blocks_of_no_grad_and_autocast_are_read_from_a_file(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    program = torch.export.export(Contexts(), (x,))
    path = saved(program, tmp_path / "m.pt2")
    assert b"wrap_with_set_grad_enabled" in path.read_bytes()
    torch_runs, model = program.module(), gptrs_torch.load(path, "ref").module
    for _ in range(2):
        wanted, found = torch_runs(x), model(x)
        assert found[0].dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted)


class Applies(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def test_constants_and_outputs_that_are_returned_twice_keep_their_places(tmp_path: Path) -> None:
    program = torch.export.export(Applies(lambda x: (x, 3, x + 1, 4.5, x)), (torch.ones(2),))
    for given in (program, saved(program, tmp_path / "m.pt2")):
        found = gptrs_torch.load(given, "ref")(torch.ones(2)).values()
        assert [value.tolist() for value in found] == [[1, 1], 3, [2, 2], 4.5, [1, 1]]


def test_codes_of_training_are_rounded_as_in_torch(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)
        scale, zero = torch.tensor([0.1, 0.25, 0.5]), torch.tensor([0, 1, -2], dtype=torch.int32)
        return y, torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -8, 7)

    x = torch.arange(-30, 30).reshape(4, 3, 5) / 16
    program = torch.export.export(Applies(function), (x,))
    loaded = gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")
    for found, wanted in zip(loaded.module(x), function(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_classes_that_one_hot_lacks_are_refused_and_the_program_has_no_output_for_it() -> None:
    program = torch.export.export(
        Applies(lambda x: nn.functional.one_hot(x, 3)), (torch.ones(2).long(),)
    )
    loaded = gptrs_torch.load(program, "ref")
    for _ in range(2):  # the second call is pinned
        assert loaded.module(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
        with pytest.raises(UsageError, match="Class values must be smaller than num_classes"):
            loaded.module(torch.tensor([2, 3]))
    assert "-> si64[2, 3]" in str(loaded.program(torch.tensor([2, 0])))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[x > 0], "depends on data"),
        (lambda x: torch.nonzero(x), "depends on data.* by a mask"),
        (lambda x: x * x.sum().item(), "depends on data: compute with the tensor itself"),
        (lambda x: torch.complex(x, x).atan(), "complex .* as two tensors"),
        (lambda x: torch.vmap(torch.sum)(x), "not from ATen.*run_decompositions"),
        (
            lambda x: torch.linalg.lu_factor(x @ x.mT)[0],
            "runs `.*check_errors.*` for its effect.*torch.compile",
        ),
    ],
)
def test_what_to_do_about_what_is_refused_is_told(
    function: Any, message: str, tmp_path: Path
) -> None:
    program = torch.export.export(Applies(function), (torch.ones(2, 3),))
    with pytest.raises(UnsupportedError, match=message):
        gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")(torch.ones(2, 3))


def test_operators_of_a_library_are_named_with_it(tmp_path: Path) -> None:
    def double(x: Any) -> Any:
        return torch.ops.gptrs_tests.twice(x)

    def grow(x: Any) -> Any:
        y = x + 1
        torch.ops.gptrs_tests.grow(y)
        return y

    def add(x: Any) -> None:
        x.add_(1)

    with torch.library._scoped_library("gptrs_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
        library.define("grow(Tensor(a!) x) -> ()", tags=torch.Tag.pt2_compliant_tag)
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("grow", add, "CompositeExplicitAutograd")
        for name, function in (("twice", double), ("grow", grow)):
            program = torch.export.export(Applies(function), (torch.ones(2),))
            wanted = rf"`gptrs_tests\.{name}\.default`.* of a library"
            with pytest.raises(UnsupportedError, match=wanted):
                gptrs_torch.load(program, "ref")(torch.ones(2))
            with pytest.raises(UnsupportedError, match="an operator of your own"):
                gptrs_torch.load(saved(program, tmp_path / "m.pt2"), "ref")
