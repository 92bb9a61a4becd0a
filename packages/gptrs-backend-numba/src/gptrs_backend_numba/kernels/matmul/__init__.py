"""Matrix products: operands are packed, tiles multiplied in registers, epilogues applied."""
