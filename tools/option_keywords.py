"""Writes what follows from options and tasks: keywords of functions, and tables in the docs.

python tools/option_keywords.py
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from msgspec import Meta

from gptrs_runtime.generation.options import GenerationOptions, all_options
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load_options import LoadOptions, MachineOptions
from gptrs_runtime.option_fields import Missing, OptionField, Options, option_fields
from gptrs_runtime.verbs import VERBS

ROOT = Path(__file__).parents[1]
KEYWORDS = ROOT / "packages/gptrs-runtime/src/gptrs_runtime/generation/keywords.py"
PAGE = ROOT / "docs/generation.md"
TASKS_PAGE = ROOT / "docs/distributed.md"
LOADING_PAGE = ROOT / "docs/formats.md"
LOADER = ROOT / "packages/gptrs-runtime/src/gptrs_runtime/load.py"
_PARAMETERS = re.compile(r"(?<=\ndef load_model\(\n)(.*?)(?=\) -> LoadedModel:\n)", re.DOTALL)
_FORWARDED = re.compile(r"(?<=    LoadOptions\(\n)(.*?)(?=        \),\n)", re.DOTALL)
BEGIN = "<!-- options: written by tools/option_keywords.py -->"
END = "<!-- end of the options -->"

HEAD = '''\
"""Keywords of a generation, for type checkers: written by tools/option_keywords.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from gptrs_runtime.generation.sampling_options import Sampling

if TYPE_CHECKING:
    from gptrs_runtime.generation.logits_processors import LogitsProcessor, ProcessorMaker
    from gptrs_runtime.generation.options import EarlyStopping
    from gptrs_runtime.loaded_model import LoadedModel


class SamplingFields(TypedDict, total=False):
    """Fields of `Sampling` in place of those of generation_config.json; None leaves them."""

'''
MORE = '''

class OptionFields(SamplingFields, total=False):
    """Fields of `GenerationOptions`, and those of `Sampling`."""

'''


def keywords_text() -> str:
    """The module of the keywords."""
    return HEAD + _fields(Sampling, " | None") + MORE + _fields(GenerationOptions)


def _fields(options: type[Options], more: str = "") -> str:
    kinds = _kinds(options).items()
    return "".join(f"    {name}: {kind.removesuffix(more)}{more}\n" for name, kind in kinds)


def _kinds(options: type[Options]) -> dict[str, str]:
    """The types of the fields of a Struct, as they are written."""
    (made,) = ast.parse(inspect.getsource(options)).body
    assert isinstance(made, ast.ClassDef)
    return {
        each.target.id: _kind(each.annotation)
        for each in made.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def loader_text() -> str:
    """The module of `load_model`, with a parameter for each option: new ones come last."""
    text = LOADER.read_text(encoding="utf-8")
    taken = {
        name for name, each in option_fields(LoadOptions).items() if each.option.keyword is None
    }
    kinds = _kinds(MachineOptions) | _kinds(LoadOptions)
    before = [name for name in re.findall(r"(\w+):", _PARAMETERS.findall(text)[0]) if name in taken]
    names = [*before, *(name for name in kinds if name in taken and name not in before)]
    parameters = ["path: str | Path | None", *(f"{name}: {kinds[name]}" for name in names)]
    text = _PARAMETERS.sub("".join(f"    {each} = None,\n" for each in parameters), text)
    return _FORWARDED.sub("".join(f"            {name}={name},\n" for name in names), text)


def _kind(annotation: ast.expr) -> str:
    """The type in an annotation, without what `Annotated` says of it."""
    if isinstance(annotation, ast.BinOp):
        return f"{_kind(annotation.left)} | {_kind(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[0])
    return ast.unparse(annotation)


def table() -> str:
    """The options as a table: what each is in Python, on the command line, and elsewhere."""
    rows = ["| Python | command line | request | generation_config.json | |", f"|{'---|' * 5}"]
    for name, field in all_options().items():
        option = field.option
        asked = f"`{name}`" if isinstance(option.request, Meta) else _form(option.request)
        flag = option.flag if isinstance(option.flag, Missing) else field.flag or ""
        setting = f"`{option.setting}`" if isinstance(option.setting, str) else "-"
        told = f"{'False: ' * field.negated}{field.meta.description}"
        cells = f"`{name}`", _form(flag), asked, setting, told
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def loading_table() -> str:
    """The options of loading as a table."""
    rows = ["| `load_model` | command line | variable | |", f"|{'---|' * 4}"]
    for name, field in option_fields(LoadOptions).items():
        keyword, variable = field.option.keyword, field.option.variable
        cells = (
            _form(keyword or name),
            _form(field.flag or ""),
            variable and _code(variable),
            _help(field),
        )
        rows.append(f"| {' | '.join(cell or '-' for cell in cells)} |")
    return "\n".join(rows)


def _help(field: OptionField) -> str:
    choices = ", ".join(map(_code, field.option.choices))
    return f"{field.meta.description}{choices and f' {choices}'}"


def _form(form: str | Meta | Missing) -> str:
    return f"no: {form.why}" if isinstance(form, Missing) else f"`{form}`"


def tasks_table() -> str:
    """The tasks of models: their commands, their routes, and what a task on rows takes."""
    rows = ["| command | route of `gptrs serve` | options of `gptrs batch` | |", f"|{'---|' * 4}"]
    for verb in VERBS.values():
        routes, options = ", ".join(map(_code, verb.routes)), ", ".join(map(_code, verb.options))
        cells = f"`gptrs {verb.name}`", routes or "-", options if verb.each else "-", verb.summary
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    return f"`{text}`"


def page_text(page: Path = PAGE) -> str:
    """A page, with its table between the marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = {PAGE: table, TASKS_PAGE: tasks_table, LOADING_PAGE: loading_table}[page]()
    return f"{before}{BEGIN}\n\n{shown}\n\n{END}{after}"


def main() -> None:
    """Write all of them."""
    KEYWORDS.write_text(keywords_text(), encoding="utf-8")
    LOADER.write_text(loader_text(), encoding="utf-8")
    for page in (PAGE, TASKS_PAGE, LOADING_PAGE):
        page.write_text(page_text(page), encoding="utf-8")


if __name__ == "__main__":
    main()
