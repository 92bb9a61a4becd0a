"""Runs the kernels of a region one after another, as one Python function made for the region.

A loop over instructions costs 0.7 us for each, more than some kernels; the function costs 0.04. It
has a line and a local variable for each instruction, and drops values after their last use. What
has no operands is computed once, when the function is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from gptrs.backend.contract import InputRole
from gptrs.backend.memory import dying_values
from gptrs.backend.op_table import ByName, OpTable, Prepared
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Instruction, Region, Value


class KernelSequence:
    """The kernels of a region, called with a tensor for each parameter.

    It returns a tuple of results, which may be views of a parameter, the same object twice, or a
    constant that the sequence keeps: an executable copies such results before it returns them. A
    kernel gets the op, a `KernelSequence` for each region and callee of the instruction, and a
    tensor for each operand; it returns a tensor, or a tuple for an instruction with regions or
    several results. One that was registered as `prepared` is made for its instruction when the
    sequence is, and does not get the op. Threads may share a sequence.

    A kernel that was registered `by_name` gets the arguments of its functional, and two more if it
    has such parameters: `donated`, the names of operands that it may overwrite and return (inputs
    with that role that nothing else reads), and `shared`, a dictionary that is empty when a run
    begins, for what several kernels of it need, such as the pages that all layers read.
    """

    def __init__(
        self,
        region: Region,
        table: OpTable[Any],
        roles: Sequence[InputRole] = (),
        functions: Mapping[str, KernelSequence] | None = None,
    ) -> None:
        """Find the kernels of `region`, whose ops the backend supports.

        `roles` are those of the parameters; `functions` has those that the region calls.
        """
        self.params, self.results = region.params, region.results
        self._functions = functions or {}
        self._table = table
        self._names = {param: f"p{number}" for number, param in enumerate(region.params)}
        self._known: dict[str, object] = {"as_tuple": _as_tuple}
        times = Counter(v for made in region.instructions for v in made.operands)
        times.update(region.results)
        donated = zip(region.params, roles, strict=False)
        self._donated = {v for v, role in donated if role is InputRole.DONATED and times[v] == 1}
        self._run = self._made(region)

    def __call__(self, *tensors: object) -> tuple[Any, ...]:
        """Return the results for these arguments."""
        return self._run(*tensors)

    def _made(self, region: Region) -> Callable[..., tuple[object, ...]]:
        lines = [f"def run({', '.join(self._names.values())}):", " shared = {}"]
        dying = dying_values(region)
        for number, (made, dead) in enumerate(zip(region.instructions, dying, strict=True)):
            for at, value in enumerate(made.results):
                self._names[value] = f"v{number}_{at}"
            line = self._line(number, made)
            if not (made.operands or made.regions or made.op.callees()):
                exec(compile(line, "<constant of a program>", "exec"), self._known)
                continue
            lines.append(f" {line}")
            # Constants are globals of the function, and live as long as it does.
            named = [self._names[value] for value in dead if self._names[value] not in self._known]
            if named:
                lines.append(f" del {', '.join(named)}")
        found = "".join(f"{self._names[value]}, " for value in region.results)
        lines.append(f" return ({found})")
        # Names are numbers of values, and parameters of functionals that are identifiers.
        exec(compile("\n".join(lines), "<kernels of a program>", "exec"), self._known)
        return cast("Callable[..., tuple[object, ...]]", self._known["run"])

    def _line(self, number: int, made: Instruction) -> str:
        types = [value.type for value in made.operands]
        results = [value.type for value in made.results]
        kernel = self._table.find(made.op, types, results)
        assert kernel is not None, "`require_supported` has found one"
        operands = [self._names[value] for value in made.operands]
        inner = [KernelSequence(each, self._table, (), self._functions) for each in made.regions]
        bodies = [*inner, *(self._functions[name] for name in made.op.callees())]
        called = f"k{number}"
        if isinstance(kernel, ByName) and isinstance(made.op, CustomCall) and kernel.fits(made.op):
            params = made.op.operands.split()
            given = [f"{name}={operand}" for name, operand in zip(params, operands, strict=True)]
            given += ["shared=shared"] if "shared" in kernel.takes else []
            kernel = self._bound(kernel, made, params)
        else:
            self._known |= {f"b{number}_{at}": body for at, body in enumerate(bodies)}
            given = [*(f"b{number}_{at}" for at in range(len(bodies))), *operands]
            if isinstance(kernel, Prepared):
                kernel = kernel.make(made.op, types, results)
            else:
                self._known |= {f"o{number}": made.op}
                given.insert(0, f"o{number}")
        self._known[called] = kernel
        call = f"{called}({', '.join(given)})"
        names = [self._names[value] for value in made.results]
        if len(names) == 1 and not bodies:
            return f"{names[0]} = {call}"
        return f"{', '.join(names)}, = as_tuple({call})"

    def _bound(
        self, kernel: ByName, made: Instruction, names: Sequence[str]
    ) -> Callable[..., object]:
        """Return a kernel with all arguments that are no tensors."""
        arguments: dict[str, object] = dict(cast("CustomCall", made.op).attrs.items)
        if "donated" in kernel.takes:
            pairs: zip[tuple[str, Value]] = zip(names, made.operands, strict=True)
            arguments["donated"] = tuple(name for name, value in pairs if value in self._donated)
        return partial(kernel.kernel, **arguments) if arguments else kernel.kernel


def _as_tuple(found: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", found) if isinstance(found, tuple) else (found,)
