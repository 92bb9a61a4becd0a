"""Rules for Python sources: short functions, few parameters, no programs in strings, no dust."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path, PurePosixPath

MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 12
MAX_STRING_LINES = 5
MIN_MODULE_LINES = 40
CORE = PurePosixPath("packages/gptrs-core/src/gptrs")
COMMANDS = PurePosixPath("packages/gptrs-cli/src/gptrs_cli/commands")
# These lists may only shrink: an entry that is no longer needed is a problem as well.
LONG_FUNCTIONS: frozenset[str] = frozenset()
MANY_PARAMETERS: frozenset[str] = frozenset()
SOURCE_STRINGS: frozenset[str] = frozenset()
# Emitters write Python, and a child process takes a script.
EMITTERS = frozenset({"packages/gptrs-cli/src/gptrs_cli/commands/doctor.py"})
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# A line of a program: a statement with a block, or an assignment to names, items and attributes.
_STATEMENT = re.compile(
    r"\s*((def|class|for|while|if|elif|with) .*:|(return|import|from) .*|else:|[\w.]+\(.*\)"
    r"|[\w.]+(\[.*\])?(, [\w.]+(\[.*\])?)* [-+*/|&]?= .*)\s*(#.*)?"
)


def parse(root: Path, files: Iterable[PurePosixPath]) -> dict[PurePosixPath, ast.Module]:
    """Return the syntax trees of the Python files among `files`."""
    return {
        path: ast.parse((root / path).read_bytes(), str(path))
        for path in files
        if path.suffix == ".py"
    }


def definitions(tree: ast.Module) -> Iterator[Documented]:
    """Yield the module, its classes and its functions, nested ones too; much faster than a walk."""
    open_nodes: list[ast.AST] = [tree]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, Documented):
            yield node
        for name in ("cases", "finalbody", "orelse", "handlers", "body"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # and not the value of a lambda or of `x if y else z`
                open_nodes += reversed(block)


def source_problems(trees: Mapping[PurePosixPath, ast.Module]) -> Iterator[str]:
    """Yield a line for each broken rule in `trees`."""
    yield from excepted(long_functions(trees), LONG_FUNCTIONS, "LONG_FUNCTIONS")
    yield from excepted(crowded_commands(trees), MANY_PARAMETERS, "MANY_PARAMETERS")
    yield from excepted(programs_in_strings(trees), SOURCE_STRINGS, "SOURCE_STRINGS")
    yield from hidden_imports(trees)


def hidden_imports(trees: Mapping[PurePosixPath, ast.Module]) -> Iterator[str]:
    """Yield the imports of core that no layer contract sees: by a string, without one to read.

    `lazy_module("gptrs.x")` stands beside the same import for type checkers; what a layer needs of
    a higher one goes through a port, which `gptrs.wiring` fills.
    """
    for path, tree in trees.items():
        if not path.is_relative_to(CORE):
            continue
        imported = {name for node in ast.walk(tree) for name in _modules_of(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name, function = str(node.args[0].value), ast.unparse(node.func).split(".")[-1]
                if not name.startswith("gptrs"):
                    continue
                if function == "import_module" or (
                    function == "lazy_module" and name not in imported
                ):
                    yield (
                        f"{path}:{node.lineno}: imports `{name}` by a string; import it, or"
                        " declare a port (`gptrs.ports`) that `gptrs.wiring` fills"
                    )


def _modules_of(node: ast.AST) -> Iterator[str]:
    """Yield the modules that an import statement may name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def excepted(found: Iterable[tuple[str, str]], known: Set[str], name: str) -> Iterator[str]:
    """Yield the problems of places that are not `known`, and the `known` ones that are no more."""
    places: set[str] = set()
    for place, problem in found:
        places.add(place)
        if place not in known:
            yield f"{place}: {problem}"
    for place in sorted(known - places):
        yield f"{place}: keeps the rule now; take it off `{name}` in tools/source_rules.py"


def long_functions(trees: Mapping[PurePosixPath, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield place and problem of each function that takes too many lines."""
    for path, function in _functions(trees):
        # A signature counts as a line: that of a command is a table, an option a line.
        count = (function.end_lineno or function.lineno) - function.body[0].lineno + 2
        if count > MAX_FUNCTION_LINES:
            wanted = f"{count} lines, more than {MAX_FUNCTION_LINES}; split it by step"
            yield f"{path}:{function.name}", wanted


def crowded_commands(trees: Mapping[PurePosixPath, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield place and problem of each command that takes too many parameters.

    A group of options is one parameter: a dataclass, or a decorator that adds them all.
    """
    commands = {path: tree for path, tree in trees.items() if path.is_relative_to(COMMANDS)}
    for path, function in _functions(commands):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        if len(arguments) > MAX_PARAMETERS:
            wanted = f"{len(arguments)} parameters, more than {MAX_PARAMETERS}; make groups of them"
            yield f"{path}:{function.name}", wanted


def programs_in_strings(trees: Mapping[PurePosixPath, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield place and problem of each package file with a Python program in a string literal.

    Most lines of such a string are statements, whatever is put into it later. Docstrings are
    excepted. One line a file: the files become functions one at a time.
    """
    for path, tree in trees.items():
        if path.parts[0] != "packages" or str(path) in EMITTERS:
            continue
        docstrings = set(map(id, _docstrings(tree)))
        for node in ast.walk(tree):
            if id(node) not in docstrings and (text := _text(node)) is not None:
                lines = [line for line in text.splitlines() if line.strip()]
                statements = sum(map(bool, map(_STATEMENT.fullmatch, lines)))
                if len(lines) > MAX_STRING_LINES and 2 * statements > len(lines):
                    wanted = f"line {node.lineno} holds {len(lines)} lines of Python in a string"
                    yield str(path), f"{wanted}; write a function"
                    break


def small_modules(
    root: Path, trees: Mapping[PurePosixPath, ast.Module], limit: int = MIN_MODULE_LINES
) -> Iterator[str]:
    """Yield a note for each module of fewer than `limit` lines that one other module imports."""
    packages = {path: tree for path, tree in trees.items() if path.parts[2:3] == ("src",)}
    modules = {_module_name(path): path for path in packages}
    importers: Counter[str] = Counter()
    importer: dict[str, PurePosixPath] = {}
    for path, tree in packages.items():
        for name in {found for found in _imports(tree) if found in modules}:
            importers[name] += 1
            importer[name] = path
    for name, path in sorted(modules.items()):
        count = len((root / path).read_bytes().splitlines())
        small = path.stem != "__init__" and count < limit
        # An `__init__` that gathers its folder is no reason to merge.
        if small and importers[name] == 1 and importer[name].stem != "__init__":
            yield f"{path}: {count} lines, imported by {importer[name].name} only; merge the two?"


def _functions(
    trees: Mapping[PurePosixPath, ast.Module],
) -> Iterator[tuple[PurePosixPath, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in trees.items():
        for node in definitions(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in definitions(tree):
        if isinstance(first := next(iter(node.body), None), ast.Expr):
            yield first.value


def _text(node: ast.AST) -> str | None:
    """Return the text of a string or f-string, with `x` for each value that is put into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "x" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _module_name(path: PurePosixPath) -> str:
    parts = path.with_suffix("").parts[3:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in (each for scope in definitions(tree) for each in scope.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
