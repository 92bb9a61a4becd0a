"""The form that an answer is to have: a JSON schema, a regex, a grammar."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gptrs_runtime.generation.grammar import Form, Grammar, schema_text
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import ChatBody, Generating, JsonObject, JsonSchema
from gptrs_serve.problems import RequestError

MOST_SCHEMA: Final = 65_536
"""Characters of a JSON schema of a request: llguidance takes 1.5 s for 5,000 properties in as many,
four times as long for twice as many."""


def bounded_schema(schema: dict[str, Any], param: str) -> str:
    """Return a schema of a request as text; RequestError for one of more than `MOST_SCHEMA`."""
    text = schema_text(schema)
    if len(text) > MOST_SCHEMA:
        raise RequestError(
            f"a JSON schema has at most {MOST_SCHEMA} characters, this one has {len(text)}",
            param=param,
        )
    return text


async def form_of(body: Generating, model: LoadedModel, calls: str | None = None) -> Grammar | None:
    """Return the form that a request asks for, if it does; RequestError for more than one.

    `calls` is the grammar of the tools that the answer may call.
    """
    asked = body.response_format if isinstance(body, ChatBody) else None
    found: list[tuple[Form, str]] = [] if calls is None else [("lark", calls)]
    if isinstance(asked, JsonObject):
        found.append(("json_schema", '{"type": "object"}'))
    elif isinstance(asked, JsonSchema):
        schema = bounded_schema(asked.json_schema.schema, "response_format.json_schema.schema")
        found.append(("json_schema", schema))
    if body.regex is not None:
        found.append(("regex", body.regex))
    if body.grammar is not None:
        found.append(("lark", body.grammar))
    if len(found) > 1:
        raise RequestError(
            "an answer has one form: `response_format`, `regex`, `grammar` or `tools`",
            param="response_format",
        )
    return await asyncio.to_thread(Grammar, model, *found[0]) if found else None
