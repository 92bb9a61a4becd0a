"""One function per op of PTIR: each captures exactly that op and nothing else.

Axes may be negative here and are normalized; shapes and element types must fit already, since PTIR
neither promotes nor broadcasts. They raise the errors of the op (ProgramError).
"""

from gptrs.capture.primitives.computing import *  # noqa: F403
from gptrs.capture.primitives.elementwise import *  # noqa: F403
from gptrs.capture.primitives.structure import *  # noqa: F403
