"""The sizes of symbolic dims: as a user writes them, and as inputs have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gptrs.errors import UsageError
from gptrs.ir.program import Program
from gptrs.ir.specialize import bind, specialize, symbols
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_SIZE = re.compile(r"\??([0-9]{1,6})=([0-9]{1,18})")


def parse_sizes(texts: Sequence[str]) -> dict[int, int]:
    """Sizes by the numbers of their symbols, out of texts such as `?0=5` or `0=5`.

    UsageError for anything else, and for two sizes of one symbol.
    """
    sizes: dict[int, int] = {}
    for text in texts:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{quoted(text)} is no size of a symbol", hint="write it as in `--symbol 0=5`"
            )
        number, size = int(match[1]), int(match[2])
        if sizes.setdefault(number, size) != size:
            raise UsageError(f"`?{number}` is given the sizes {sizes[number]} and {size}")
    return sizes


def with_sizes(
    program: Program,
    sizes: Mapping[int, int],
    inputs: Mapping[str, TensorType] | None = None,
) -> Program:
    """`program` with the sizes that are given and those that inputs of these types have.

    UsageError for a symbol that the program does not have, one without a size, or one whose size
    differs from that of an input; ProgramError if the program is malformed with these sizes.
    """
    unknown = symbols(program)
    for number in sizes:
        if number not in unknown:
            listed = ", ".join(f"`?{other}`" for other in unknown) or "none"
            raise UsageError(f"the program has no symbol `?{number}`", hint=f"it has {listed}")
    bound = bind(program, inputs or {})
    for number, size in bound.items():
        if sizes.get(number, size) != size:
            raise UsageError(f"`?{number}` is {size} in the inputs, not {sizes[number]}")
    known = {**sizes, **bound}
    missing = [number for number in unknown if number not in known]
    if missing:
        listed = ", ".join(f"`?{number}`" for number in missing)
        raise UsageError(
            f"the size of {listed} is not known",
            hint=f"give it with `--symbol {missing[0]}=SIZE`, or an input that has it as a dim",
        )
    return specialize(program, known)
