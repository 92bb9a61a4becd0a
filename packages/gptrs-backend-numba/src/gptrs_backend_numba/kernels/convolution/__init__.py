"""Convolutions, channels last: direct, depthwise, Winograd, and jobs of several calls."""
