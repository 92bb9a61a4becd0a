"""How the files begin that hold a whole model; light, as each model that is opened asks for it."""

from typing import Final

GGUF: Final = b"GGUF"
GPTRSCHK: Final = b"GPTRSCHK"
