"""`gptrs compile`: what it prints, and what it asks for."""

from __future__ import annotations

import json
import shutil

import pytest

PROGRAM = """ptir.v0.5
func @main(%x: f32[?0, 4]) -> f32[?0, 4] {
  %y = add %x, %x : f32[?0, 4]
  return %y
}
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "twofold.ptir"
    path.write_text(PROGRAM)
    return path


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_is_told_in_words_and_as_json(gptrs, program, tmp_path):
    pytest.importorskip("gptrs_backend_numba", reason="it writes libraries")
    asked = ("compile", program, "-o", tmp_path / "lib", "--backend", "numba", "--threads", "1")
    told = gptrs(*asked).out
    assert told.startswith(f"wrote {tmp_path / 'lib'}: ")
    assert "libtwofold.so" in told
    again = gptrs(*asked)
    assert (again.code, "`--force` replaces a library" in again.err) == (2, True)
    report = gptrs(*asked, "--force", "--name", "twice", "--json").json
    manifest = report["manifest"]
    assert (manifest["name"], manifest["kind"], manifest["threads"]) == ("twice", "program", 1)
    assert manifest == json.loads((tmp_path / "lib" / "manifest.json").read_text())
    assert sorted(report["files"]) == sorted(map(str, (tmp_path / "lib").iterdir()))
    assert report["bytes"] == sum(path.stat().st_size for path in (tmp_path / "lib").iterdir())
    assert manifest["kernels"] >= 3


def test_what_is_missing_is_told(gptrs, program, tmp_path):
    missing = gptrs("compile", program)
    assert (missing.code, "add `-o DIR`" in missing.err) == (2, True)
    wrong = gptrs("compile", program, "-o", tmp_path / "lib", "--backend", "ref")
    assert wrong.code != 0
    assert "backend `ref` writes no libraries" in wrong.err
    assert not (tmp_path / "lib").exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_folder_that_cannot_be_written_ends_it_as_it_ends_convert(gptrs, program):
    refused = gptrs("compile", program, "-o", program / "lib", "--backend", "numba")
    converted = gptrs("convert", "demo", program / "lib")
    assert refused.err == converted.err
    assert (refused.code, converted.code) == (3, 3)
    assert "Not a directory" in refused.err
