"""`profile.json`: the figures of a profile as one JSON object; see docs/profiles.md."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from gptrs import __version__
from gptrs.backend.contract import InputRole
from gptrs.operating_system import peak_memory
from gptrs_observe.attribution import REST, attribution
from gptrs_observe.measure.step_work import MachineLimits
from gptrs_observe.profile import KernelTotals, Profile
from gptrs_observe.verdict import verdict_of

FORMAT, VERSION = "gptrs-profile", 1


def profile_document(profile: Profile, limits: MachineLimits | None = None) -> dict[str, object]:
    """Return the profile as JSON values; `limits` are the machine's, if measured."""
    parts = attribution(profile)
    total = profile.seconds or 1.0
    return {
        "format": FORMAT,
        "version": VERSION,
        "gptrs": __version__,
        "started": profile.date.isoformat(timespec="seconds"),
        "seconds": profile.seconds,
        "machine": None if limits is None else asdict(limits),
        "verdict": asdict(verdict_of(profile, limits)),
        "attribution": {
            "attributed": sum(part.seconds for part in parts if part.name != REST) / total,
            "parts": [asdict(part) | {"share": part.seconds / total} for part in parts],
        },
        "layers": layers(profile),
        "memory": memory(profile),
        "caches": caches(profile),
        **profile.as_json(),
    }


def layers(profile: Profile) -> list[dict[str, object]]:
    """Return the seconds in kernels of each layer, in the order in which they first ran."""
    sums: dict[str, KernelTotals] = {}
    for program in profile.programs.values():
        for layer, totals in program.layers.items():
            sums.setdefault(layer, KernelTotals()).add(totals)
    total = sum(totals.seconds for totals in sums.values()) or 1.0
    return [
        {
            "layer": layer,
            "calls": totals.calls,
            "seconds": totals.seconds,
            "share": totals.seconds / total,
        }
        for layer, totals in sums.items()
    ]


def memory(profile: Profile) -> dict[str, int]:
    """Return bytes by kind."""
    weights: dict[str, int] = {}
    most = {InputRole.DONATED: 0, InputRole.ARGUMENT: 0}
    for program in profile.programs.values():
        if program.runs:
            weights |= program.memory.weights()
            for role in most:
                most[role] = max(most[role], program.memory.most[role])
    return {
        "weights": sum(weights.values()),
        "donated": most[InputRole.DONATED],
        "arguments": most[InputRole.ARGUMENT],
        "process_peak": peak_memory(),
    }


def caches(profile: Profile) -> dict[str, int]:
    """Return how many programs and kernels were made, and how many came from a cache."""
    calls: Mapping[str, int] = {name: each.calls for name, each in profile.spans.items()}
    made = [program for program in profile.programs.values() if program.origin]
    compiled = [program for program in made if program.compile_seconds]
    found = sum(program.found for program in compiled)
    return {
        "programs_compiled": len(compiled),
        "programs_optimized_before": found,
        "kernels_compiled": calls.get("compile kernel", 0),
        "kernels_installed": calls.get("load installed kernel", 0),
        "kernels_from_disk": calls.get("load kernel", 0),
        "captures": calls.get("capture", 0),
    }
