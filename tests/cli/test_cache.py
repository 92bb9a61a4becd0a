"""`gptrs cache`: kernels, packed weights and programs are shown, made in advance, and removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.test_terminal import on_a_terminal
from gptrs.capture.caching.optimized_programs import OptimizedPrograms
from gptrs.disk_cache import CachePart, CacheReport, Entries
from gptrs_backend_ref.backend import RefBackend
from gptrs_runtime import content_digest
from runtime.tiny_gpt2 import save_tiny_gpt2


class KeepingBackend(RefBackend):
    """The reference backend, with a cache that only says what it was asked."""

    keeps_code = keeps_weights = tells_kernels = True

    def __init__(self) -> None:
        super().__init__()
        self.cleared: list[bool] = []
        self.cleared_weights: list[bool] = []

    def cache_report(self) -> CacheReport:
        versions = [
            CachePart("made today", True, Entries(3, 2 << 20)),
            CachePart("made \x1b[31mlong ago", False, Entries(1, 1 << 20)),
        ]
        return CacheReport(Path("/some/folder"), 8 << 20, versions)

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        self.cleared.append(stale_only)
        return Entries(1 if stale_only else 4, 1 << 20)

    def compiling(self, tell):
        raise NotImplementedError

    def weight_report(self) -> CacheReport:
        files = [
            CachePart("/models/a.safetensors", True, Entries(5, 6 << 20)),
            CachePart("/models/\x1b[31mgone", False, Entries(2, 1 << 20)),
        ]
        return CacheReport(Path("/some/folder/weights"), 16 << 20, files)

    def clear_weights(self, *, stale_only: bool = False) -> Entries:
        self.cleared_weights.append(stale_only)
        return Entries(2 if stale_only else 7, 1 << 20)

    def finish_weights(self) -> Entries:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder of two optimized programs, and a file that is none."""
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    for name, size in (("a.00000000", 1 << 20), ("b.00000000", 2 << 20), ("notes", 7)):
        (folder / name).write_bytes(bytes(size))
    monkeypatch.setattr("gptrs_cli.commands.cache.program_cache", lambda: OptimizedPrograms(folder))
    return folder


