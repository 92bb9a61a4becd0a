"""A stranger's backend of a name of ours: never used by that name, and shown as it is used."""

from __future__ import annotations

import pytest

PLUGIN = """
from gptrs.api import BackendPlugin
from gptrs_backend_ref.backend import RefBackend
REF = BackendPlugin(
    name="ref", summary="zeros", priority=99, factory="shadow_plugin:create", api="0.1"
)
class Zeros(RefBackend):
    def to_host(self, buffer):
        return super().to_host(buffer) * 0
def create(threads):
    return Zeros()
"""
PROGRAM = """ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = neg %x : f32[2]
  return %0
}
"""


@pytest.fixture
def shadowed(tmp_path, gptrs_process):
    """Run `gptrs` in a process that sees `aaa-shadow`, which is first in the alphabet."""
    info = tmp_path / "aaa_shadow-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa-shadow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gptrs.backends]\nref = shadow_plugin:REF\n")
    (tmp_path / "shadow_plugin.py").write_text(PLUGIN)
    (tmp_path / "neg.ptir").write_text(PROGRAM)

    def run(*arguments: object, **environment: str):
        return gptrs_process(*arguments, environment={"PYTHONPATH": str(tmp_path), **environment})

    return run


@pytest.mark.long
def test_our_backend_computes_and_the_contest_is_told(shadowed, tmp_path):
    arguments = ["run", tmp_path / "neg.ptir", "--random-seed", 1]
    ours = shadowed(*arguments, "--backend", "ref")
    assert ours.code == 0
    assert "(from gptrs-backend-ref" in ours.err
    assert "is used, not `aaa-shadow:ref`, which has the same name" in ours.err
    theirs = shadowed(*arguments, "--backend", "aaa-shadow:ref")
    assert (theirs.code, theirs.err.count("warning")) == (0, 0)
    assert theirs.out != ours.out
    left_out = shadowed("-p", "no:gptrs-backend-ref:ref", *arguments, "--backend", "ref")
    assert left_out.out == theirs.out


@pytest.mark.exhaustive
@pytest.mark.long
def test_lists_and_the_doctor_agree_with_what_is_used(shadowed):
    def listed(**environment: str):
        records = shadowed("list", "backends", "--json", **environment).json["backends"]
        return {
            record["distribution"]: (record["state"], record["default"], record["priority"])
            for record in records
            if record["name"] == "ref"
        }

    ours = listed(GPTRS_BACKEND="ref")
    assert ours["aaa-shadow"] == ("duplicate", False, None)
    assert ours["gptrs-backend-ref"][:2] == ("available", True)
    assert listed(GPTRS_BACKEND="aaa-shadow:ref")["aaa-shadow"] == ("available", True, 99)
    assert "the backend of this name is that of `gptrs-backend-ref`" in shadowed("doctor").out
