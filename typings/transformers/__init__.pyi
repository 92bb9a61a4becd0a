# Its 2,700 modules declare next to nothing, and reading them takes a third of a type check.
from typing import Any

def __getattr__(name: str) -> Any: ...
