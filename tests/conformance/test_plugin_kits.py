"""The kits of plugins: sound plugins pass, and each planted fault is found by its check."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

import doc_examples
import gptrs
from conformance import plugin_faults as faults
from conformance import source_faults
from conformance import test_reference_kit as reference_faults
from conformance.model_faults import MODELS, OTHERS, Encoder, Pixels, other_model, tiny_model
from conformance.mutants import MUTANTS
from gptrs.api.models import ConfigFields
from gptrs_conformance.plugin_kits import (
    commands,
    exporters,
    functionals,
    importers,
    models,
    trace_sinks,
)
from gptrs_conformance.plugin_kits.subject import checks_of, run_kit

FAULTS = 20
"""The least number of planted faults of a kit; each is found by its check."""
KIT_COLUMNS = 5
"""Of the table of kits in the docs."""


@pytest.fixture(scope="module")
def ref():
    return gptrs.get_backend("ref")


def importer(read=faults.read_lines):
    return importers.Importer(
        read=read, suffix=".line", sample=faults.write_line, reference=faults.line_in_numpy
    )


def exporter(write=faults.write_words):
    return exporters.Exporter(write=write, suffix=".words", read=faults.read_words)


def functional(function=faults.silu, declines=faults.why_not):
    return functionals.Functional(
        functional="silu", name="mine", function=function, declines=declines
    )


COMMAND = """
import json, sys
from pathlib import Path
{imports}
import typer
from gptrs.api import UsageError
from gptrs_cli.terminal.failures import report

def run(file: Path, as_json: bool = typer.Option(False, "--json")):
    {about}
    if not file.exists():
        {refuse}
    {answer}

app = typer.Typer(add_completion=False)
app.command({settings})(run)
try:
    app(prog_name="gptrs count", standalone_mode=False)
except (Exception, SystemExit) as error:
    {report}
