"""Programs for `gptrs inspect`: interface, work and memory, text, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Struct, field

from gptrs.api.programs import Program, print_json, print_program
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import UsageError
from gptrs_cli.inspect.checkpoint import byte_size, count
from gptrs_cli.options.completion import pass_names
from gptrs_cli.options.declare import option
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note, printable, printable_line
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.programs.diagram import Diagram, diagrams_of
from gptrs_observe.programs.op_work import read_times
from gptrs_observe.programs.picture.svg import MAX_DRAWN, to_dot, to_svg
from gptrs_observe.programs.report import (
    NamedType,
    PassReport,
    ProgramReport,
    ProgramWork,
    explain,
    report_program,
)
from gptrs_observe.results import InspectPass, InspectProgram
from gptrs_runtime.programs import parse_sizes, read_program, with_sizes

# The effect of a pass on a program, for `gptrs inspect --why`.


def print_pass(report: PassReport, *, as_json: bool) -> None:
    """Print the report as JSON or as text."""
    if as_json:
        result = InspectPass(
            name=report.name,
            instructions={"before": report.before, "after": report.after},
            fired=report.fired,
            declined=list(report.declined),
        )
        return print_result(result)
    print(f"pass        {report.name}")
    print(f"program     {report.before} instructions before it, {report.after} after it")
    if not report.equations:
        print("\nThe pass has no rewrites of its own that could decline.")
        return
    if report.fired:
        print()
        rows = [[name, str(n), report.equations.get(name, "")] for name, n in report.fired.items()]
        print_table(["applied", "times", "what it does"], rows)
    if report.declined:
        print()
        rows = [
            [each.rewrite, str(each.times), each.instruction, each.reason]
            for each in report.declined
        ]
        print_table(["declined", "times", "at", "because"], rows)
    if not report.fired and not report.declined:
        print(printable(f"\nNone of its rewrites fits: {', '.join(report.equations)}."))


class ProgramForm(StrEnum):
    """The forms in which a program can be printed."""

    TEXT = "text"
    JSON = "json"


class ProgramOptions(Struct, frozen=True):
    """The part of a program to print, pictures to write, and sizes of symbolic dims."""

    form: Annotated[
        ProgramForm | None,
        option("--print", "Print the program itself, as text or as JSON."),
    ] = None
    svg: Annotated[
        Path | None, option("--svg", "Draw the program to an SVG file.", metavar="FILE")
    ] = None
    dot: Annotated[
        Path | None,
        option("--dot", "Write the same picture in DOT, the language of Graphviz.", metavar="FILE"),
    ] = None
    times: Annotated[
        Path | None,
        option(
            "--times",
            "Color the picture by the times in this profile.json of a run of the program.",
            metavar="FILE",
        ),
    ] = None
    symbols: Annotated[
        list[str],
        option(
            "--symbol",
            "Set the size of the symbolic dim `?N`; repeatable.",
            metavar="N=SIZE",
        ),
    ] = field(default_factory=list[str])
    expand: Annotated[
        bool,
        option("--expand", "With `--print text`, expand composites to their primitives."),
    ] = False
    why: Annotated[
        str | None,
        option(
            "--why",
            "Apply a pass of the optimizer, and print which of its rewrites apply and why others "
            "decline; `--why canonicalization` has the most. For a functional, such as `softmax`, "
            "print which of its composites the backend computes, and why it declines others. "
            "`fallback` prints the parts that run on the backend and on its fallback.",
            metavar="NAME",
            names=pass_names,
        ),
    ] = None

    @property
    def asks_for_program(self) -> bool:
        """Whether any view of the program itself is asked for, besides the report."""
        return any((self.form, self.svg, self.dot, self.why))

    def check(self, *, as_json: bool) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.form is not None and self.why is not None:
            raise UsageError(
                "`--print` and `--why` exclude each other", hint="leave out one of them"
            )
        if self.expand and self.form is not ProgramForm.TEXT:
            raise UsageError("`--expand` is for programs as text", hint="add `--print text`")
        if self.times is not None and self.svg is None and self.dot is None:
            raise UsageError("`--times` colors a picture", hint="add `--svg FILE`")
        if self.form is not None and as_json:
            raise UsageError(
                "`--json` and `--print` exclude each other",
                hint="`--print json` prints the program",
            )


def inspect_program(path: Path, options: ProgramOptions, *, as_json: bool) -> None:
    """Read and verify a program, write the pictures, print the report or the program itself."""
    sizes = parse_sizes(options.symbols)
    program, name = read_program(path), str(path)
    if sizes:
        program = with_sizes(program, sizes)
    show_program(program, name, options, as_json=as_json)


def show_program(program: Program, name: str, options: ProgramOptions, *, as_json: bool) -> None:
    """Write the pictures of a program, print the report or the program itself."""
    if options.svg is not None or options.dot is not None:
        _draw(_diagrams(program, options.times), options)
    if options.why is not None:
        print_pass(explain(program, options.why), as_json=as_json)
    elif options.form is ProgramForm.TEXT:
        print(print_program(program, expand=options.expand), end="")
    elif options.form is ProgramForm.JSON:
        print(print_json(program, indent=2))
    elif as_json:
        report = report_program(program)
        print_result(InspectProgram(program=name, **report.as_json()))
    else:
        _print_report(name, report_program(program))


def _diagrams(program: Program, profile: Path | None) -> list[Diagram]:
    if profile is None:
        return diagrams_of(program)
    times = read_times(profile, program)
    # Less would be shown as 0 %.
    if times.elsewhere >= 0.005:
        note(f"{times.elsewhere:.0%} of the time was in kernels that the picture does not show")
    return diagrams_of(program, times.shares)


def _draw(diagrams: Sequence[Diagram], options: ProgramOptions) -> None:
    boxes = sum(diagram.size() for diagram in diagrams)
    # Larger pictures are hardly usable in a browser.
    if options.svg is not None and boxes > MAX_DRAWN:
        raise UsageError(
            f"`--svg` draws at most {MAX_DRAWN} boxes, the program has {boxes}",
            hint="write `--dot FILE` and draw it with Graphviz: `dot -Tsvg FILE`",
        )
    for path, draw in ((options.svg, to_svg), (options.dot, to_dot)):
        if path is not None:
            with atomic_file(path, OutputFileError) as file:
                file.write(draw(diagrams).encode())
            note(f"wrote {path}")


def _print_report(name: str, report: ProgramReport) -> None:
    work = report.work
    facts = {"program": printable_line(name), "functions": _functions(report)}
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
        print(printable(f"\nThese are lower bounds: {reason}."))


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
