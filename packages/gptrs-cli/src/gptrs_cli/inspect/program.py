"""Shows a program for `gptrs inspect`: interface, work and memory, its text, its picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptrs.api import print_json, print_program
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import UsageError
from gptrs.runtime.programs.diagram import Diagram, diagrams_of
from gptrs.runtime.programs.file import read_program
from gptrs.runtime.programs.pass_report import explain_pass
from gptrs.runtime.programs.report import NamedType, ProgramReport, ProgramWork, report_program
from gptrs.runtime.programs.sizes import with_sizes
from gptrs_cli.inspect.checkpoint import byte_size, count
from gptrs_cli.inspect.passes import print_pass
from gptrs_cli.inspect.picture.dot import to_dot
from gptrs_cli.inspect.picture.svg import to_svg
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.stderr import note, printable
from gptrs_cli.terminal.tables import print_table

MAX_DRAWN = 1000
"""Most boxes in an SVG picture: beyond, nobody could find anything in it."""


@dataclass(frozen=True)
class Request:
    """What the user asked for: what to print, the files to write, the sizes of symbols."""

    form: str | None
    svg: Path | None
    dot: Path | None
    sizes: dict[int, int]
    as_json: bool
    why: str | None = None
    """The pass to explain instead."""


def inspect_program(path: Path, request: Request) -> None:
    """Read and verify a program, write the pictures, print the report or the program itself."""
    program, name = read_program(path), str(path)
    if request.sizes:
        program = with_sizes(program, request.sizes)
    if request.svg is not None or request.dot is not None:
        _draw(diagrams_of(program), request)
    if request.why is not None:
        print_pass(explain_pass(program, request.why), as_json=request.as_json)
    elif request.form == "text":
        print(print_program(program), end="")
    elif request.form == "json":
        print(print_json(program, indent=2))
    elif request.as_json:
        report = report_program(program)
        print(json.dumps({"program": name, **report.as_json()}, indent=2))
    else:
        _print_report(name, report_program(program))


def _draw(diagrams: Sequence[Diagram], request: Request) -> None:
    boxes = sum(diagram.size() for diagram in diagrams)
    if request.svg is not None and boxes > MAX_DRAWN:
        raise UsageError(
            f"`--svg` draws at most {MAX_DRAWN} boxes, the program has {boxes}",
            hint="write `--dot FILE` and draw it with Graphviz: `dot -Tsvg FILE`",
        )
    for path, draw in ((request.svg, to_svg), (request.dot, to_dot)):
        if path is not None:
            with atomic_file(path, OutputFileError) as file:
                file.write(draw(diagrams).encode())
            note(f"wrote {path}")


def _print_report(name: str, report: ProgramReport) -> None:
    work = report.work
    facts = {"program": name, "functions": _functions(report)}
    if report.symbols:
        facts["symbols"] = ", ".join(report.symbols)
    facts["inputs"] = _listed(report.inputs)
    facts["results"] = _listed(report.results)
    if work is not None:
        facts |= _work_facts(work)
    for fact, text in facts.items():
        first, *more = text.split("\n")
        print(printable(f"{fact:<12}{first}"))
        for line in more:
            print(printable(f"{'':<12}{line}"))
    if work is None:
        print("\nWork and memory depend on the symbols; give their sizes with --symbol.")
        return
    if work.ops:
        print()
        _print_ops(work)
    for reason in work.lower_bounds:
        print(printable(f"\nThere is more to do than this: {reason}."))


def _work_facts(work: ProgramWork) -> dict[str, str]:
    atleast = "at least " if work.lower_bounds else ""
    return {
        "work": f"{atleast}{count(work.arithmetic)} operations and"
        f" {count(work.transcendental)} functions such as exp, on elements",
        "traffic": f"{atleast}{byte_size(work.bytes_moved)}, if each instruction ran alone",
        "memory": f"{byte_size(work.parameter_bytes)} of inputs,"
        f" {byte_size(work.constant_bytes)} of constants,"
        f" {byte_size(work.result_bytes)} of results\n"
        f"at most {byte_size(work.peak_bytes)} live at a time",
    }


def _print_ops(work: ProgramWork) -> None:
    rows = [
        [
            use.op,
            str(use.count),
            count(use.arithmetic),
            count(use.transcendental),
            byte_size(use.bytes_moved),
        ]
        for use in work.ops
    ]
    print_table(["op", "count", "operations", "functions", "traffic"], rows)


def _functions(report: ProgramReport) -> str:
    parts = [f"@{name} of {size} instructions" for name, size in report.functions.items()]
    parts += [f"@{name}, which nothing calls" for name in report.unused]
    return ", ".join(parts)


def _listed(types: Sequence[NamedType]) -> str:
    return "\n".join(f"{each.name}: {each.type}" for each in types) or "none"
