"""The public names of `gptrs.optimizer` and where they are: read by type checkers and Python."""

from gptrs.optimizer.pipeline import optimize as optimize
from gptrs.optimizer.rewrite.rewriter import recording as recording
