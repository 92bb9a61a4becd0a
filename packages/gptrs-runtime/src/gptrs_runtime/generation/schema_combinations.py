"""How many alternatives the intersections of a JSON schema combine, before they are computed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from gptrs.errors import UsageError

ALWAYS_TAKEN: Final = 8_192
"""Characters of a schema that may combine any number of alternatives: llguidance gives up after
50,000 intersections, which take some 100 MB and a second for such a schema."""
MOST_COMBINED: Final = 100_000_000
"""Most characters of a larger schema times the alternatives of its widest intersection. Beyond, 37
kB took 480 MB and 5.6 s."""
_MOST_DEPTH: Final = 128
"""llguidance refuses schemas that are nested more deeply."""
_UNBOUNDED: Final = 10**12
_JSON: Final = re.compile(r"%json\s*")


def require_few_combinations(form: str, text: str) -> None:
    """Raise UsageError for a form whose schemas combine too many alternatives.

    `text` is a JSON schema, or a grammar in Lark with some after `%json`. Malformed JSON passes.
    """
    if form == "regex" or len(text) <= ALWAYS_TAKEN:
        return
    for schema in _schemas(form, text):
        combined = _Alternatives(schema).most
        if combined * len(text) > MOST_COMBINED:
            shown = "more than 10^12" if combined >= _UNBOUNDED else str(combined)
            raise UsageError(
                f"the {form} cannot be used: its intersections - `allOf`, or keywords beside"
                f" `anyOf`, `oneOf` and `$ref` - combine {shown} alternatives, and a schema of"
                f" {len(text)} characters may combine {MOST_COMBINED // len(text)}",
                hint=f"combine fewer, or write at most {ALWAYS_TAKEN} characters",
            )


def _schemas(form: str, text: str) -> Iterator[object]:
    decoder = json.JSONDecoder()
    begins = [0]
    if form == "lark":
        begins = [found.end() for found in _JSON.finditer(text)]
    for begin in begins:
        try:
            yield decoder.raw_decode(text, begin)[0]
        except (ValueError, RecursionError):  # llguidance tells what is wrong with it
            continue


class _Alternatives:
    """Counts the alternatives of a schema; `most` are those of its widest intersection.

    An upper bound: schemas of properties count as if they had the same name.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self.most = 1
        # Innermost first: from the root, what lies behind long chains of references is too deep.
        for schema in reversed(_values(root)):
            self._of(schema, 0)

    def _of(self, schema: object, depth: int) -> int:
        if not isinstance(schema, dict) or depth > _MOST_DEPTH:
            return 1
        fields = cast("dict[str, Any]", schema)
        if id(fields) in self._known:
            return self._known[id(fields)]
        self._known[id(fields)] = 1  # within a cycle of references
        factors = [self._of(each, depth + 1) for each in _listed(fields.get("allOf"))]
        for name in ("anyOf", "oneOf"):
            counts = [self._of(each, depth + 1) for each in _listed(fields.get(name))]
            factors.append(max(1, sum(counts)))
        factors.append(self._of(self._target(fields.get("$ref")), depth + 1))
        factors.append(max((self._of(each, depth + 1) for each in _inner(fields)), default=1))
        count = min(_UNBOUNDED, math.prod(factors))
        if sum(factor > 1 for factor in factors) > 1:
            self.most = max(self.most, count)
        self._known[id(fields)] = count
        return count

    def _target(self, reference: object) -> object:
        """Return the schema that a reference within the root names, None for others."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found = self._root
        for name in reference[1:].split("/")[1:]:
            if not isinstance(found, dict):
                return None
            found = cast("dict[str, object]", found).get(name.replace("~1", "/").replace("~0", "~"))
        return found


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _values(root: object) -> list[object]:
    """Return a value and all within it, each before those within it."""
    found = [root]
    for value in found:
        if isinstance(value, dict):
            found.extend(cast("dict[str, object]", value).values())
        else:
            found.extend(_listed(value))
    return found


def _inner(fields: dict[str, Any]) -> Iterator[object]:
    """Yield the schemas of the values within an object or an array."""
    for name in ("properties", "patternProperties"):
        named = fields.get(name)
        if isinstance(named, dict):
            yield from cast("dict[str, object]", named).values()
    for name in ("items", "additionalProperties"):
        yield fields.get(name)
    yield from _listed(fields.get("prefixItems"))
