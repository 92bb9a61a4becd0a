"""The form that an answer is to have: a JSON schema, a regex, a grammar."""

from __future__ import annotations

from gptrs.runtime.generation.grammar import Grammar
from gptrs.runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import ChatBody, Generating, JsonObject, JsonSchema
from gptrs_serve.problems import RequestError


def form_of(body: Generating, model: LoadedModel, calls: str | None = None) -> Grammar | None:
    """Return the form that a request asks for, if it does; RequestError for more than one.

    `calls` is the grammar of the tools that the answer may call.
    """
    asked = body.response_format if isinstance(body, ChatBody) else None
    found = [] if calls is None else [Grammar(model, "lark", calls)]
    if isinstance(asked, JsonObject):
        found.append(Grammar(model, "json_schema", {"type": "object"}))
    elif isinstance(asked, JsonSchema):
        found.append(Grammar(model, "json_schema", asked.json_schema.schema))
    if body.regex is not None:
        found.append(Grammar(model, "regex", body.regex))
    if body.grammar is not None:
        found.append(Grammar(model, "lark", body.grammar))
    if len(found) > 1:
        raise RequestError(
            "an answer has one form: `response_format`, `regex`, `grammar` or `tools`",
            param="response_format",
        )
    return found[0] if found else None
