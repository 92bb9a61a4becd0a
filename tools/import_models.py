"""Runs tiny models of torch by all ways in, and writes the table of them into `docs/import.md`.

    python tools/import_models.py [NAME ...] [--route ONNX] [--backend ref] [--write]

Each model of `model_zoo` goes through torch.compile, torch.export and an ONNX file of torch's
exporter (which needs onnxscript); the results are compared with torch's. Tests run a part of this.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gptrs_onnx
import gptrs_torch
from model_zoo import MODELS

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
PAGE = Path(__file__).parents[1] / "docs" / "import.md"
TITLE = "## Tested models"
Arguments = Mapping[str, Any]
Route = Callable[[Any, Arguments, str], Any]
RTOL, ATOL = 1e-3, 1e-4
"""Most that a result may be off: relative, and as a share of its largest element."""
REFUSED: Mapping[tuple[str, str], str] = {}
"""Models that do not pass by a way, and why."""


def compiled(model: Any, given: Arguments, backend: str) -> Any:
    """Return the results of `torch.compile`; recurrent layers are ours, too."""
    torch._dynamo.reset()
    with torch.inference_mode(), torch._dynamo.config.patch(allow_rnn=True):
        return torch.compile(model, backend="gptrs", options={"backend": backend})(**given)


def exported(model: Any, given: Arguments, backend: str) -> Any:
    """Return the results of a program of `torch.export`."""
    with torch.no_grad():
        program = torch.export.export(model, (), dict(given), strict=False)
        return gptrs_torch.load(program, backend).module(**given)


def through_onnx(model: Any, given: Arguments, backend: str) -> Any:
    """Return the results of the ONNX model that torch's exporter makes."""
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        made = torch.onnx.export(model, (), kwargs=dict(given), dynamo=True, verbose=False)
    read = gptrs_onnx.from_proto(made.model_proto, backend)
    found = read(**{name: given[name].numpy() for name in read.inputs})
    return [torch.from_numpy(array.copy()) for array in found.values()]


ROUTES: Mapping[str, Route] = {
    "torch.compile": compiled,
    "torch.export": exported,
    "ONNX": through_onnx,
}


def made(name: str) -> tuple[Any, Arguments]:
    """Return a model with random weights, and the arguments of a call."""
    torch.manual_seed(0)
    model, given = MODELS[name]()
    return model.eval(), given


def require_equal(name: str, route: str, backend: str) -> None:
    """Run a model by a way in; AssertionError where results are not those of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, given = made(name)
        with torch.inference_mode():
            expected = model(**given)
        found = ROUTES[route](model, given, backend)
    for mine, theirs in zip(tensors_of(found), tensors_of(expected), strict=True):
        scale = float(theirs.abs().max()) or 1.0
        torch.testing.assert_close(mine, theirs, rtol=RTOL, atol=ATOL * scale)


def tensors_of(output: Any) -> list[Any]:
    """Return the tensors of what a model gives, in order."""
    plain = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [each for each in pytree.tree_leaves(plain) if isinstance(each, torch.Tensor)]


def table() -> list[str]:
    """Return the table of models and ways in."""
    lines = [f"| model | {' | '.join(ROUTES)} |", "|---|" + "---|" * len(ROUTES)]
    for name in MODELS:
        cells = [REFUSED.get((name, route), "equal") for route in ROUTES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def with_table(page: str) -> str:
    """Return the text of the page with the table as it is now."""
    before, _, after = page.partition(f"{TITLE}\n\n")
    told, _, rest = after.partition("\n| model |")
    _, _, rest = rest.partition("\n\n")
    return "\n".join([f"{before}{TITLE}\n\n{told}", *table()]) + f"\n\n{rest}"


def sweep(names: Sequence[str], routes: Sequence[str], backend: str) -> bool:
    """Try models by ways in and print what comes of it; False if one is not as listed."""
    right = True
    for name in names:
        for route in routes:
            started = time.process_time()
            try:
                require_equal(name, route, backend)
                found = "equal"
            except Exception as error:
                first = next(iter(str(error).splitlines()), "")
                found = f"{type(error).__name__}: {first[:200]}"
            listed = REFUSED.get((name, route))
            right &= (found == "equal") == (listed is None)
            seconds = time.process_time() - started
            print(f"{name:22} {route:14} {seconds:5.1f} s  {found}", flush=True)
    return right


def main() -> int:
    """Read the command line; 1 if a model is not as the table says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models, else all")
    parser.add_argument("--route", action="append", choices=ROUTES, help="ways in, else all")
    parser.add_argument("--backend", default="ref")
    parser.add_argument("--write", action="store_true", help="only write the table")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
        return 0
    unknown = set(options.names) - set(MODELS)
    if unknown:
        parser.error(f"there is no model {min(unknown)}, but {', '.join(MODELS)}")
    return not sweep(options.names or list(MODELS), options.route or list(ROUTES), options.backend)


if __name__ == "__main__":
    sys.exit(main())
