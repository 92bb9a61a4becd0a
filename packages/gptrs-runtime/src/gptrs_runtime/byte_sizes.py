"""Sizes of memory as a user writes them: bytes, `2GB`, `512MiB`, or a share such as `50%`."""

from __future__ import annotations

import re

from gptrs.checkpoint.config_fields import is_integer

_FORM = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*|%)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parsed_bytes(stated: object, total: int | None) -> int | None:
    """Return a number of bytes >= 1, None for anything else; a share is one of `total`."""
    if is_integer(stated):
        found = stated
    else:
        form = _FORM.fullmatch(stated.strip()) if isinstance(stated, str) else None
        if form is None:
            return None
        share = None if total is None else total / 100
        scale = share if form[2] == "%" else _UNITS.get(form[2].lower())
        if scale is None:
            return None
        found = int(float(form[1]) * scale)
    return found if 0 < found < 2**63 else None


def shown_bytes(nbytes: int) -> str:
    """Return the size with three digits and a decimal unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
