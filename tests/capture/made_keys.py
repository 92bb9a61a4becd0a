"""Keys that are made by hand, to test the cache without programs."""

from __future__ import annotations

from gptrs.capture.caching.program_key import ASPECTS, ProgramKey, digest_of


def made_key(instructions: int = 1, literal_bytes: int = 0, **aspects: object) -> ProgramKey:
    """The key whose parts are the values given by aspect, 0 elsewhere."""
    assert set(aspects) <= set(ASPECTS)
    parts = tuple(aspects.get(aspect, 0) for aspect in ASPECTS)
    hashes = tuple(map(hash, parts))
    return ProgramKey(parts, hashes, digest_of(hashes), instructions, literal_bytes)
