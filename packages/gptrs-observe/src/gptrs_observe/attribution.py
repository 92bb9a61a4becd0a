"""Where the wall time of a profile went: parts that add up to all of it."""

from __future__ import annotations

from collections import defaultdict

from gptrs.quick_dataclass import dataclass
from gptrs_observe.profile import Profile

REST = "not attributed"
_KERNELS = "kernels"
_BETWEEN = "between kernels"
_PROGRAMS = "programs"
_MEANING = {
    _KERNELS: "the kernels of the backend",
    _BETWEEN: "binding the inputs of programs, and what it takes to time each kernel",
    _PROGRAMS: "programs of a backend that does not time its kernels",
    "import": "importing the modules of gptrs",
    "load model": "finding the model, and making its layers",
    "read tokenizer": "reading tokenizer.json",
    "tokenize": "text to tokens",
    "capture": "recording the ops of a step that is new",
    "optimize": "passes of the optimizer",
    "find optimized program": "looking for optimized programs on disk",
    "compile program": "around optimizing and compiling: keys, memory checks",
    "compile": "lowering programs to kernels",
    "compile kernel": "kernels that no cache had",
    "load kernel": "kernels out of the cache on disk",
    "read weights": "weights out of their files",
    "pack weights": "weights into the layout that kernels read",
    "model": "Python between a step and its program: arguments, results",
    "step": "which tokens are next, and where their keys and values go",
    "choose token": "sampling, and tokens to text",
    "write text": "writing the text out",
    REST: "all else: the command itself, its output, the end",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the wall time, in words."""

    name: str
    seconds: float
    meaning: str


def attribution(profile: Profile) -> list[Part]:
    """Return the parts of the wall time, the largest first, what is not attributed last.

    Of the thread that began the profile; each part without the others.
    """
    timed = any(program.kernels for program in profile.programs.values())
    sums: dict[str, float] = defaultdict(float)
    for (kind, name), seconds in profile.timeline.own.items():
        if kind == "kernel":
            sums[_KERNELS] += seconds
        elif kind == "run":
            sums[_BETWEEN if timed else _PROGRAMS] += seconds
        else:
            sums[name] += seconds
    rest = max(0.0, profile.seconds - sum(sums.values()))
    found = [*sorted(sums.items(), key=lambda item: -item[1]), (REST, rest)]
    return [Part(name, seconds, _MEANING.get(name, "")) for name, seconds in found]
