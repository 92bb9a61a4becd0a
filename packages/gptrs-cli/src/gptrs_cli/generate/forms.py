"""The form that texts of `gptrs generate` have: a JSON schema, a grammar, a regex."""

from __future__ import annotations

from gptrs.quick_dataclass import dataclass
from gptrs.runtime.generation.grammar import Form, Grammar
from gptrs.runtime.loaded_model import LoadedModel
from gptrs_cli.generate.options import FormOptions
from gptrs_cli.options.text_input import read_text


@dataclass(frozen=True)
class AskedForm:
    """A form, and its text: of a file that was read, or of the option."""

    kind: Form
    source: str

    def of(self, model: LoadedModel) -> Grammar:
        """Return the form for texts of a model; errors as those of `Grammar`."""
        return Grammar(model, self.kind, self.source)


def asked_form(options: FormOptions) -> AskedForm | None:
    """Return the form that was asked for; UsageError for a file that cannot be read."""
    if options.json_schema is not None:
        return AskedForm("json_schema", read_text(options.json_schema, "the JSON schema"))
    if options.grammar is not None:
        return AskedForm("lark", read_text(options.grammar, "the grammar"))
    return None if options.regex is None else AskedForm("regex", options.regex)
