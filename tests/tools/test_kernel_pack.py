"""Packs of kernels hold what models of a kind need, so that a first run compiles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernel_needs
import kernel_pack
from gptrs_backend_numba import parts
from gptrs_backend_numba.codegen import compiled, machine
from gptrs_backend_numba.codegen import kernel_pack as kernel_pack_of_package
from gptrs_backend_numba.codegen.kernel import GeneratedKernel
from gptrs_backend_numba.codegen.processor import KNOWN_FEATURES, this_machine
from gptrs_backend_numba.codegen.targets import TARGETS, Target
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE
from gptrs_conformance.op_case import ROWS
from gptrs_models.kinds import KINDS

SCRIPT = """
import sys
import gptrs
model = gptrs.load_model(sys.argv[1], "numba")
gptrs.generate(model, [1, 2, 3], max_tokens=3, temperature=0)
print("numba" in sys.modules, "llvmlite.binding" in sys.modules)
"""


def test_each_kind_is_needed() -> None:
    kinds = {kind for family in KINDS for kind in family.kinds}
    needed = {need.kind for need in kernel_needs.NEEDS if isinstance(need, kernel_needs.Need)}
    assert needed | kernel_needs.LEFT_OUT.keys() == kinds


def test_names_of_needs_tell_them_apart() -> None:
    names = [need.name for need in kernel_needs.NEEDS]
    assert len(set(names)) == len(names)


def test_the_parts_of_a_pack_are_those_of_all_elementwise_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernel_pack_of_package.VARIABLE, "0")
    monkeypatch.setattr(compiled, "_KERNELS", {})
    listed = {each.key for each in parts.all_parts()}
    with kernel_pack.kernels_noted() as noted:
        for op in (each for each in ROWS if issubclass(each, ELEMENTWISE)):
            kernel_needs.OpNeed(op).run(tmp_path)
    generated = {
        key for key, each in noted.items()
        if isinstance(getattr(each, "source", None), GeneratedKernel)
    }  # fmt: skip
    assert generated <= listed
    assert len(generated) > 150


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_all_features_of_a_target_can_be_found_on_a_processor(target: Target) -> None:
    assert set(target.features) <= KNOWN_FEATURES[target.machine]


@pytest.mark.long
def test_a_pack_for_another_instruction_set_is_refused_here(tmp_path: Path) -> None:
    foreign = "neon_dot" if this_machine() == "x86_64" else "avx2"
    kernel_pack.build(foreign, tmp_path, 1, ["integers 3"])
    pack = kernel_pack_of_package.KernelPack(tmp_path / f"{foreign}.kernels")
    assert len(pack) > 1
    assert "it is for " in (pack.head.refusal() or "")


def test_no_two_targets_are_for_the_same_processors() -> None:
    deciding = [frozenset(each.features) & machine.DECIDING for each in TARGETS]
    assert len(set(deciding)) == len(deciding)


@pytest.mark.exhaustive
def test_a_first_run_compiles_nothing_that_a_pack_has(tmp_path: Path) -> None:
    work = tmp_path / "work"
    kernel_pack.build(kernel_pack.HERE, tmp_path, 2, ["gpt2 (f32)"], work)
    count = len(kernel_pack_of_package.KernelPack(tmp_path / "here.kernels"))
    # A build that was interrupted, here before it had written one kernel, goes on.
    (*_, lost) = sorted(work.glob("*/kernels/*"))
    lost.unlink()
    said = kernel_pack.build(kernel_pack.HERE, tmp_path, 1, ["gpt2 (f32)"], work)
    assert ", 1 of them new" in said
    assert len(kernel_pack_of_package.KernelPack(tmp_path / "here.kernels")) == count
    need = next(each for each in kernel_needs.NEEDS if each.name == "gpt2 (f32)")
    assert isinstance(need, kernel_needs.Need)
    model = need.made(tmp_path / "model")
    environment = {
        **os.environ, "GPTRS_CACHE_DIR": str(tmp_path / "cache"), "GPTRS_NUMBA_PACK": str(tmp_path)
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model], env=environment, capture_output=True, text=True,
        check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False"], done.stderr
