"""The form that an answer is to have: a JSON schema, a regex, a grammar."""

from __future__ import annotations

import asyncio
from typing import Any

from gptrs.runtime.generation.grammar import Form, Grammar
from gptrs.runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import ChatBody, Generating, JsonObject, JsonSchema
from gptrs_serve.problems import RequestError


async def form_of(body: Generating, model: LoadedModel, calls: str | None = None) -> Grammar | None:
    """Return the form that a request asks for, if it does; RequestError for more than one.

    `calls` is the grammar of the tools that the answer may call.
    """
    asked = body.response_format if isinstance(body, ChatBody) else None
    found: list[tuple[Form, str | dict[str, Any]]] = [] if calls is None else [("lark", calls)]
    if isinstance(asked, JsonObject):
        found.append(("json_schema", {"type": "object"}))
    elif isinstance(asked, JsonSchema):
        found.append(("json_schema", asked.json_schema.schema))
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