@pytest.fixture(autouse=True)
def digests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder of two digests, and a file that is none."""
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "own"))
    folder = tmp_path / "own" / content_digest.FOLDER
    folder.mkdir(mode=0o700, parents=True)
    for name, size in (("a" * 32, 64), ("b" * 32, 64), ("notes", 7)):
        (folder / name).write_bytes(bytes(size))
    return folder


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> KeepingBackend:
    """Stands for the only backend that keeps kernels."""
    backend = KeepingBackend()
    monkeypatch.setattr(
        "gptrs_cli.commands.cache.kernel_caches", lambda name=None: {"keeping": backend}
    )
    monkeypatch.setattr(
        "gptrs_cli.commands.cache.weight_caches", lambda name=None: {"keeping": backend}
    )
    return backend


def test_info_shows_what_is_kept_and_what_is_stale(gptrs, keeping):
    shown = gptrs("cache", "info").out
    assert "/some/folder" in shown
    assert "4, 3.0 MiB of at most 8.0 MiB" in shown
    assert "stale    1, 1.0 MiB: made \\x1b[31mlong ago" in shown
    assert "7, 7.0 MiB of at most 16.0 MiB" in shown
    assert "in use   5, 6.0 MiB: /models/a.safetensors" in shown
    assert "stale    2, 1.0 MiB: /models/\\x1b[31mgone" in shown
    assert "cache clear --stale" in shown


def test_info_shows_programs(gptrs, keeping, programs):
    shown = gptrs("cache", "info").out
    assert shown.count("keeping, ") == 2
    assert f"optimized programs\n  folder   {programs}\n  held     2, 3.0 MiB of at most" in shown
    (found,) = gptrs("cache", "info", "--json").json["programs"]
    assert found.keys() == {
        "folder", "entries", "bytes", "budget_bytes", "stale_entries", "stale_bytes"
    }  # fmt: skip
    assert (found["entries"], found["bytes"], found["stale_entries"]) == (2, 3 << 20, 0)


def test_clear_programs(gptrs, keeping, programs):
    assert gptrs("cache", "clear", "--stale", "--json").json["programs"][0]["removed"] == 0
    assert "optimized programs: 2 removed, 3.0 MiB" in gptrs("cache", "clear", "--programs").out
    assert [path.name for path in programs.iterdir()] == ["notes"]
    assert keeping.cleared == [True], "kernels were not asked for"


def test_digests_are_shown_and_cleared(gptrs, keeping, digests):
    shown = gptrs("cache", "info").out
    assert f"digests of weights\n  folder   {digests}\n  held     2, 0.0 MiB of at most" in shown
    (found,) = gptrs("cache", "info", "--json").json["digests"]
    assert (found["entries"], found["bytes"], found["stale_entries"]) == (2, 128, 0)
    assert gptrs("cache", "clear", "--stale", "--json").json["digests"][0]["removed"] == 0
    assert "digests of weights: 2 removed" in gptrs("cache", "clear", "--digests").out
    assert [path.name for path in digests.iterdir()] == ["notes"]
    assert keeping.cleared == [True], "kernels were not asked for"


def test_info_as_json(gptrs, keeping):
    shown = gptrs("cache", "info", "--json").json
    (weights,) = shown["weights"]
    files = weights.pop("files")
    assert weights == {
        "backend": "keeping",
        "folder": "/some/folder/weights",
        "entries": 7,
        "bytes": 7 << 20,
        "budget_bytes": 16 << 20,
        "stale_entries": 2,
        "stale_bytes": 1 << 20,
    }
    assert [(file["path"], file["current"], file["entries"]) for file in files] == [
        ("/models/a.safetensors", True, 5),
        ("/models/\x1b[31mgone", False, 2),
    ]
    (cache,) = shown["caches"]
    versions = cache.pop("versions")
    assert cache == {
        "backend": "keeping",
        "folder": "/some/folder",
        "entries": 4,
        "bytes": 3 << 20,
        "budget_bytes": 8 << 20,
        "stale_entries": 1,
        "stale_bytes": 1 << 20,
    }
    assert [version["current"] for version in versions] == [True, False]


@pytest.mark.parametrize(("options", "stale", "removed"), [([], False, 4), (["--stale"], True, 1)])
def test_clear(gptrs, keeping, options, stale, removed):
    shown = gptrs("cache", "clear", *options).out
    assert f"keeping, compiled kernels: {removed} removed, 1.0 MiB" in shown
    (cache,) = gptrs("cache", "clear", *options, "--json").json["caches"]
    assert cache == {"backend": "keeping", "removed": removed, "bytes": 1 << 20}
    assert keeping.cleared == keeping.cleared_weights == [stale, stale]


@pytest.mark.parametrize(
    ("options", "kernels", "weights"),
    [(["--kernels"], 4, None), (["--weights"], None, 7), (["--kernels", "--weights"], 4, 7)],
)
def test_clear_one_kind(gptrs, keeping, options, kernels, weights):
    removed = gptrs("cache", "clear", *options, "--json").json
    for kind, count in (("caches", kernels), ("weights", weights)):
        assert [entry["removed"] for entry in removed[kind]] == ([] if count is None else [count])


def test_a_backend_that_keeps_nothing_says_so(gptrs):
    result = gptrs("cache", "info", "--backend", "ref")
    assert result.code == 4
    assert "backend `ref` keeps no compiled kernels" in result.err


def test_warming_runs_the_model_on_any_backend(gptrs, model_directory):
    result = gptrs("cache", "warm", "--model", model_directory, "--json")
    assert result.err == ""
    assert result.json.pop("seconds") > 0
    assert result.json["backend"] == "ref"
    assert result.json["compiled"] == 0
    assert result.json["weights"] == 0


@pytest.mark.parametrize(
    ("lengths", "code", "text"),
    [
        ("1,x", 2, "`--prompt-lengths` needs numbers of tokens such as 1,2,3, got `1,x`"),
        ("0", 2, "a prompt has 1 or more tokens, got 0"),
        ("100000", 2, "a prompt of 100000 tokens and a new one do not fit into the context"),
    ],
)
def test_lengths_that_cannot_be(gptrs, model_directory, lengths, code, text):
    result = gptrs("cache", "warm", "--model", model_directory, "--prompt-lengths", lengths)
    assert text in result.err
    assert result.code == code


@pytest.fixture
def numba_cache(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("gptrs_backend_numba")
    return {
        "GPTRS_BACKEND": "numba",
        "GPTRS_CACHE_DIR": str(tmp_path / "cache"),
        "GPTRS_WEIGHT_CACHE_BYTES": str(1 << 30),
    }


@pytest.mark.exhaustive
def test_what_was_warmed_is_not_compiled_again(gptrs_process, model_directory, numba_cache):
    def run(*arguments):
        return gptrs_process(*arguments, environment=numba_cache)

    model = ("--model", model_directory)
    assert run("cache", "info", "--backend", "numba", "--json").json["caches"][0]["entries"] == 0
    warmed = run("cache", "warm", *model, "--prompt-lengths", "3", "--json")
    assert "compiling kernels for this machine" in warmed.err
    assert warmed.json["compiled"] > 0
    assert warmed.json["programs"] > 0
    report = run("cache", "info", "--backend", "numba", "--json").json["caches"][0]
    # On Linux the code that catches faults of mapped files is kept, too; it is no kernel.
    assert report["entries"] - warmed.json["compiled"] in (0, 1)
    assert report["stale_entries"] == 0
    generated = run("generate", *model, "--prompt-ids", "1,2,3", "--max-tokens", 3, "--json")
    assert generated.json["token_ids"]
    assert "compiling" not in generated.err
    again = run("cache", "warm", *model, "--prompt-lengths", "3", "--json")
    assert again.json["compiled"] == again.json["programs"] == 0
    removed = run("cache", "clear", "--backend", "numba", "--json").json["caches"][0]
    assert removed["removed"] == report["entries"]


@pytest.mark.exhaustive
def test_what_was_packed_is_not_packed_again(gptrs_process, tmp_path, numba_cache):
    sizes = {"n_embd": 256, "n_layer": 1, "n_head": 4}
    model = save_tiny_gpt2(tmp_path / "m", **sizes)
    time.sleep(2.1)  # a file that was just written has no identity

    def run(*arguments):
        return gptrs_process("cache", *arguments, environment=numba_cache).json

    warm = ("warm", "--model", model, "--prompt-lengths", "3", "--json")
    first = run(*warm)
    assert first["weights"] >= 4
    assert run(*warm)["weights"] == 0
    (report,) = run("info", "--backend", "numba", "--json")["weights"]
    (file,) = report["files"]
    assert (file["path"], file["current"]) == (str(model / "model.safetensors"), True)
    assert file["entries"] == first["weights"]
    assert first["weight_bytes"] < file["bytes"] == report["bytes"] <= report["budget_bytes"]
    os.utime(model / "model.safetensors")
    removed = run("clear", "--weights", "--stale", "--backend", "numba", "--json")
    assert removed["caches"] == []
    assert removed["weights"][0]["removed"] == first["weights"]


@pytest.mark.exhaustive
def test_a_terminal_shows_which_kernel_is_compiled(model_directory, numba_cache):
    asked = ("--model", model_directory)
    generation = ("generate", *asked, "--prompt-ids", "1,2,3", "--max-tokens", "2")
    received = on_a_terminal(*generation, environment=numba_cache)
    assert "reading the prompt, compiling kernel " in received
    assert "(once)" in received
    received = on_a_terminal(*generation, environment=numba_cache)
    assert "compiling" not in received
    warmed = on_a_terminal("cache", "warm", *asked, environment=numba_cache)
    assert "warming, " in warmed


HEAVY_UNTIL_CHOSEN = """
import sys
from gptrs_cli.main import main
code = main(sys.argv[1:])
print(sorted({"numba", "llvmlite"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["cache", "--help"],
        ["cache", "info", "--backend", "ref"],
        ["cache", "warm", "--help"],
        ["generate", "--backend", "ref", "--max-tokens", "1"],
    ],
)
def test_no_numba_before_its_backend_is_chosen(arguments):
    result = subprocess.run(
        [sys.executable, "-c", HEAVY_UNTIL_CHOSEN, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stderr.splitlines()[-1] == "[]"
