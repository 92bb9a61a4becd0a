"""The options of `gptrs trace`: what is read, and what it is compared with."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.options.declare import option
from gptrs_observe.traced_values import TraceRequest

TORCH = "torch"


@dataclass(frozen=True)
class ReadOptions:
    """The values to read."""

    names: Annotated[
        bool, option("--modules", "Print the names of all modules, and run nothing.")
    ] = False
    modules: Annotated[
        list[str],
        option(
            "--module",
            "Read the inputs and outputs of these modules, too; `h.*.mlp` is a pattern. Can be"
            " repeated.",
            metavar="NAME",
        ),
    ] = field(default_factory=list[str])
    attention: Annotated[
        bool, option("--attention", "Read the weights of attention, [B, H, T, T] a layer, too.")
    ] = False
    lens: Annotated[
        int | None,
        option(
            "--logit-lens",
            "Print the N likeliest next tokens by each hidden state.",
            metavar="N",
            min=1,
        ),
    ] = None

    @property
    def request(self) -> TraceRequest:
        """The same for the runtime."""
        return TraceRequest(tuple(self.modules), self.attention)


@dataclass(frozen=True)
class AgainstOptions:
    """The comparison with another run."""

    against: Annotated[
        str | None,
        option(
            "--against",
            "Compare with a file that an earlier `--out` wrote, or with `torch`, which runs the"
            " model in transformers. Exits with 1 where values differ.",
            metavar="FILE|torch",
        ),
    ] = None
    tolerance: Annotated[
        float,
        option(
            "--tolerance",
            "Largest error that is right, as a share of the range of the numbers.",
            metavar="X",
            min=0,
        ),
    ] = 1e-4
    stop: Annotated[
        bool,
        option("--stop-on-first-mismatch", "Report up to the first value that differs."),
    ] = False
    svg: Annotated[
        Path | None, option("--svg", "Draw the errors by depth in an SVG file.", metavar="FILE")
    ] = None

    def check(self) -> None:
        """Raise UsageError for options that need `--against`."""
        if self.against is None and (self.stop or self.svg is not None):
            raise UsageError(
                "`--stop-on-first-mismatch` and `--svg` are for a comparison",
                hint="add `--against FILE` or `--against torch`",
            )
