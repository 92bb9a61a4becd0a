"""Captures on disk: another process calls no model code, and none is used that is not the same."""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

import gptrs
from gptrs import functionals as F
from gptrs.api.models import Module, Params
from gptrs.capture.caching import optimized_programs as programs
from gptrs.capture.caching import program_key, source_identity
from gptrs.capture.jitting.jit import Jitted
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.param_source import FileSource
from gptrs.ir.dtypes import DType
from gptrs.nn.captured_once import closure_of

SOURCE = """
import itertools
import os
from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.api.models import Module
from NAME import factors

CALLS = []
LARGEST = 6


@dataclass(frozen=True)
class Config:
    layers: int = 3
    scale: float = 0.5


class Layer(Module):
    def __init__(self, weight, config):
        self.weight, self.scale, self.activation = weight, config.scale, F.tanh

    def __call__(self, x):
        x = F.linear(F.cast(x, self.weight.dtype), self.weight) * self.scale * factors.FACTOR
        x = self.activation(x)
        return F.minimum(x, LARGEST)


class Network(Module):
    def __init__(self, weights, config):
        self.config = config
        self.layers = [Layer(weight, config) for weight in weights]

    def run(self, x):
        CALLS.append(x)
        for layer in self.layers:
            x = layer(x)
        return x, {"last": x + 1, "rows": [x * 2]}
"""
"""A package, called NAME."""

_numbers = itertools.count()
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


class Network:
    """The package of a model, and runs of it, each as in a process of its own."""

    def __init__(self, folder, patch):
        self.folder = folder
        self.name = f"kept_network_{next(_numbers)}"
        self.patch = patch
        self.backend = gptrs.get_backend("ref")
        (folder / self.name).mkdir()
        self.write("__init__", SOURCE.replace("NAME", self.name))
        self.write("factors", "FACTOR = 2.0\n")
        rng = np.random.default_rng(0)
        weights = {str(i): rng.standard_normal((4, 4)).astype(np.float32) for i in range(4)}
        save_file(weights, folder / "weights.safetensors")

    def write(self, module, text):
        (self.folder / self.name / f"{module}.py").write_text(text)

    def source(self, module="__init__"):
        return (self.folder / self.name / f"{module}.py").read_text()

    def imported(self):
        """Import the package as a new process would."""
        for name in [name for name in sys.modules if name.partition(".")[0] == self.name]:
            del sys.modules[name]
        importlib.invalidate_caches()
        source_identity._package_digest.cache_clear()
        self.patch.setattr(source_identity, "BEGAN_NS", time.time_ns() + 10**12)
        self.patch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module(self.name)

    def model(self, dtype="f32", **config):
        module = self.imported()
        settings = module.Config(**config)
        source = FileSource.of_file(self.folder / "weights.safetensors")
        params = Params(source, backend=self.backend, dtype=gptrs.ir.dtypes.by_name(dtype))
        weights = [params.tensor(str(layer), (4, 4)) for layer in range(settings.layers)]
        return module.Network(weights, settings)

    def run(self, model=None, dynamic=None, x=X, **settings):
        """Run a model: whether its code was called, and its results."""
        model = model or self.model(**settings)
        step = Jitted(model.run, dynamic=dynamic or {}, describe=partial(closure_of, model.run))
        calls = sys.modules[self.name].CALLS
        before = len(calls)
        with gptrs.use_backend(self.backend):
            result, named = step(Tensor.of_array(x))
        values = [result, named["last"], *named["rows"]]
        return len(calls) > before, b"".join(each.numpy().tobytes() for each in values)


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("gptrs.capture.compilation.SMALLEST_KEPT", 1)
    programs.optimized_programs.cache_clear()
    yield Network(tmp_path, monkeypatch)
    programs.optimized_programs.cache_clear()


def test_another_process_calls_no_code_of_the_model(network):
    called, result = network.run()
    assert called
    assert network.run() == (False, result)


def test_weights_may_have_other_values(network):
    network.run()
    weights = {str(i): np.full((4, 4), i + 1, np.float32) for i in range(4)}
    save_file(weights, network.folder / "weights.safetensors")
    called, result = network.run()
    assert not called
    programs.optimized_programs().clear()
    assert network.run() == (True, result)


def test_one_capture_serves_the_sizes_of_its_guards(network):
    dynamic = {"x": ("N", None)}
    assert network.run(dynamic=dynamic)[0]
    longer = np.concatenate([X, X + 1])
    called, result = network.run(dynamic=dynamic, x=longer)
    assert not called
    assert result == network.run(x=longer)[1]


