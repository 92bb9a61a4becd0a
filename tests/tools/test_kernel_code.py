"""The list of machine code: what does not count as a difference, and what does."""

import pytest

from kernel_code import Code, compare, normalized

ASSEMBLY = """
\t.type\t_ZN8package4namev12x, @function
_ZN8package4namev12x:
\tvmovss\t.LCPI0_0(%rip), %xmm0  # the constant
\tmovabsq\t$_ZN8package6callee, %rax
\tcallq\t*%rax
\tjmp\t.LBB0_3
\t.comm\t_ZN08NumbaEnv,8,8
"""


def test_names_and_blocks_are_numbered_as_they_appear() -> None:
    other = ASSEMBLY.replace("namev12x", "renamed").replace("LBB0_3", "LBB0_17")
    assert other != ASSEMBLY
    assert normalized(other) == normalized(ASSEMBLY)
    assert "Numba" not in normalized(ASSEMBLY)
    assert "callq\t*%rax" in normalized(ASSEMBLY)


@pytest.mark.parametrize(("old", "new"), [("vmovss", "vmovsd"), ("%xmm0", "%xmm1"), ("jmp", "je")])
def test_instructions_count(old: str, new: str) -> None:
    assert normalized(ASSEMBLY.replace(old, new)) != normalized(ASSEMBLY)


def test_only_kernels_of_one_side_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    same, old, new = Code("a", "k", 8, "1"), Code("b", "k", 16, "2"), Code("b", "task", 12, "3")
    assert compare([same], [same]) == 0
    capsys.readouterr()
    assert compare([same, old], [new, same]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "b", "    k 16 2  ->  task 12 3", "2 kernels before, 2 after, 1 alike",
    ]  # fmt: skip
