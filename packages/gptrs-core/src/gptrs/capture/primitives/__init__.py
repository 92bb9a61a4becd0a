"""One function per op of PTIR: each captures exactly that op and nothing else.

Axes may be negative here and are normalized; shapes and element types must fit already, since PTIR
neither promotes nor broadcasts. Errors are those of the op (ProgramError).
"""

from gptrs.capture.primitives.contraction import *  # noqa: F403
from gptrs.capture.primitives.control_flow import *  # noqa: F403
from gptrs.capture.primitives.creation import *  # noqa: F403
from gptrs.capture.primitives.custom_call import *  # noqa: F403
from gptrs.capture.primitives.elementwise import *  # noqa: F403
from gptrs.capture.primitives.indexing import *  # noqa: F403
from gptrs.capture.primitives.layout import *  # noqa: F403
from gptrs.capture.primitives.normalization import *  # noqa: F403
from gptrs.capture.primitives.quantization import *  # noqa: F403
from gptrs.capture.primitives.random import *  # noqa: F403
from gptrs.capture.primitives.reduction import *  # noqa: F403
from gptrs.capture.primitives.sorting import *  # noqa: F403
from gptrs.capture.primitives.window import *  # noqa: F403
