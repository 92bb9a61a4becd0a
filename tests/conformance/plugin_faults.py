"""Plugins with one fault each, and the parts that they share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

import gptrs
from gptrs import functionals as F
from gptrs.api import ModelError, UnsupportedError
from gptrs.api.importers import ModelInput, atomic_file
from gptrs.api.programs import CompileEnd, ExecutionTraceSink, RunEnd, RunStart, dtypes


class Lines:
    """y = a * x + b: the model of the importer below."""

    def __init__(self, a, b, backend):
        self.a, self.b, self.backend = np.float32(a), np.float32(b), backend
        self.inputs = {
            name: ModelInput(name, dtypes.f32, ("rows", 2)) for name in ("x", "z")
        }  # fmt: skip
        self.outputs = ("y",)

    def __call__(self, **arrays):
        for name in arrays:
            if name not in self.inputs:
                raise gptrs.api.UsageError(f"no input `{name}`")
        missing = [name for name in self.inputs if name not in arrays]
        if missing:
            raise gptrs.api.UsageError(f"`{missing[0]}` is missing")
        x, z = (self.inputs[name].array(arrays[name]) for name in ("x", "z"))
        if x.shape != z.shape:
            raise gptrs.api.UsageError(f"x has {x.shape}, z has {z.shape}")
        with gptrs.use_backend(self.backend):
            return {"y": self.computed(gptrs.tensor(x), gptrs.tensor(z)).numpy()}

    def computed(self, x, z):
        return x * self.a + z * self.b


def read_lines(path, backend, model=Lines):
    """Read `{"a": 2, "b": 3}`."""
    try:
        fields = json.loads(path.read_bytes())
        return model(float(fields["a"]), float(fields["b"]), backend)
    except (OSError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"`{path.name}` is no line") from error


def write_line(folder: Path) -> Path:
    path = folder / "sample.line"
    path.write_text('{"a": 2, "b": 3}')
    return path


def line_in_numpy(inputs):
    return {"y": 2 * inputs["x"] + 3 * inputs["z"]}


def _lines(**members) -> Callable[..., object]:
    """An importer whose model has other members."""
    kind = type("Faulty", (Lines,), members)
    return lambda path, backend: read_lines(path, backend, kind)


def _unguarded(path, backend):
    fields = json.loads(path.read_bytes())
    return Lines(fields["a"], fields["b"], backend)


def _any_type(self, **arrays):
    return {"y": (arrays["x"] * self.a + arrays["z"] * self.b).astype(np.float32)}


def _cached(self, **arrays):
    rows = self.__dict__.setdefault("rows", len(arrays["x"]))
    found = Lines.__call__(self, **arrays)["y"]
    return {"y": np.resize(found, (rows, 2))}


def _lenient(path, backend):
    """What is cut off counts as zeros."""
    try:
        text = path.read_text()
        numbers = [float(word) for word in text.replace(":", " ").replace("}", " ").split()
                   if word.strip(",").isdigit()]  # fmt: skip
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise ModelError("no line") from error
    if not text.startswith('{"a"'):
        raise ModelError("no line")
    return Lines(*[*numbers, 0, 0][:2], backend)


def _many_lines(path, backend):
    try:
        return read_lines(path, backend)
    except ModelError as error:
        raise ModelError("no line\n" * 3) from error


def _grows(self, **arrays):
    self.a += 1
    return Lines.__call__(self, **arrays)


def _other_backend(path, backend):
    return read_lines(path, gptrs.get_backend("numba"))


def _largest(self, **arrays):
    """A program kept for the largest size cuts what is longer, and pads what is shorter."""
    found = Lines.__call__(self, **arrays)["y"]
    self.rows = max(self.__dict__.get("rows", 0), len(found))
    return {"y": np.pad(found, ((0, self.rows - len(found)), (0, 0)))}


def _by_folder(path, backend):
    model = read_lines(path, backend)
    model.a += "%" in path.parent.name
    return model


def _in_ascii(path, backend):
    str(path.parent.name).encode("ascii")
    return read_lines(path, backend)


def _tidies(path, backend):
    model = read_lines(path, backend)
    path.write_text(path.read_text() + " ")
    return model


def _in_place(self, **arrays):
    arrays["x"] *= 2
    return Lines.__call__(self, **arrays)


def _any_names(self, **arrays):
    return Lines.__call__(self, **{name: arrays[name] for name in self.inputs})


def _zeros(self, **arrays):
    rows = next(iter(arrays.values()))
    given = {name: arrays.get(name, np.zeros_like(rows)) for name in {**self.inputs, **arrays}}
    return Lines.__call__(self, **given)


def _one_buffer(self, **arrays):
    """The outputs of a size share their memory."""
    found = Lines.__call__(self, **arrays)["y"]
    kept = self.__dict__.setdefault("kept", {}).setdefault(found.shape, np.empty_like(found))
    np.copyto(kept, found)
    return {"y": kept}


def _by_memory(self, **arrays):
    """Reads the elements of `x` as they lie in memory."""
    if "x" in arrays and arrays["x"].shape[1:] == (2,):
        arrays["x"] = np.ravel(arrays["x"], "K").reshape(arrays["x"].shape)
    return Lines.__call__(self, **arrays)


def _first_rows(self, **arrays):
    """Rows past 64 are lost, as of a kernel with a fixed block."""
    found = Lines.__call__(self, **arrays)["y"]
    return {"y": np.where(np.arange(len(found))[:, None] < 64, found, 0)}


def _given(change):
    """Inputs of the model are changed before they are checked."""
    return lambda self, **arrays: Lines.__call__(
        self, **{n: change(each) if n in self.inputs else each for n, each in arrays.items()}
    )


def _after(act):
    def read(path, backend):
        model = read_lines(path, backend)
        act(path)
        return model

    return read


def _narrow(array):
    return array.astype(np.float32) if array.dtype.itemsize < 8 else array


IMPORTERS = {
    "keeps earlier results": {"one buffer": _lines(__call__=_one_buffer)},
    "takes arrays in any memory order": {"as it lies": _lines(__call__=_by_memory)},
    "leaves the process alone": {
        "prints": _after(print),
        "a file beside": _after(lambda path: path.with_suffix(".cache").touch()),
        "seeds NumPy": _after(lambda path: np.random.seed(0)),
        "NumPy's errors": _after(lambda path: np.seterr(all="ignore")),
    },
    "reads the same from every folder": {"the folder": _by_folder, "in ASCII": _in_ascii},
    "refuses what is no model": {
        "errors of Python": _unguarded,
        "messages of many lines": _many_lines,
        "no check": lambda path, backend: Lines(1, 2, backend),
    },
    "refuses truncated files": {"zeros for what is cut off": _lenient},
    "survives damaged files": {"no guard": _unguarded},
    "runs all free sizes": {
        "the first size stays": _lines(__call__=_cached),
        "the largest size stays": _lines(__call__=_largest),
        "by the rows": _lines(
            computed=lambda self, x, z: x * self.a + z * (self.b / (1 // x.shape[0] or 1))
        ),
    },
    "gives the values of the reference": {
        "swapped": _lines(computed=lambda self, x, z: z * self.a + x * self.b),
        "the first rows": _lines(__call__=_first_rows),
        "one left out": _lines(computed=lambda self, x, z: x * self.a),
        "in f64": _lines(
            __call__=lambda self, **a: {"y": Lines.__call__(self, **a)["y"].astype(np.float64)}
        ),
    },
    "refuses inputs that do not fit": {
        "any type": _lines(__call__=_any_type),
        "unknown ones": _lines(__call__=_any_names),
        "narrower types": _lines(__call__=_given(_narrow)),
        "an axis less": _lines(__call__=_given(np.atleast_2d)),
        "size 1 for more": _lines(
            __call__=_given(lambda x: np.repeat(x, 2, 1) if x.shape[1:] == (1,) else x)
        ),
        "zeros for missing ones": _lines(__call__=_zeros),
    },
    "requires equal sizes under one name": {
        "broadcasts": _lines(
            __call__=lambda self, **a: (
                Lines.__call__(self, **{**a, "z": np.resize(a["z"], np.shape(a["x"]))})
                if {"x", "z"} <= a.keys() else Lines.__call__(self, **a)
            )
        )
    },
    "runs on its backend": {"another backend": _other_backend},
    "reads its sample": {
        "state": _lines(__call__=_grows),
        "changes its inputs": _lines(__call__=_in_place),
        "changes the file": _tidies,
        "a list": _lines(__call__=lambda self, **a: [a["x"]]),
        "other names": _lines(__call__=lambda self, **a: {"z": a["x"]}),
        "no model": lambda path, backend: {"a": 1},
    },
}  # fmt: skip


# Exporters: a format of words, and what reads it.

WORDS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "tanh": np.tanh}


def document(model, words=WORDS, weights=True):
    """The document of a program; UnsupportedError for an op that the format lacks."""
    body = model.program.main.body
    names = [each.name for each in (*model.inputs, *model.weights)]
    known = dict(zip(body.params, names, strict=True))
    steps = []
    for position, step in enumerate(body.instructions):
        if step.op.name not in words:
            raise UnsupportedError(f"the format lacks `{step.op.name}`")
        known[step.result] = f"\0{position}"
        steps.append([known[step.result], step.op.name, *(known[each] for each in step.operands)])
    return {
        "inputs": {each.name: [str(each.dtype), *each.shape] for each in model.inputs},
        "weights": {each.name: each.whole().tolist() if weights else 0 for each in model.weights},
        "steps": steps,
        "outputs": dict(zip(model.outputs, [known[v] for v in body.results], strict=True)),
    }


def write_words(model, path, change=lambda found: found):
    """Write a program, whole or not at all."""
    text = json.dumps(change(document(model)))
    with atomic_file(path, ModelError) as file:
        file.write(text.encode())
    return [path]


def read_words(path, backend):
    """The model in a file, run by NumPy."""
    found = json.loads(path.read_text())

    def run(**arrays):
        values = {name: np.float32(each) for name, each in found["weights"].items()} | arrays
        for name, word, *operands in found["steps"]:
            values[name] = WORDS[word](*(values[each] for each in operands))
        return {name: values[value] for name, value in found["outputs"].items()}

    inputs = {
        name: ModelInput(name, getattr(dtypes, dtype), tuple(shape))
        for name, (dtype, *shape) in found["inputs"].items()
    }
    # The protocol wants a class with `__call__`.
    kind = type("Words", (SimpleNamespace,), {"__call__": lambda self, **given: run(**given)})
    return kind(inputs=inputs, outputs=tuple(found["outputs"]))


def _straight(model, path):
    """Opens the file before it knows that it can write it."""
    with path.open("wb") as file:
        file.write(b"{")
        text = json.dumps(document(model))
        file.seek(0)
        file.write(text.encode())
    return [path]


def _nameless(model, path):
    try:
        return write_words(model, path)
    except UnsupportedError as error:
        raise UnsupportedError("this program cannot be written") from error


def _leftover(model, path):
    path.with_suffix(".tmp").write_text("left")
    return write_words(model, path)


def _first_part(model, path):
    cut = tuple(
        replace(each, parts=lambda each=each: [next(iter(each.parts()))] * 4)
        if len(list(each.parts())) == 4 else each
        for each in model.weights
    )  # fmt: skip
    return write_words(replace(model, weights=cut), path)


def _parts_by_memory(model, path):
    """Writes the elements of parts as they lie in memory."""
    weights = tuple(
        replace(each, parts=lambda each=each: [np.ravel(part, "K").reshape(part.shape)
                                               for part in each.parts()])
        for each in model.weights
    )  # fmt: skip
    return write_words(replace(model, weights=weights), path)


def _finite(found):
    return {**found, "weights": {name: np.nan_to_num(np.float32(each)).tolist()
                                 for name, each in found["weights"].items()}}  # fmt: skip


def _six_decimals(found):
    return {**found, "weights": {name: np.round(each, 6).tolist()
                                 for name, each in found["weights"].items()}}  # fmt: skip


def _turned(found):
    steps = [[name, word, *reversed(rest)] for name, word, *rest in found["steps"]]
    return {**found, "steps": steps}


def _fixed(found):
    inputs = {name: [dtype, *(3 if isinstance(n, str) else n for n in shape)]
              for name, (dtype, *shape) in found["inputs"].items()}  # fmt: skip
    return {**found, "inputs": inputs}


def _floats(found):
    return {**found, "inputs": {name: ["f32", *shape] for name, (_, *shape)
                                in found["inputs"].items()}}  # fmt: skip


def _to_stem(model, path):
    """The first dot of a name begins the suffix."""
    return write_words(model, path.with_name(path.name.split(".")[0] + path.suffix))


def _of_path(model, path):
    return write_words(model, path, lambda found: {**found, "path": str(path)})


def _four_digits(found):
    weights = {name: np.float32(np.char.mod("%.4g", each)).tolist()
               for name, each in found["weights"].items()}  # fmt: skip
    return {**found, "weights": weights}


def _sorted(found):
    return {**found, "inputs": dict(sorted(found["inputs"].items()))}


def _swapped(found):
    names, values = list(found["outputs"]), list(found["outputs"].values())
    return {**found, "outputs": dict(zip(names, reversed(values), strict=True))}


def _half(found):
    return {**found, "weights": {name: np.float16(each).tolist()
                                 for name, each in found["weights"].items()}}  # fmt: skip


def _clean_names(found):
    text = json.dumps(found, ensure_ascii=False)
    for letter in ". /:":
        text = text.replace(f"a{letter}b", "a_b")
    return json.loads(text)


def _ignoring(model, path):
    try:
        return write_words(model, path)
    except gptrs.api.CheckpointError:
        return write_words(replace(model, weights=model.weights[:0]), path)


def _python_error(model, path):
    found = document(model)
    path.write_text(json.dumps(found))
    return [path]


def _changed(change):
    return lambda model, path: write_words(model, path, change)


def _removes_first(model, path):
    path.unlink(missing_ok=True)
    return write_words(model, path)


def _another_error(model, path):
    try:
        return write_words(model, path)
    except UnsupportedError as error:
        raise ModelError(error.message) from error


def _transposed(found):
    weights = {name: np.transpose(each).tolist() if np.ndim(each) == 2 else each[::-1]
               for name, each in found["weights"].items()}  # fmt: skip
    return {**found, "weights": weights}


def _refuses_all(model, path):
    raise UnsupportedError(f"no `{model.program.main.body.instructions[0].op.name}`")


EXPORTERS = {
    "writes programs": {
        "a text": lambda model, path: str(*write_words(model, path)),
        "nothing at all": _refuses_all,
        "no list": lambda model, path: write_words(model, path) and None,
        "other paths": lambda model, path: write_words(model, path) and [path.parent / "x"],
        "a file left over": _leftover,
        "another name": _to_stem,
        "an empty file": lambda model, path: path.touch() or [path],
    },
    "writes the same bytes again": {
        "the time": _changed(lambda found: {**found, "time": time.perf_counter_ns()}),
        "its path": _of_path,
    },
    "refuses by name before it writes": {
        "no name": _nameless,
        "writes first": _straight,
        "another error": _another_error,
    },
    "leaves the process alone": {
        "prints": lambda model, path: print(path) or write_words(model, path),
        "the current folder": lambda model, path: os.chdir(path.parent) or write_words(model, path),
    },
    "writes weights in parts": {"the first part": _first_part, "as it lies": _parts_by_memory},
    "brings numbers of any size back": {
        "finite ones alone": _changed(_finite),
        "six decimals": _changed(_six_decimals),
    },
    "leaves the old file when it fails": {
        "not atomic": _straight,
        "removes first": _removes_first,
        "ignores it": _ignoring,
    },
    "reports where it cannot write": {"errors of Python": _python_error},
    "comes back the same": {
        "operands in reverse": _changed(_turned),
        "sizes fixed": _changed(_fixed),
        "floats alone": _changed(_floats),
        "other outputs": _changed(
            lambda found: {
                **found,
                "outputs": {f"{name}_0": each for name, each in found["outputs"].items()},
            }
        ),
    },
    "brings weights back": {
        "outputs swapped": _changed(_swapped),
        "rounded": _changed(_half),
        "four digits": _changed(_four_digits),
        "reversed": _changed(_transposed),
    },
    "takes awkward names": {"cleaned": _changed(_clean_names), "sorted": _changed(_sorted)},
}


# Functionals: implementations of `silu`.


def silu(x):
    half = x * 0.5
    return half * (F.tanh(half) + 1)


def why_not(x):
    return f"it takes f32 and wider floats, got {x.type}" if x.dtype.bits < 32 else None


def _other_slope(x):
    return F.stop_gradient(silu(x))


def _first_elements(x):
    """Elements past 64 are lost, as of a kernel with a fixed block."""
    kept = F.cast(F.arange(x.shape[-1]) < 64, x.dtype) if x.shape else 1.0
    return silu(x) * kept


FUNCTIONALS = {
    "has the parameters of the functional": {
        "another name": (lambda y: silu(y), None),
        "one more": (lambda x, beta=1.0: silu(x), None),
        "of declines": (silu, lambda y: None),
        "by name alone": (lambda *, x: silu(x), None),
    },
    "gives the values of numpy": {
        "the sigmoid": (lambda x: F.sigmoid(x), None),
        "not quite": (lambda x: silu(x) * 1.001, None),
        "through f16": (lambda x: silu(x.astype("f16")).astype(x.dtype), None),
        "declines all": (silu, lambda x: "never"),
        "reads the values": (lambda x: gptrs.tensor(x.numpy()) * F.sigmoid(x), why_not),
    },
    "keeps types and shapes": {
        "always f32": (lambda x: silu(x.astype("f32")), None),
        "an axis more": (lambda x: F.reshape(silu(x), (1, *x.shape)), None),
        "an array": (lambda x: silu(x).numpy(), why_not),
    },
    "is right far from zero": {
        "overflows": (lambda x: x * F.exp(x) / (1 + F.exp(x)), why_not),
    },
    "takes other sizes": {
        "rank 0": (lambda x: silu(x) if x.shape else x, why_not),
        "the first elements": (_first_elements, why_not),
        "an axis at least": (lambda x: silu(F.reshape(x, (-1, x.shape[-1]))), why_not),
    },
    "keeps the digits of f64": {
        "in f32": (lambda x: silu(x.astype("f32")).astype(x.dtype), why_not),
    },
    "leaves the process alone": {"prints": (lambda x: print(x.type) or silu(x), why_not)},
    "takes free sizes": {
        "needs a number": (lambda x: silu(x) + F.zeros((int(x.shape[0] > 99),), x.dtype), why_not),
        "row by row": (lambda x: F.stack([silu(x[row]) for row in range(x.shape[0])]), why_not),
    },
    "has the right derivative": {
        "none": (_other_slope, why_not),
        "of a factor alone": (lambda x: x * F.stop_gradient(F.sigmoid(x)), why_not),
        "doubled": (lambda x: silu(x) * 2 - F.stop_gradient(silu(x)), why_not),
    },
    "says why it declines": {
        "True": (silu, lambda x: x.dtype.bits < 32),
        "raises": (silu, lambda x: 1 // 0),
        "an empty reason": (silu, lambda x: " " if x.dtype.bits < 32 else None),
        "two lines": (silu, lambda x: "no\nno" if x.dtype.bits < 32 else None),
    },
}  # fmt: skip


# Trace sinks.


class Timing(ExecutionTraceSink):
    """Adds up the seconds of runs."""

    def __init__(self):
        self.seconds = {}

    def after_run(self, event: RunEnd) -> None:
        self.seconds[event.number] = self.seconds.get(event.number, 0) + event.seconds


def _sink(**methods):
    return type("Faulty", (Timing,), methods)


def _prints(self, event: RunStart) -> None:
    print(event.number)


def _only_known(self, event: RunEnd) -> None:
    self.seconds[event.number] += event.seconds


def _only_known_kernels(self, event) -> None:
    self.seconds[event.number] += event.run.seconds


def _needs_program(self, event: CompileEnd) -> None:
    self.seconds[event.number] = len(event.optimized.main.body.instructions)


def _writes(self, event: RunStart) -> None:
    for array in event.read():
        if array is not None:
            array.setflags(write=True)
            array[...] = 7


def _stack_start(self, event: RunStart) -> None:
    self.__dict__.setdefault("open", []).append(event.number)


def _stack_end(self, event: RunEnd) -> None:
    assert self.open.pop() == event.number, "another run"


_ONE = []


class _Single(Timing):
    def __init__(self):
        super().__init__()
        if _ONE:
            raise RuntimeError("there is one already")
        _ONE.append(self)


def _unlocked_start(self, event: RunStart) -> None:
    self.current = event.number
    time.sleep(1e-4)


def _unlocked_end(self, event: RunEnd) -> None:
    if self.current != event.number or self.__dict__.setdefault("busy", 0):
        raise RuntimeError("two at once")
    self.busy = 1
    time.sleep(1e-4)
    self.busy = 0


def _raises_in(method: str, act=None):
    """A sink that fails at one event."""

    def listen(self, event):
        if act is None:
            raise SystemExit(3)
        act(event)

    return _sink(**{method: listen})


class _Shared(Timing):
    """Knows the runs that go on, of all sinks of its kind."""

    running: ClassVar[set[int]] = set()

    def before_run(self, event: RunStart) -> None:
        assert event.number not in self.running
        self.running.add(event.number)

    def after_run(self, event: RunEnd) -> None:
        self.running.discard(event.number)


class _Balanced(Timing):
    """Expects the end of each run once."""

    count = 0

    def before_run(self, event: RunStart) -> None:
        self.count += 1

    def after_run(self, event: RunEnd) -> None:
        self.count -= 1
        if self.count < 0:
            raise RuntimeError("a run that never began")


class _Alone(Timing):
    """Refuses a run within another one."""

    current = None

    def before_run(self, event: RunStart) -> None:
        if self.current is not None:
            raise RuntimeError("two at once")
        self.current = event.number

    def after_run(self, event: RunEnd) -> None:
        self.current = None


SINKS = {
    "hears a program from its start": {
        "ends the process": _raises_in("after_program"),
        "an op that few programs have": _raises_in(
            "before_program",
            lambda event: {"add": 1}[event.program.main.body.instructions[0].op.name],
        ),
        "a method that is none": _sink(before_program=None),
        "raises": _sink(before_run=lambda self, event: 1 / 0),
        "runs programs": _sink(before_run=lambda self, event: (gptrs.tensor([1.0]) * 2).numpy()),
        "wrong parameters": _sink(after_pass=lambda self: None),
        "no sink": dict,
    },
    "comes after programs were compiled": {
        "unknown numbers": _sink(after_run=_only_known),
        "unknown kernels": _sink(after_kernel=_only_known_kernels),
    },
    "hears failures": {
        "no program": _sink(after_program=_needs_program),
        "divides by the seconds": _raises_in("after_run", lambda event: 1 / event.seconds),
        "divides by those of a compilation": _raises_in(
            "after_program", lambda event: 1 / event.seconds
        ),
        "reads weights": _raises_in(
            "before_run", lambda event: [array.nbytes for array in event.read()]
        ),
        "no seconds of a choice": _raises_in("after_choice", lambda event: min(event.seconds)),
    },
    "changes no result": {"writes to inputs": _sink(before_run=_writes)},
    "hears events in any nesting": {
        "counts ends": _Balanced,
        "one at a time": _Alone,
        "a stack": _sink(before_run=_stack_start, after_run=_stack_end),
    },
    "hears several threads": {
        "no lock": _sink(before_run=_unlocked_start, after_run=_unlocked_end)
    },
    "leaves standard output alone": {
        "prints": _sink(before_run=_prints),
        "an empty line": _sink(after_run=lambda self, event: sys.stdout.write("\n")),
        "as libraries in C do": _sink(after_run=lambda self, event: os.write(1, b"x\n")),
        "NumPy's errors": _sink(before_run=lambda self, event: np.seterr(over="raise")),
    },
    "serves several of its kind": {"one only": _Single, "shared state": _Shared},
}
