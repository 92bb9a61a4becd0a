"""The numbers that define the random ops: of Philox 4x32-10 and of the inverse normal CDF.

Philox: J. K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011). The rational
approximations: M. J. Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37 (1988).
"""

from __future__ import annotations

from typing import Final

PHILOX_ROUNDS: Final = 10
PHILOX_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
"""Multipliers of words 0 and 2 of the counter in every round."""
PHILOX_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
"""Addends, modulo 2^32, of the words of the key after every round."""

UNIFORM_BITS: Final = {"f8e4m3": 4, "f8e5m2": 3, "bf16": 8, "f16": 11, "f32": 24, "f64": 53}
"""The number of random bits of a uniform number, for each float type: as many as its significand
has.
"""

LN_2: Final = 0.6931471805599453
SQRT_HALF: Final = 0.7071067811865476
LOG_SERIES: Final = tuple(1 / odd for odd in range(21, 0, -2))
"""1/21, 1/19, ..., 1/3, 1: of `log(m) = 2s * (1 + s^2/3 + s^4/5 + ...)`, highest power first."""

CENTRAL: Final = (
    (
        2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
        13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665,
    ),
    (
        5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
        5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0,
    ),
)  # fmt: skip
"""Numerator and denominator, highest power first, where the CDF is within 0.425 of one half."""

MIDDLE: Final = (
    (
        0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
        3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835,
    ),
    (
        1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
        0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0,
    ),
)  # fmt: skip
"""The same for the tails of more than e^-25."""

FAR: Final = (
    (
        2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
        0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103,
    ),
    (
        2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05,
        0.0007868691311456133, 0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0,
    ),
)  # fmt: skip
"""The same for the tails below that."""
