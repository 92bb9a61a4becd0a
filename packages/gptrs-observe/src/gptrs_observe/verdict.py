"""The verdict of a profile: the speed, and how near the limits of the machine its kernels are."""

from __future__ import annotations

import statistics

from msgspec import Struct

from gptrs_observe.measure.step_work import MachineLimits
from gptrs_observe.profile import KernelTotals, Profile, ProgramProfile, merged

TOKEN = "choose token"
"""The span of each token that is generated."""
_NEAR = 0.5
"""From this share of a limit on, kernels count as bound by it."""
_SHORT = 50e-6
"""Seconds: kernels that take less on average are short."""


class Verdict(Struct, frozen=True):
    """Figures, None if unknown, and sentences that state them."""

    tokens: int
    tokens_per_s: float | None
    """From the first token to the last, while profiled."""
    program: int | None
    """The program that took most time."""
    kernel_seconds: float | None
    """Seconds in kernels of one run of it."""
    gb_per_s: float | None
    """Bytes that its kernels read and write, divided by their time, for kernels that report them.
    """
    gflop_per_s: float | None
    share_of_memory: float | None
    share_of_arithmetic: float | None
    sentences: tuple[str, ...]


def verdict_of(profile: Profile, limits: MachineLimits | None) -> Verdict:
    """Return the verdict; includes shares of the limits only if these are given."""
    tokens, rate = _tokens(profile)
    number, program = _costliest(profile)
    if program is None:
        return Verdict(0, None, None, None, None, None, None, None, ("No program ran.",))
    kernels = program.kernels
    within = sum(totals.seconds for totals in kernels.values())
    read = _rate([each for each in kernels.values() if each.nbytes])
    computed = _rate([each for each in kernels.values() if each.operations])
    gb = read.gb_per_s
    gflop = computed.gflop_per_s
    of_memory = None if limits is None or gb is None else gb / limits.read_gb_per_s
    of_arithmetic = None if limits is None or gflop is None else gflop / limits.gflop_per_s
    sentences = [_speed(profile, program, tokens, rate, within)]
    if gb is not None and gflop is not None and limits is not None:
        sentences.append(
            f"Its kernels move {gb:.1f} GB/s, {_percent(of_memory)} of what memory gives"
            f" ({limits.read_gb_per_s:.1f}), and compute {gflop:.1f} GFLOP/s,"
            f" {_percent(of_arithmetic)} of what arithmetic gives ({limits.gflop_per_s:.0f})."
        )
        sentences.append(_bound(kernels, of_memory or 0.0, of_arithmetic or 0.0))
    return Verdict(
        tokens,
        rate,
        number,
        within / program.runs if kernels and program.runs else None,
        gb,
        gflop,
        of_memory,
        of_arithmetic,
        tuple(sentences),
    )


def _tokens(profile: Profile) -> tuple[int, float | None]:
    span = profile.spans.get(TOKEN)
    if span is None:
        return 0, None
    ends = [
        each.started + each.seconds for each in profile.timeline.intervals if each.name == TOKEN
    ]
    rate = (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None
    return span.calls, rate


def _costliest(profile: Profile) -> tuple[int | None, ProgramProfile | None]:
    ran = {number: each for number, each in profile.programs.items() if each.runs}
    if not ran:
        return None, None
    number = max(ran, key=lambda number: ran[number].seconds)
    return number, ran[number]


def _rate(kernels: list[KernelTotals]) -> KernelTotals:
    total = KernelTotals()
    for each in kernels:
        total.add(each)
    return total


def _speed(
    profile: Profile, program: ProgramProfile, tokens: int, rate: float | None, within: float
) -> str:
    alone = program.runs / within if within else None
    kernels = f"; its kernels alone take {1000 / alone:.2f} ms of a step" if alone else ""
    if rate is not None:
        return f"{tokens} tokens at {rate:.1f} tok/s while profiled{kernels}."
    each = 1000 * program.seconds / program.runs
    return f"{program.runs} runs of {each:.2f} ms while profiled{kernels}."


def _bound(kernels: dict[tuple[str, str], KernelTotals], memory: float, arithmetic: float) -> str:
    if max(memory, arithmetic) >= _NEAR:
        limit = "memory" if memory >= arithmetic else "arithmetic"
        return f"That is bound by {limit}."
    means = [each.seconds / each.calls for each in kernels.values() for _ in range(each.calls)]
    typical = statistics.median(means)
    if typical < _SHORT:
        return (
            f"Neither limit is near: half of the kernels take less than {1e6 * typical:.0f} µs,"
            " so that starting them counts."
        )
    return "Neither limit is near."


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def all_kernels(profile: Profile) -> list[tuple[tuple[str, str], KernelTotals]]:
    """Return the kernels of all programs, the costliest first."""
    return sorted(merged(profile.programs.values()).items(), key=lambda item: -item[1].seconds)