@pytest.mark.parametrize(
    "settings", [{"layers": 2}, {"scale": 0.25}, {"dtype": "bf16"}, {"x": X[:1]}], ids=str
)
def test_other_attributes_and_types_are_captured_anew(network, settings):
    network.run()
    called, result = network.run(**settings)
    assert called
    assert network.run(**settings) == (False, result)


@pytest.mark.parametrize("module", ["__init__", "factors"])
def test_other_source_is_captured_anew(network, module):
    _, before = network.run()
    network.write(module, network.source(module).replace("2.0", "3.0").replace("F.tanh", "F.relu"))
    called, result = network.run()
    assert called
    assert result != before


def test_source_that_changed_after_it_was_imported_is_not_kept(network):
    model = network.model()
    network.patch.setattr(source_identity, "BEGAN_NS", time.time_ns() - 10**12)
    source_identity._package_digest.cache_clear()
    assert network.run(model)[0]
    assert network.run()[0], "nothing was kept"


def test_modules_of_other_packages_count(network):
    other = network.folder / "kept_other.py"
    other.write_text("ANY = 1\n")
    module = importlib.import_module("kept_other")
    try:
        network.run()
        assert not network.run()[0]
        other.write_text("ANY = 2\n")
        assert not network.run()[0], "here it is what it was"
        importlib.reload(module)
        assert network.run()[0]
    finally:
        del sys.modules["kept_other"]


def test_the_sources_of_the_backend_count(network):
    network.run()
    network.patch.setattr(program_key, "packages_digest", lambda names: "another version")
    assert network.run()[0]


def test_overrides_and_settings_of_passes_count(network):
    network.run()
    with gptrs.overrides({"tanh": "portable"}):
        assert network.run()[0]
        assert network.run()[0], "captures with overrides are not kept"
    network.patch.setenv("GPTRS_OPT_POST_ITERS", "1")
    assert network.run()[0]


def test_another_backend_captures_anew(network):
    class Other(type(network.backend)):
        pass

    network.run()
    network.backend = Other()
    assert network.run()[0]
    assert network.run()[0], "a class that other processes do not find has no identity"


@pytest.mark.parametrize("kind", ["method", "constant", "instance"])
def test_what_is_put_in_the_place_of_code_counts(network, kind):
    _, plain = network.run()
    model = network.model()
    module = sys.modules[network.name]
    if kind == "method":
        module.Layer.__call__ = lambda self, x: F.relu(x)
    elif kind == "constant":
        vars(module)["LARGEST"] = 0.125
    else:
        model.layers[0].activation = lambda x: F.relu(x)
    called, result = network.run(model)
    assert called
    assert result != plain
    assert network.run()[1] == plain


def test_a_capture_that_reads_a_weight_is_not_kept(network):
    text = network.source().replace("CALLS.append(x)", "CALLS.append(LIMIT.item())")
    network.write("__init__", f"import gptrs\nLIMIT = gptrs.tensor(3.0)\n{text}")
    assert network.run()[0]
    assert network.run()[0]


def test_a_capture_that_binds_a_tensor_of_nobody_is_not_kept(network):
    text = network.source().replace("x = layer(x)", "x = layer(x) + LIMIT")
    network.write("__init__", f"import gptrs\nLIMIT = gptrs.tensor(3.0)\n{text}")
    assert network.run()[0]
    assert network.run()[0]


class Owner(Module):
    def __init__(self, part):
        self.part = part

    def run(self, x):
        return x


def closing_over(value):
    return lambda x: x + value


@pytest.mark.parametrize(
    "part",
    [object(), {1, 2}, closing_over(1), iter(())],
    ids=["object", "set", "closure", "iterator"],
)
def test_what_nothing_identifies_has_no_closure(part):
    assert closure_of(Owner(part).run) is None
    assert closure_of(closing_over(1)) is None


def test_closures_tell_values_and_sameness_apart():
    one, other = gptrs.tensor([1.0]), gptrs.tensor([1.0])
    parts = [
        0, 0.0, -0.0, False, "0", b"0", None, (0,), [0], {0: 0}, [one, one], [one, other],
        one + 1, one + 2, one - 1, one + one, one + other, [one + 1, one + 1], [one + 1, other + 1],
        gptrs.tensor([1]), F.tanh, F.relu, lambda x: x, lambda x: -x, DType, Owner(0), Owner(1),
        gptrs.ir.dtypes.f32, gptrs.ir.dtypes.bf16,
    ]  # fmt: skip
    texts = [closure_of(Owner(part).run).text for part in parts]
    assert len(set(texts)) == len(parts)
