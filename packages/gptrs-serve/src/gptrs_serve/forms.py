"""The form of an answer: a JSON schema, a regex, a grammar, or one of several texts."""

from __future__ import annotations

import json
from typing import Any, Final, cast

import msgspec

from gptrs_runtime.generation.grammar import Form, Grammar, schema_text, with_bounded_spaces
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import Generating, JsonObject, JsonSchema, StructuredOutputs
from gptrs_serve.problems import RequestError, about_field
from gptrs_serve.served import Served

MOST_SCHEMA: Final = 65_536
"""Most characters of a JSON schema: llguidance takes 1.5 s for 5,000 properties in as many,
four times as long for twice as many."""
_OBJECT: Final = '{"type": "object"}'
AskedForm = tuple[Form, str]
_FIELDS: Final = (
    *("regex", "grammar", "structured_outputs", "guided_json", "guided_regex", "guided_choice"),
    *("guided_grammar", "response_format"),  # which may be `text` beside another
)


def bounded_schema(schema: dict[str, Any], param: str) -> str:
    """Return a schema as text; RequestError for more than `MOST_SCHEMA` characters."""
    text = schema_text(schema)
    if len(text) > MOST_SCHEMA:
        raise RequestError(
            f"a JSON schema may have at most {MOST_SCHEMA} characters, this one has {len(text)}",
            param=param,
        )
    return text


def asked_form(body: Generating) -> AskedForm | None:
    """Return the form that a request asks for in any field; RequestError for more than one.

    The form of tool calls is not included.
    """
    found = [*_formats(body), *_guided(body)]
    if body.regex is not None:
        found.append(("regex", body.regex))
    if body.grammar is not None:
        found.append(("lark", body.grammar))
    if len(found) > 1:
        raise RequestError(
            "an answer has one form: `response_format`, `regex`, `grammar`, `structured_outputs` or"
            " one of `guided_*`",
            param="response_format",
        )
    return found[0] if found else None


def _formats(body: Generating) -> list[AskedForm]:
    asked = body.response_format
    if isinstance(asked, JsonObject):
        text = _OBJECT
        if asked.schema is not None:
            text = bounded_schema(asked.schema, "response_format.schema")
        return [("json_schema", text)]
    if isinstance(asked, JsonSchema):
        param = "response_format.json_schema.schema"
        return [("json_schema", bounded_schema(asked.json_schema.schema, param))]
    return []


def _guided(body: Generating) -> list[AskedForm]:
    """Return the forms requested in the fields of vLLM."""
    asked = body.structured_outputs or StructuredOutputs()
    found: list[AskedForm | None] = [
        _schema(body.guided_json, "guided_json"),
        _schema(asked.json, "structured_outputs.json"),
        ("json_schema", _OBJECT) if asked.json_object else None,
    ]
    for regex in (body.guided_regex, asked.regex):
        found.append(None if regex is None else ("regex", regex))
    for choice in (body.guided_choice, asked.choice):
        found.append(None if choice is None else ("lark", _choices(choice)))
    for grammar in (body.guided_grammar, asked.grammar):
        found.append(None if grammar is None else ("lark", grammar))
    return [each for each in found if each is not None]


def _schema(given: dict[str, Any] | str | None, param: str) -> AskedForm | None:
    """Return a schema given as an object or as text."""
    if given is None:
        return None
    if isinstance(given, str):
        try:
            read: object = msgspec.json.decode(given.encode())
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"`{param}` is a text that is not JSON", param=param) from error
        if not isinstance(read, dict):
            raise RequestError(f"`{param}` must be an object", param=param)
        given = cast("dict[str, Any]", read)
    return "json_schema", bounded_schema(given, param)


def _choices(texts: list[str]) -> str:
    return f"start: {' | '.join(json.dumps(text, ensure_ascii=False) for text in texts)}"


def as_rule(form: AskedForm) -> str:
    """Return a form as the right side of a Lark rule; RequestError for a grammar."""
    kind, text = form
    if kind == "json_schema":
        return f"%json {with_bounded_spaces(text)}"
    if kind == "regex":
        # A `/` would end the regex of Lark. Escaped ones are unescaped first, so that none is
        # escaped twice.
        return "/" + text.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n") + "/"
    rules = text.removeprefix("start: ")
    if rules == text or "\n" in rules:
        raise RequestError("a `grammar` cannot be the form of an answer with `tools`",
                           param="grammar")  # fmt: skip
    return rules


async def form_of(
    asked: AskedForm | None, body: Generating, model: LoadedModel, served: Served
) -> Grammar | None:
    """Return a form for the texts of a model; RequestError for one that is invalid."""
    if asked is None:
        return None
    stated = (name for name in _FIELDS if getattr(body, name) is not None)
    # In a thread: a schema of 5,000 properties takes 1.5 s, in which the event loop would answer
    # nobody.
    with about_field(next(stated, "tools")):
        return await served.forms.run(lambda: Grammar(model, *asked))
