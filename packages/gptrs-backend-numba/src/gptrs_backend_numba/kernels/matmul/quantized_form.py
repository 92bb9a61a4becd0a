"""The forms of quantized weights that kernels of products differ by."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

ANY_BYTE = 255
"""The largest code of 8 bits."""


class Form(Struct, frozen=True):
    """The bits of packed codes, 4 or 8, the values of k in a block, and the types of parameters.

    Types are "f32", "f16", "bf16", "si8", "ui8" or "si32". With `has_zero_points`, offsets are
    zero points, to be subtracted from `middle`, the zero that codes have without them. With a
    `table` of 16 bytes, packed codes of 4 bits are indices into it. Codes are 0 to `most`, where
    kernels need to know; with `wide` activations are rounded to 16 bits, of the same values.
    """

    bits: int
    block: int
    scale: str
    super_scale: str | None = None
    offset: str | None = None
    super_offset: str | None = None
    has_zero_points: bool = False
    middle: int = 0
    table: tuple[int, ...] = ()
    most: int = ANY_BYTE
    wide: bool = False

    sizes: ClassVar[dict[str, int]] = {
        "f32": 4, "f16": 2, "bf16": 2, "si8": 1, "ui8": 1, "si32": 4,
    }  # fmt: skip
    """Bytes of an element, by type."""

    @property
    def record(self) -> int:
        """Return the bytes of a block of activations."""
        return self.rounded + 12

    @property
    def rounded(self) -> int:
        """Return the bytes of its rounded activations."""
        return self.block * (2 if self.wide else 1)

    def panel_bytes(self, panel: int) -> int:
        """Return the bytes of the codes of a block in `columns` columns."""
        return panel * self.block * self.bits // 8

    @property
    def name(self) -> str:
        """Return a name that tells it from all others."""
        parts = (self.scale, self.super_scale, self.offset, self.super_offset)
        kind = f"z{self.middle}" if self.has_zero_points else "b"
        table = f"_t{bytes(self.table).hex()}" if self.table else ""
        kinds = "_".join(str(part) for part in parts)
        codes = "w" if self.wide else "" if self.most == ANY_BYTE else f"m{self.most}"
        return f"{self.bits}_{self.block}_{kinds}_{kind}{table}{codes}".replace("-", "m")
