"""The checks of devices, memory and meshes fail on backends that break their rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gptrs.api.backends import DeviceInfo, Mesh
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance.kit import checks_of, run_check

NAMES = ("devices are distinct", "copies on the device are equal", "split tensors are whole")
CHECKS = {check.name: check for check in checks_of("core") if check.name in NAMES}


class Placed(RefBackend):
    """The reference with a mesh of one memory: right unless a test breaks it."""

    own_memory = True
    mesh = Mesh.parse("data=2,tensor=4")

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo("cpu:0", "cpu", used=True), DeviceInfo("cpu:1", "cpu")]

    def place(self, source: Any, sharding: Any) -> Any:
        return source.read(tuple(slice(None) for _ in sharding)).copy()

    def host_view(self, buffer: Any) -> np.ndarray | None:
        return buffer

    def copy(self, buffer: Any) -> Any:
        return buffer.copy()


BREAKS: dict[str, dict[str, Any]] = {
    NAMES[0]: {"devices": lambda _: [DeviceInfo("cpu", "cpu", used=True)] * 2},
    NAMES[1]: {"copy": lambda _, buffer: buffer},
    NAMES[2]: {"place": lambda _, source, sharding: source.read((slice(4), slice(None)))},
}


@pytest.mark.parametrize("name", NAMES)
def test_who_keeps_the_rules_passes(name: str) -> None:
    assert run_check(Placed(), CHECKS[name]).status == "pass"


@pytest.mark.parametrize("name", NAMES)
def test_who_breaks_them_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for member, broken in BREAKS[name].items():
        monkeypatch.setattr(Placed, member, broken)
    assert run_check(Placed(), CHECKS[name]).status == "fail"
