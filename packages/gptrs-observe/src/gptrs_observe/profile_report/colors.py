"""One color for each of the costliest kernels, the same in every figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gptrs_observe.profile import Profile, merged
from gptrs_observe.programs.op_work import kernel_name

OTHER = 7
"""The color of all other kernels."""


def kernel_colors(profile: Profile) -> Mapping[str, int]:
    """Return the numbers of the colors of the costliest kernels, in that order."""
    seconds: dict[str, float] = defaultdict(float)
    for (kernel, _), totals in merged(profile.programs.values()).items():
        seconds[kernel_name(kernel)] += totals.seconds
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return {name: at for at, (name, _) in enumerate(ranked[:OTHER])}
