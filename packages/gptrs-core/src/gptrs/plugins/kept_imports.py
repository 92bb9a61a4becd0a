"""Records of imported files on disk, with which a later process need not read the format.

A wrong model would be the worst outcome. So a record is found only for a file that did not change,
and by a process that runs the code that wrote it, as for captures.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.caching.optimized_programs import KeptImport, optimized_programs
from gptrs.capture.caching.program_key import entry_key
from gptrs.capture.caching.source_identity import (
    foreign_names,
    other_sources,
    package_of,
    same_names,
    unchanged,
)


class ImportRecord(Struct, frozen=True):
    """The record on disk of an imported file."""

    key: str
    importer: frozenset[str]
    """The packages of the importer."""
    packages: frozenset[str]
    """The same, gptrs and the package of the backend."""

    @classmethod
    def of(cls, known: object, backend: Backend, packages: Iterable[str]) -> ImportRecord | None:
        """Return the record of a file that the `repr` of `known` tells from all others.

        `packages` are those of the importer; libraries that it imports need not be among them. None
        if the code cannot be identified, or without a cache folder.
        """
        if not optimized_programs().keeps:
            return None
        importer = frozenset(packages)
        own = importer | {"gptrs", package_of(type(backend).__module__)}
        key = entry_key(("import", known), backend, own)
        return None if key is None else cls(key, importer, own)

    def find(self) -> object:
        """Return the content that an earlier process kept; None if other code made it."""
        found = optimized_programs().find_import(self.key)
        if found is None or not unchanged(found.sources):
            return None
        # Not the names of gptrs: captures look at these, and most of the time goes into them.
        return found.content if same_names(found.names, self.importer) else None

    def keep(self, content: object) -> None:
        """Keep plain values, element types and dims, unless this process may run changed code."""
        sources = other_sources(self.packages)
        if sources is not None:
            kept = KeptImport(content, sources, foreign_names(self.importer))
            optimized_programs().keep_import(self.key, kept)
