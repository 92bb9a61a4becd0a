"""The math that models call: each functional validates, then captures, and can be overridden."""

from gptrs.functionals.activation import *  # noqa: F403
from gptrs.functionals.arithmetic import *  # noqa: F403
from gptrs.functionals.attention import *  # noqa: F403
from gptrs.functionals.embedding import *  # noqa: F403
from gptrs.functionals.layout import *  # noqa: F403
from gptrs.functionals.linear import *  # noqa: F403
from gptrs.functionals.normalization import *  # noqa: F403
from gptrs.functionals.registry import functional as functional
from gptrs.functionals.registry import implement as implement
from gptrs.functionals.registry import implementations
from gptrs.functionals.registry import overrides as overrides

# A functional is listed by being one.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    {*implementations(), "functional", "implement", "implementations", "overrides"}
)


def __dir__() -> list[str]:
    return list(__all__)
