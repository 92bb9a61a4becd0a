"""The environment variables of the JAX backend; the description and the devices both read them."""

from __future__ import annotations

from typing import Final

PLATFORM: Final = "GPTRS_JAX_PLATFORM"
"""The platform to run on, as JAX calls it: cpu, gpu, cuda, rocm, tpu; unset leaves it to JAX."""

THREADS: Final = "NPROC"
"""The number of XLA's threads, which its CPU client reads when it starts."""
