"""Where each name of `gptrs.api.passes` is; read by type checkers and by `gptrs.lazy_names`."""

from gptrs.functionals.dispatch.examples import pattern_example as pattern_example
from gptrs.functionals.matching import pattern as pattern
from gptrs.ir.ops.custom_call import Declined as Declined
from gptrs.optimizer.fusion import FoundCall as FoundCall
from gptrs.optimizer.fusion import FusionPass as FusionPass
from gptrs.optimizer.fusion import ProgramPattern as ProgramPattern
from gptrs.optimizer.fusion import Replacement as Replacement
from gptrs.optimizer.fusion import find_calls as find_calls
from gptrs.optimizer.pass_base import Pass as Pass
from gptrs.optimizer.pass_base import RewritePass as RewritePass
from gptrs.optimizer.rewrite.pattern import Attribute as Attribute
from gptrs.optimizer.rewrite.pattern import Emitter as Emitter
from gptrs.optimizer.rewrite.pattern import Match as Match
from gptrs.optimizer.rewrite.pattern import Operand as Operand
from gptrs.optimizer.rewrite.pattern import Operands as Operands
from gptrs.optimizer.rewrite.pattern import Rewrite as Rewrite
from gptrs.optimizer.rewrite.pattern import calls as calls
from gptrs.optimizer.rewrite.pattern import rewrite as rewrite
