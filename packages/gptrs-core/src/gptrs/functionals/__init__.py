"""The math that models call: each functional validates, then captures, and can be overridden."""

from typing import TYPE_CHECKING

from gptrs.functionals import compositions as compositions
from gptrs.functionals.activation import *  # noqa: F403
from gptrs.functionals.arithmetic import *  # noqa: F403
from gptrs.functionals.attention import *  # noqa: F403
from gptrs.functionals.convolution import *  # noqa: F403
from gptrs.functionals.creation import *  # noqa: F403
from gptrs.functionals.dispatch.override_scope import overrides as overrides
from gptrs.functionals.dispatch.registry import functional as functional
from gptrs.functionals.dispatch.registry import functional_names
from gptrs.functionals.dispatch.registry import implement as implement
from gptrs.functionals.dispatch.registry import implementations as implementations
from gptrs.functionals.elementwise import *  # noqa: F403
from gptrs.functionals.indexing import *  # noqa: F403
from gptrs.functionals.layout import *  # noqa: F403
from gptrs.functionals.named_axes import *  # noqa: F403
from gptrs.functionals.normalization import *  # noqa: F403
from gptrs.functionals.paged_attention import *  # noqa: F403
from gptrs.functionals.pooling import *  # noqa: F403
from gptrs.functionals.recurrent import *  # noqa: F403
from gptrs.functionals.reduction import *  # noqa: F403
from gptrs.functionals.resizing import *  # noqa: F403
from gptrs.functionals.rotary import *  # noqa: F403
from gptrs.functionals.sampling import *  # noqa: F403
from gptrs.functionals.trigonometry import *  # noqa: F403
from gptrs.quoting import did_you_mean

# Every functional of these modules is exported.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    {*functional_names(), "functional", "implement", "implementations", "overrides"}
)


def __dir__() -> list[str]:
    return list(__all__)


if not TYPE_CHECKING:  # this module has the names imported above

    def __getattr__(name: str) -> object:
        close = did_you_mean(name, __all__)
        raise AttributeError(
            f"there is no functional `{name}`; {close}`gptrs list functionals` shows all"
        )
