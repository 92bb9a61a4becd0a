"""Compile functions of torch by `torch.compile(backend="gptrs")`; compare them with torch itself.

Each function of `fuzzing.torch_functions` is called with each kind of input: NaN, ties, infinities,
empty and strided tensors, and those of other types. Results, and arguments that change, must be
close to those of torch, in the same types and shapes. Where torch refuses, anything goes; so it
does where the operators that torch takes a function apart into differ from it in torch, too.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree

from fuzzing.torch_functions import FUNCTIONS, KINDS
from gptrs_torch.dynamo import table
from gptrs_torch.partition import keep_layers

TOLERANCES: Final = {
    torch.float64: (1e-6, 1e-9),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (4e-3, 1e-2),
}
"""Relative and absolute, by the type of the first argument; others have (1e-4, 1e-5)."""
KNOWN: Final = {
    "gelu": "of -inf, torch computes -inf * 0",
    "var_mean": "of infinities, torch adds up differences from a running mean: its mean is NaN",
    "resize_antialias": "weights of 0 are multiplied, too: its row and column become NaN",
}
"""Functions that differ for infinities, and why."""
Compiled = Callable[..., Any]


def main(arguments: list[str] | None = None) -> int:
    """Compare as `arguments` say and print what came of it; 1 if a function gave other results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="names of functions; all of them unless given")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of inputs, by commas")
    parser.add_argument("--backends", default="ref,numba", help="backends of gptrs, by commas")
    parser.add_argument("--seed", type=int, default=0, help="of the numbers")
    options = parser.parse_args(arguments)
    differ = False
    for backend in options.backends.split(","):
        started, flaws = time.monotonic(), dict[str, str]()
        names = options.functions or list(FUNCTIONS)
        for name in names:
            found = differences(name, options.kinds.split(","), backend, options.seed)
            flaws |= found
            for case, flaw in found.items():
                print(f"{case} on {backend}: {flaw}", flush=True)
        seconds = time.monotonic() - started
        print(f"{len(names):8} functions of torch on {backend} in {seconds:.0f} s", flush=True)
        print(f"{len(flaws):8} differ", flush=True)
        differ = differ or bool(flaws)
    return 1 if differ else 0


def differences(name: str, kinds: Iterable[str], backend: str, seed: int) -> dict[str, str]:
    """Return what differs from torch for a function, by its name and the kind of its inputs."""
    function, shapes = FUNCTIONS[name]
    torch._dynamo.reset()
    fast = torch.compile(function, backend="gptrs", options={"backend": backend})
    apart = torch.compile(function, backend=taken_apart)
    found: dict[str, str] = {}
    every_call = torch._dynamo.config.patch(recompile_limit=64)  # torch runs it itself past that
    with warnings.catch_warnings(), torch.no_grad(), every_call:
        warnings.simplefilter("ignore")
        for kind in kinds:
            generator = torch.Generator().manual_seed(seed)
            given = [KINDS[kind](shape, generator) for shape in shapes]
            flaw = difference(function, fast, given)
            if name in KNOWN and kind in ("infinities", "extremes"):
                continue
            if flaw is not None and difference(apart, fast, given) is not None:
                found[f"{name} of {kind}"] = flaw
    return found


def taken_apart(module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
    """Return what runs a graph in torch, by the operators that gptrs-torch converts."""

    def as_it_is(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        del examples
        return make_boxed_func(graph.forward)

    keep_layers(module)
    return aot_autograd(fw_compiler=as_it_is, inference_compiler=as_it_is, decompositions=table())(
        module, inputs
    )


def difference(function: Compiled, fast: Compiled, given: Sequence[torch.Tensor]) -> str | None:
    """Return how the results for these arguments differ; None if they do not."""
    mine, theirs = _copies(given), _copies(given)
    try:
        expected = function(*theirs)
    except Exception:  # whatever it refuses
        return None
    try:
        results = fast(*mine)
    except Exception as error:  # whatever it is, torch has none
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    relative, absolute = TOLERANCES.get(given[0].dtype, (1e-4, 1e-5))
    try:
        found, wanted = pytree.tree_leaves((results, mine)), pytree.tree_leaves((expected, theirs))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=relative, atol=absolute, equal_nan=True)
    except (AssertionError, ValueError) as error:
        return " ".join(str(error).split())[:200]
    return None


def _copies(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of the same elements that lie in memory as these do."""
    return [
        each[:1].clone().expand(each.shape)
        if 0 in each.stride()
        else torch.empty_strided(each.shape, each.stride(), dtype=each.dtype).copy_(each)
        for each in given
    ]


if __name__ == "__main__":
    sys.exit(main())
