"""The environment variables of gptrs, so that a misspelled one can be told."""

from __future__ import annotations

from typing import Final

VARIABLES: Final = frozenset(
    (
        *("GPTRS_BACKEND", "GPTRS_NUM_THREADS", "GPTRS_EAGER", "GPTRS_OVERRIDES"),
        *("GPTRS_TRACE_SINKS", "GPTRS_CHECK_RESULTS", "GPTRS_CACHE_DIR", "GPTRS_CACHE_BYTES"),
        *("GPTRS_PROGRAM_CACHE_BYTES", "GPTRS_WEIGHT_CACHE_BYTES", "GPTRS_WEIGHT_BUDGET"),
        *("GPTRS_CHAT_HISTORY", "GPTRS_PLUGINS"),
        *("GPTRS_DISABLE_PLUGINS", "GPTRS_PLUGIN_STRICT", "GPTRS_OPT_PRE_ITERS"),
        *("GPTRS_OPT_POST_ITERS", "GPTRS_PASS_STATS", "GPTRS_SERVE_API_KEY"),
    )
)
"""The variables besides those of options of a generation; those of a plugin begin with its name."""
