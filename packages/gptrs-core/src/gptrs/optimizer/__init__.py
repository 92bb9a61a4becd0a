"""The optimizer: passes and rewrites that make a program smaller and keep what it computes."""

from gptrs.optimizer.pipeline import optimize
from gptrs.optimizer.rewrite.journal import recording

__all__ = ["optimize", "recording"]
