"""The names that values get in a printed program, the same in the text and in the JSON form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from gptrs.errors import ProgramError
from gptrs.ir.lexer import IDENTIFIER
from gptrs.ir.program import Value


class ValueNames:
    """Names values in the order in which they are printed; `where` begins the errors.

    Parameters keep their names as far as those are identifiers and unlike each other; all other
    values are numbered from 0 on, through the regions of the function as well.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[Value, str] = {}
        self._numbered = 0

    @contextmanager
    def inner_region(self) -> Generator[None]:
        """Within it nothing of the region around is visible."""
        visible, self._names = self._names, {}
        yield
        self._names = visible

    def define_params(self, params: Sequence[Value]) -> list[str]:
        """Return the names of the parameters of a region."""
        wishes = Counter(param.name for param in params)
        for param in params:
            name = param.name
            keep = name is not None and wishes[name] == 1 and IDENTIFIER.fullmatch(name)
            self._names[param] = name if keep and name else self._number()
        return [self._names[param] for param in params]

    def define_results(self, results: Sequence[Value]) -> list[str]:
        """Return the names of the results of an instruction."""
        for result in results:
            self._names[result] = self._number()
        return [self._names[result] for result in results]

    def of(self, values: Sequence[Value]) -> list[str]:
        """Return the names of these values; ProgramError for one that has not been defined."""
        for value in values:
            if value not in self._names:
                what = f"reads a value of type `{value.type}` before it is defined"
                raise ProgramError(f"{self._where} {what}")
        return [self._names[value] for value in values]

    def _number(self) -> str:
        self._numbered += 1
        return str(self._numbered - 1)