"""
SOUND = {
    "imports": "",
    "about": '"""Count the bytes of a file."""',
    "refuse": 'raise UsageError(f"`{file}` is not there")',
    "answer": 'print(json.dumps({"bytes": 3}) if as_json else 3)',
    "report": 'sys.exit(report(error, as_json="--json" in sys.argv, debug=False))',
    "settings": "",
}
COMMANDS = {
    "helps": {
        "no docstring": {"about": "pass"},
        "a warning": {"imports": 'print("slow", file=sys.stderr)'},
        "an error": {"imports": "import no_such_module_of_the_kit"},
        "nothing": {"imports": "sys.exit(0)"},
    },
    "helps without heavy imports": {"transformers": {"imports": "import torch"}},
    "refuses unknown options": {
        "its own code": {"report": "sys.exit(7)"},
        "silence": {"report": "sys.exit(2)"},
        "on standard output": {"report": 'print(f"error: {error}"); sys.exit(2)'},
        "for arguments": {"settings": "context_settings={'ignore_unknown_options': True}"},
    },
    "works": {
        "raises": {"answer": "raise UsageError('no')"},
        "by chance": {"answer": "import random; print(random.random())"},
        "a traceback": {"answer": "print('Traceback (most recent call last)', file=sys.stderr)"},
        "colours": {"answer": "print('\\x1b[1m3\\x1b[0m')"},
        "a warning of Python": {"answer": "import warnings; warnings.warn('old')"},
        "plain paths alone": {"answer": "print(str(file).encode('ascii'))"},
        "absolute paths alone": {"imports": "import os; os.chdir('/')"},
        "the order of a set": {"answer": "print(set('abcdefgh'))"},
        "the current folder": {"answer": "Path('cache').touch()"},
        "the terminal": {"answer": "import shutil; print('-' * shutil.get_terminal_size()[0])"},
        "the time zone": {"answer": "import time; print(time.strftime('%H', time.localtime(0)))"},
        "a bar": {"answer": "print('50 %\\r100 %', file=sys.stderr)"},
        "logging": {"answer": "import logging; logging.warning('slow')"},
        "an error and 0": {"answer": "print('error: no', file=sys.stderr)"},
        "an object": {"answer": "print(lambda: 3, file=sys.stderr)"},
    },
    "works with json": {
        "a table": {"answer": "print('bytes: 3')"},
        "NaN": {"answer": "print(json.dumps(float('nan')))"},
        "a name twice": {"answer": """print('{"a": 1, "a": 2}')"""},
        "nothing": {"answer": "pass"},
        "JSON in JSON": {"answer": "print(json.dumps(json.dumps({'bytes': 3})))"},
        "no end of the line": {"answer": "print(json.dumps(3), end='')"},
    },
    "fails with one line": {
        "a traceback": {"refuse": "file.read_bytes()", "report": "raise"},
        "its own code": {"refuse": "sys.exit(9)", "report": "raise"},
        "silence": {"refuse": "raise typer.Exit(3)", "report": "sys.exit(3)"},
        "no error": {"refuse": "return"},
        "no words": {"refuse": "raise UsageError('')"},
        "words of Python": {"refuse": "raise UsageError(str(OSError(2, 'No such file')))"},
        "an exception": {"refuse": "raise UsageError(repr(KeyError('a')))"},
        "half a file": {"refuse": "file.touch(); raise UsageError('no')"},
        "two lines": {"refuse": "print('error: no', file=sys.stderr); raise UsageError('no')"},
    },
    "fails with json": {
        "words": {"report": 'print("error: it failed"); sys.exit(2)'},
        "of its own": {"report": 'print(json.dumps({"error": "failed"})); sys.exit(2)'},
        "an error of Python": {"refuse": "{}['a']"},
        "words before it": {"refuse": "print('reading'); raise UsageError('no')"},
        "another code": {
            "report": "found = report(error, as_json='--json' in sys.argv, debug=False);"
            " sys.exit(found + ('--json' in sys.argv))"
        },
        "success": {"refuse": "print(json.dumps({'schema': 'gptrs.error/1'})); sys.exit(0)"},
    },
}


def command(folder: Path, **changes: str):
    script = folder / "count.py"
    script.write_text(COMMAND.format(**SOUND | changes))

    def works(own: Path):
        (own / "file").write_text("abc")
        return [own / "file"]

    return commands.Command(
        name="count", start=[script], works=works, fails=lambda own: [own / "none"]
    )


def planted(table):
    return [
        pytest.param(check, fault, id=f"{check}: {name}")
        for check, named in table.items()
        for name, fault in named.items()
    ]


def require_found(subject, kit, check: str, backend) -> None:
    """Require that this check fails, in words."""
    (chosen,) = [each for each in kit if each.__name__.replace("_", " ") == check]
    report = run_kit(subject, [chosen], backend)
    assert report.failed == 1, report.checks
    assert report.failures[0].reason


def require_sound(subject, kit, backend, *idle: str) -> None:
    report = run_kit(subject, kit, backend)
    assert not report.failures, list(map(str, report.failures))
    assert sorted(n for n, status in report.checks.items() if status == "refused") == sorted(idle)


def test_a_sound_importer_passes(ref) -> None:
    require_sound(importer(), importers.KIT, ref)


@pytest.mark.parametrize(("check", "read"), planted(faults.IMPORTERS))
def test_faults_of_importers_are_found(ref, check, read) -> None:
    require_found(importer(read), importers.KIT, check, ref)


def test_a_sound_exporter_passes(ref) -> None:
    require_sound(exporter(), exporters.KIT, ref)


@pytest.mark.parametrize(("check", "write"), planted(faults.EXPORTERS))
def test_faults_of_exporters_are_found(ref, check, write) -> None:
    require_found(exporter(write), exporters.KIT, check, ref)


def test_our_formats_pass(ref) -> None:
    require_sound(
        exporters.installed_exporter("onnx"),
        exporters.KIT,
        ref,
        "refuses by name before it writes",
    )
    require_sound(
        importers.installed_importer("onnx"),
        importers.KIT,
        ref,
        "gives the values of the reference",
    )


def test_a_sound_functional_passes(ref) -> None:
    require_sound(functional(), functionals.KIT, ref)


@pytest.mark.parametrize(("check", "fault"), planted(faults.FUNCTIONALS))
def test_faults_of_functionals_are_found(ref, check, fault) -> None:
    require_found(functional(*fault), functionals.KIT, check, ref)


def test_an_implementation_that_returns_no_tensor_is_told_what_it_gives(ref) -> None:
    report = run_kit(functional(lambda x: None, None), [functionals.keeps_types_and_shapes], ref)
    assert "silu gives a `NoneType`, the portable" in report.failures[0].reason


def test_an_implementation_that_varies_is_found(ref) -> None:
    counter = itertools.count()
    varying = functional(lambda x: faults.silu(x) + next(counter) * 1e-6, None)
    require_found(varying, functionals.KIT, "gives the same again", ref)


def test_a_sound_sink_passes(ref) -> None:
    require_sound(trace_sinks.TraceSink(make=faults.Timing), trace_sinks.KIT, ref)


@pytest.mark.parametrize(("check", "make"), planted(faults.SINKS))
def test_faults_of_sinks_are_found(ref, check, make) -> None:
    require_found(trace_sinks.TraceSink(make=make), trace_sinks.KIT, check, ref)


@pytest.mark.long
def test_a_sound_command_passes(ref, tmp_path: Path) -> None:
    require_sound(command(tmp_path), commands.KIT, ref)


@pytest.mark.long
@pytest.mark.parametrize(("check", "changes"), planted(COMMANDS))
def test_faults_of_commands_are_found(ref, tmp_path: Path, check, changes) -> None:
    require_found(command(tmp_path, **changes), commands.KIT, check, ref)


@pytest.mark.long
def test_a_sound_model_passes(ref, tmp_path: Path) -> None:
    others = (*models.written_texts.CHECKS, *models.encoders.CHECKS)
    idle = [check.__name__.replace("_", " ") for check in others]
    require_sound(tiny_model(), models.KIT, ref, "saved and loaded is the same", *idle)


@pytest.mark.parametrize(("check", "fault"), planted(MODELS))
def test_faults_of_models_are_found(ref, check, fault) -> None:
    require_found(tiny_model(fault), models.KIT, check, ref)


def test_a_rope_theta_without_effect_is_found_unless_the_kind_says_so(ref) -> None:
    subject = tiny_model()
    settings = {**subject.settings, "rope_theta": 1e4}
    ignoring = replace(subject, settings=settings)
    require_found(ignoring, models.KIT, "positions count", ref)

    def telling(settings, params):
        ConfigFields(settings, "tiny").without_effect("rope_theta")
        return subject.load(settings, params)

    report = run_kit(replace(ignoring, load=telling), [models.positions_count], ref)
    assert report.checks == {"positions count": "pass"}  # it has a table


@pytest.mark.parametrize("kind", [Encoder, Pixels])
def test_sound_models_of_other_capabilities_pass(ref, kind) -> None:
    report = run_kit(other_model(kind), models.KIT[:-2], ref)
    assert (report.failed, report.passed) == (0, 2), list(map(str, report.failures))


@pytest.mark.parametrize("kind", source_faults.SOUND)
def test_sound_models_of_sources_pass(ref, kind) -> None:
    report = run_kit(other_model(kind), models.KIT[:-2], ref)
    assert report.failed == 0, list(map(str, report.failures))
    assert report.passed > 1


@pytest.mark.parametrize(("check", "fault"), [*planted(OTHERS), *planted(source_faults.SOURCES)])
def test_faults_of_other_models_are_found(ref, check, fault) -> None:
    kind, members = fault
    require_found(other_model(kind, **members), models.KIT, check, ref)


def count(*tables) -> int:
    return sum(len(named) for table in tables for named in table.values())


def test_the_docs_tell_how_many_faults_are_planted() -> None:
    counts = {
        "backend": len(MUTANTS),
        "model": count(MODELS, OTHERS, source_faults.SOURCES),
        "functional": count(faults.FUNCTIONALS) + 1,  # that of a test of its own
        "command": count(COMMANDS),
        "trace sink": count(faults.SINKS),
        "importer": count(faults.IMPORTERS),
        "exporter": count(faults.EXPORTERS),
        "reference": count(reference_faults.FAULTS),
    }
    assert min(counts.values()) >= FAULTS
    page = Path(doc_examples.__file__).parents[1] / "docs/plugins/extension_points.md"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text(encoding="utf-8").splitlines()
    ]
    told = {row[0]: row[-1] for row in rows if row[0] in counts and len(row) == KIT_COLUMNS}
    assert told == {kind: str(number) for kind, number in counts.items()}


def test_checks_have_names_of_their_own(ref) -> None:
    kits = (importers, exporters, functionals, trace_sinks, commands, models)
    for kit in kits:
        names = [check.name for check in checks_of(None, kit.KIT)]
        assert len(set(names)) == len(names)
