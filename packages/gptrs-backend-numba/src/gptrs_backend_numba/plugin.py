"""The light description of the numba backend that its entry point names; imports no numba."""

from __future__ import annotations

from gptrs.api import BackendPlugin

PLUGIN = BackendPlugin(
    name="numba",
    summary="CPU backend: a whole program as a schedule of numba kernels cached on disk",
    priority=50,
    factory="gptrs_backend_numba.backend:create",
    api="0.1",
)
