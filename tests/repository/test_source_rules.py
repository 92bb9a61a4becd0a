"""Each rule for sources bites on a made-up tree, and leaves a correct one alone."""

import ast
from pathlib import Path, PurePosixPath

import pytest

import check_repository
import source_rules

COMMAND = f"{source_rules.COMMANDS}/bench.py"
KERNEL = "packages/a/src/a/kernel.py"


def trees(**sources: str) -> dict[PurePosixPath, ast.Module]:
    return {PurePosixPath(path): ast.parse(source) for path, source in sources.items()}


def function(lines: int) -> str:
    return "class A:\n    def f(self):\n" + "        pass\n" * (lines - 1)


def test_a_long_function_is_found_wherever_it_stands():
    assert list(source_rules.long_functions(trees(**{"tests/a.py": function(50)}))) == []
    nested = "try:\n    pass\nexcept OSError:\n    def f():\n" + "        pass\n" * 50
    for source in (
        function(51),
        "if x:\n    pass\nelse:\n    def f():\n" + "        1\n" * 50,
        nested,
    ):
        [(place, problem)] = source_rules.long_functions(trees(**{"tests/a.py": source}))
        assert (place, problem[:8]) == ("tests/a.py:f", "51 lines")


def test_a_command_with_many_parameters_is_found():
    for path, count in ((COMMAND, 12), ("packages/a/src/a.py", 13)):
        source = f"def bench({', '.join(f'x{i}' for i in range(count))}): pass"
        assert list(source_rules.crowded_commands(trees(**{path: source}))) == []
    [(place, problem)] = source_rules.crowded_commands(
        trees(**{COMMAND: f"def bench(a, {', '.join(f'x{i}' for i in range(11))}, *, last): pass"})
    )
    assert place == f"{COMMAND}:bench"
    assert problem.startswith("13 parameters, more than 12")


LOOP = """
for i in range(out.size):
    total = ZERO
    for p in range(SIZE):
        total += lhs[p, i]
    first, out[i] = out[i], total
    x.y = f(total)
"""


@pytest.mark.parametrize(
    "source",
    [
        f'TASK = """{LOOP}"""',
        f'def emit(load):\n    return f"""{LOOP}"""'.replace("ZERO", "{load}"),
        f'TASK = """{LOOP}""".replace("SIZE", "4")',
        "TASK = '" + "x = 1\\n" * 6 + "'",
    ],
)
def test_a_program_in_a_string_is_found(source: str):
    [(place, problem)] = source_rules.programs_in_strings(trees(**{KERNEL: source}))
    assert place == KERNEL
    assert problem.endswith("write a function")
    assert list(source_rules.programs_in_strings(trees(**{"tests/a.py": source}))) == []


@pytest.mark.parametrize(
    "source",
    [
        f'"""{LOOP}"""\ndef f():\n    """{LOOP}"""',
        'TASK = """\nfor i in range(3):\n    x = 1\n    y = 2\n    z = 3\n"""',
        'HELP = """\nOne sentence.\nTwo: of which\nthree.\nFour\nfive (six),\nseven.\n"""',
        'IR = """\n%0 = load i64, ptr %x\n%1 = load\n%2 = load\n%3 = add\n%4 = add\nret\n"""',
    ],
)
def test_docstrings_prose_short_and_other_languages_are_left_alone(source: str):
    assert list(source_rules.programs_in_strings(trees(**{KERNEL: source}))) == []


def test_exceptions_hide_their_places_and_must_be_needed():
    found = [("a.py:f", "too long"), ("b.py:g", "too long")]
    assert list(source_rules.excepted(found, {"a.py:f", "b.py:g"}, "LIST")) == []
    assert list(source_rules.excepted(found, {"a.py:f", "c.py:h"}, "LIST")) == [
        "b.py:g: too long",
        "c.py:h: keeps the rule now; take it off `LIST` in tools/source_rules.py",
    ]


def test_small_modules_with_one_importer_are_noted(tmp_path: Path):
    sources = {
        "packages/p/src/p/__init__.py": "from p import gathered",
        "packages/p/src/p/gathered.py": "",
        "packages/p/src/p/alone.py": "",
        "packages/p/src/p/shared.py": "",
        "packages/p/src/p/large.py": "x = 1\n" * 40,
        "packages/p/src/p/user.py": "import p.alone\nfrom p.shared import x\nfrom p import large\n",
        "packages/p/src/p/other.py": "def f():\n    from p import shared\n" * 20,
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    assert list(source_rules.small_modules(tmp_path, trees(**sources))) == [
        "packages/p/src/p/alone.py: 0 lines, imported by user.py only; merge the two?"
    ]


def test_the_rules_know_the_folders_of_this_repository():
    root = Path(check_repository.__file__).parents[1]
    for path in (source_rules.COMMANDS, *source_rules.EMITTERS):
        assert (root / path).exists(), path


PORTS = "packages/gptrs-core/src/gptrs/ir/program.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('import_module("gptrs.ir.printer").text()', 1),
        ('importlib.import_module("gptrs_observe.svg")', 1),
        ('svg = lazy_module("gptrs_observe.svg")', 1),
        ('from gptrs_observe import svg\nsvg = lazy_module("gptrs_observe.svg")', 0),
        ('import gptrs.ir\nir = lazy_module("gptrs.ir")', 0),
        ('import_module("numpy")', 0),
        ("import_module(name)", 0),
    ],
)
def test_core_imports_nothing_of_ours_by_a_string_alone(source: str, found: int):
    problems = list(source_rules.hidden_imports(trees(**{PORTS: source})))
    assert len(problems) == found
    assert list(source_rules.hidden_imports(trees(**{KERNEL: source}))) == []
