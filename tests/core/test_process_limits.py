"""Threads by argument and variable; CPUs and memory that the control groups of a process allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gptrs.backend.process_limits import (
    cpu_quota,
    granted_cpus,
    memory_limit,
    requested_threads,
)
from gptrs.errors import UsageError


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_argument_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_NUM_THREADS", " 3 ")
    assert requested_threads(5) == 5
    assert requested_threads(None) == 3
    monkeypatch.setenv("GPTRS_NUM_THREADS", "")
    assert requested_threads(None) is None


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "257", "٣", "9" * 5000])
def test_a_bad_variable_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_NUM_THREADS", text)
    with pytest.raises(UsageError, match="`GPTRS_NUM_THREADS` must be from 1 to 256, got"):
        requested_threads(None)


@pytest.mark.parametrize("threads", [0, -1, 257, True])
def test_a_bad_argument_is_refused(threads: int) -> None:
    with pytest.raises(UsageError, match="`threads` must be from 1 to 256, got"):
        requested_threads(threads)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/m\n2:cpu,cpuacct:/c\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        ({"proc/self/cgroup": "nonsense\n"}, None),
        ({}, None),
    ],
)
def test_the_tightest_cpu_quota_counts(
    files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    put(tmp_path, files)
    assert cpu_quota(tmp_path) == expected


def test_a_quota_is_rounded_up_and_leaves_one_cpu(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000 100000\n"})
    assert granted_cpus(tmp_path) == 1
    assert granted_cpus(tmp_path / "none") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "max\n",
                "sys/fs/cgroup/memory.max": "1048576\n",
            },
            2**20,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/m\n2:cpu:/c\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "4096\n",
            },
            4096,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/m\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
    ],
)
def test_the_tightest_memory_limit_counts(
    files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    put(tmp_path, files)
    assert memory_limit(tmp_path) == expected
