"""The kit of references: a sound one passes, and each planted fault is found by its check."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import gptrs
from gptrs.plugins.references import FunctionReference, Reference
from gptrs_conformance.plugin_kits.references import KIT, ReferenceUnderTest
from gptrs_conformance.plugin_kits.subject import run_kit
from runtime.tiny_gpt2 import save_tiny_gpt2


class Sound(Reference):
    """The model itself, computed again from its own states."""

    def __init__(self, model) -> None:
        self.model = model
        self.calls = 0

    def output(self, inputs):
        self.calls += 1
        return np.array(self.model.forward(np.array(inputs)), np.float32)

    def hidden_states(self, inputs):
        return list(self.model.hidden_states(np.array(inputs)).values())


def out(change):
    """Return a reference whose output is changed."""

    class Changed(Sound):
        def output(self, inputs):
            return change(super().output(inputs), inputs, self)

    return Changed


def states(change):
    class Changed(Sound):
        def hidden_states(self, inputs):
            return change(super().hidden_states(inputs))

    return Changed


def greedy(change):
    class Changed(Sound):
        def greedy(self, prompt, count):
            return change(super().greedy(prompt, count), prompt, self)

    return Changed


def written_over(found, inputs, _):
    inputs[...] = 0
    return found


def kept(found, _, self):
    if not hasattr(self, "memory"):
        self.memory = np.empty_like(found)
    if self.memory.shape != found.shape:
        return found
    self.memory[...] = found
    return self.memory


class Holds(Sound):
    """The arrays of the first call, written over by each later one."""

    held = None

    def hidden_states(self, inputs):
        found = super().hidden_states(inputs)
        self.held = self.held or [np.array(each) for each in found]
        for memory, each in zip(self.held, found, strict=True):
            memory[...] = each
        return self.held


class OtherNames(Sound):
    def modules(self, inputs, names):
        return {
            f"model.{name}.output": np.zeros(1, np.float32) for name in names if "such" not in name
        }


class Integers(Sound):
    def modules(self, inputs, names):
        return {f"{name}.output": np.zeros(1, int) for name in names if "such" not in name}


class Versions(Sound):
    @property
    def versions(self) -> Mapping[str, str]:
        return {"numpy": 2}  # pyright: ignore[reportReturnType]


class KnowsAll(Sound):
    def modules(self, inputs, names):
        return {f"{name}.output": np.zeros(1, np.float32) for name in names}


FAULTS = {
    "agrees with the model": {
        "off by a little": out(lambda y, *_: y + np.float32(0.05)),
        "scaled": out(lambda y, *_: y * np.float32(1.02)),
        "turned": out(lambda y, *_: np.ascontiguousarray(y[:, ::-1])),
        "the last token alone": out(lambda y, *_: y[:, -1:]),
        "in f64": out(lambda y, *_: y.astype(np.float64)),
        "a list": out(lambda y, *_: y.tolist()),
        "NaN": out(lambda y, *_: np.where(y > y.mean(), np.float32(np.nan), y)),
        "probabilities": out(lambda y, *_: np.exp(y) / np.exp(y).sum(-1, keepdims=True)),
        "one text of the batch": out(lambda y, *_: y[:1]),
        "cuts long texts": out(lambda y, *_: y[:, :16]),
        "wrong at one token": out(lambda y, *_: y + np.float32(y.shape[1] == 1)),
        "wrong past a pair": out(lambda y, *_: np.concatenate([y[:2], y[2:] * 0])),
        "one class short": out(lambda y, *_: y[..., :-1]),
    },
    "leaves its inputs alone": {
        "overwrites inputs": out(written_over),
        "keeps its memory": out(kept),
    },
    "repeats itself": {
        "drifts": out(lambda y, _, self: y + np.float32(0.02 * self.calls)),
        "the batch matters": out(lambda y, x, _: y + np.float32(0.5 * (len(x) == 1))),
    },
    "gives the hidden states": {
        "one short": states(lambda found: found[:-1]),
        "wrong": states(lambda found: [*found[:-1], found[-1] + np.float32(0.1)]),
        "in another order": states(lambda found: found[::-1]),
        "memory of its own": Holds,
        "flat": states(lambda found: [each.reshape(-1) for each in found]),
    },
    "chooses greedy tokens": {
        "writes to the prompt": greedy(lambda rows, prompt, _: prompt.fill(1) or rows),
        "one late": greedy(lambda rows, *_: np.roll(rows, 1, axis=0)),
        "one short": greedy(lambda rows, *_: rows[:-1]),
        "probabilities": greedy(lambda rows, *_: np.exp(rows)),
        "the same row": greedy(lambda rows, *_: np.repeat(rows[:1], len(rows), axis=0)),
    },
    "knows modules by their names": {"names of its own": OtherNames, "integers": Integers},
    "names its versions": {"a number": Versions},
    "refuses what it lacks": {"every module": KnowsAll},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_gpt2(tmp_path_factory.mktemp("reference") / "gpt2")


def report_of(make, folder, checks=KIT):
    ref = gptrs.get_backend("ref")
    subject = ReferenceUnderTest(
        make=make, load=lambda backend: gptrs.load_model(folder, backend=backend)
    )
    return run_kit(subject, checks, ref)


def test_a_sound_reference_passes(folder):
    report = report_of(Sound, folder)
    assert report.checks.pop("knows modules by their names") == "refused"
    assert set(report.checks.values()) == {"pass"}, report.failures


def test_a_plain_function_is_enough(folder):
    report = report_of(lambda model: FunctionReference(model.forward), folder)
    assert report.failed == 0, report.failures
    assert report.checks["gives the hidden states"] == "refused"


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("check", "fault"), [(check, fault) for check, found in FAULTS.items() for fault in found]
)
def test_each_fault_is_found_by_its_check(check, fault, folder):
    chosen = [each for each in KIT if each.__name__.replace("_", " ") == check]
    report = report_of(FAULTS[check][fault], folder, chosen)
    assert report.checks[check] == "fail", report.checks


def test_without_a_model_all_is_left_out():
    report = run_kit(ReferenceUnderTest(make=Sound), KIT, gptrs.get_backend("ref"))
    assert set(report.checks.values()) == {"refused"}
