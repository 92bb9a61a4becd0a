"""The routes as an OpenAPI page, made from the types of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from gptrs import __version__
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import (
    TASKS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadAdapterBody,
    LoadBody,
    ScoreBody,
    TemplateBody,
    TokenizeBody,
    UnloadAdapterBody,
    UnloadBody,
)
from gptrs_serve.dialects.anthropic_body import CountBody, MessagesBody
from gptrs_serve.dialects.audio import BODIES
from gptrs_serve.dialects.infill import InfillBody
from gptrs_serve.dialects.llama_cpp import PredictBody
from gptrs_serve.dialects.ollama_body import (
    EmbedBody,
    GenerateBody,
    OllamaChatBody,
    OneEmbeddingBody,
    ShowBody,
)
from gptrs_serve.dialects.responses_body import InputTokensBody, ResponsesBody
from gptrs_serve.dialects.tei import TextsBody, TextsRankBody
from gptrs_serve.interventions import InterventionBody
from gptrs_serve.problems import ANTHROPIC, OLLAMA


class Route(Struct, frozen=True):
    """A route in the description: its body, if it has one, and the type of its answer."""

    method: str
    summary: str
    body: type | None = None
    answer: str = "application/json"
    is_list: bool | None = False
    """Whether the answer is a list rather than an object; None: either."""
    form: bool = False
    """Whether the body is a form."""
    deletes: str = ""
    """The summary of DELETE, if the route has it."""
    query: tuple[str, ...] = ()
    """Names of optional values of the query."""

    @property
    def ways(self) -> dict[str, str]:
        """The summaries of all methods."""
        ways = {self.method: self.summary} if self.summary else {}
        return {**ways, **({"delete": self.deletes} if self.deletes else {})}


def _summary(task: str) -> str:
    return "Return a vector for each text." if task == "embed" else VERBS[task].summary


CHANGES: Final = tuple(f"{OLLAMA}{name}" for name in ("pull", "push", "create", "copy", "delete"))
"""Paths by which Ollama's clients change the models of a server."""
_DELETE: Final = CHANGES[-1]
ROUTES: Final[Mapping[str, Route]] = {
    "/v1/chat/completions": Route("post", "Answer a conversation.", ChatBody),
    "/v1/completions": Route("post", "Continue prompts.", CompletionBody),
    "/v1/responses": Route("post", "Answer an input, in OpenAI's Responses API.", ResponsesBody),
    "/v1/responses/input_tokens": Route("post", "Count tokens of an input.", InputTokensBody),
    "/v1/responses/{name}": Route("get", "Return a stored response.", deletes="Forget a response."),
    "/v1/responses/{name}/input_items": Route(
        "get", "Return what a stored response answers.", query=("limit", "order", "after")
    ),
    "/v1/responses/{name}/cancel": Route("post", "Refuse: nothing runs in the background."),
    "/v1/messages": Route("post", "Answer a conversation, in Anthropic's API.", MessagesBody),
    "/v1/messages/count_tokens": Route("post", "Count tokens of a conversation.", CountBody),
    **{
        path: Route("post", _summary(name), body)
        for name, body in TASKS.items()
        for path in VERBS[name].routes
    },
    "/v1/score": Route("post", "Return how well texts match.", ScoreBody),
    "/score": Route("post", "Return how well texts match.", ScoreBody),
    "/embed": Route(
        "post",
        "Return a vector for each text, in the API of Text Embeddings Inference.",
        TextsBody,
        is_list=True,
    ),
    "/rerank": Route(
        "post",
        "Score documents, as `/v1/rerank`, or texts, in the API of Text Embeddings Inference.",
        TextsRankBody,
        is_list=None,
    ),
    "/info": Route(
        "get", "Describe a model, in the API of Text Embeddings Inference.", query=("model",)
    ),
    "/infill": Route("post", "Write the text between two texts.", InfillBody),
    "/completion": Route("post", "Continue a text, in llama.cpp's API.", PredictBody),
    "/apply-template": Route("post", "Return the text of messages.", TemplateBody),
    "/props": Route("get", "Describe a model, in llama.cpp's API.", query=("model",)),
    "/slots": Route(
        "get",
        "List the places of answers that run at once, in llama.cpp's API.",
        is_list=True,
        query=("fail_on_no_slot",),
    ),
    **{
        path: Route(
            "post",
            f"{'Translate speech into English' if more else 'Transcribe speech'}.",
            body,
            form=True,
        )
        for more, (path, body) in enumerate(BODIES.items())
    },
    "/tokenize": Route("post", "Return the tokens of a text or of messages.", TokenizeBody),
    "/detokenize": Route("post", "Return the text of tokens.", DetokenizeBody),
    "/api/chat": Route("post", "Answer a conversation, in Ollama's API.", OllamaChatBody),
    "/api/generate": Route("post", "Answer or continue a text, in Ollama's API.", GenerateBody),
    "/api/embed": Route("post", "Return a vector for each text, in Ollama's API.", EmbedBody),
    "/api/embeddings": Route(
        "post", "Return a vector for a text, in Ollama's API.", OneEmbeddingBody
    ),
    "/api/show": Route("post", "Describe a model, in Ollama's API.", ShowBody),
    "/api/tags": Route("get", "List the models, in Ollama's API."),
    "/api/ps": Route("get", "List the loaded models, in Ollama's API."),
    "/api/version": Route("get", "Return the version of Ollama whose API this is."),
    **{
        path: Route("post", "Return how to change the served models.")
        for path in CHANGES
        if path != _DELETE
    },
    _DELETE: Route("delete", "", deletes="Return how to change the served models."),
    "/v1/interventions": Route(
        "post", "Read and steer hidden states, with `--interventions`.", InterventionBody
    ),
    "/models/load": Route("post", "Load a model, with `--admin`.", LoadBody),
    "/models/unload": Route("post", "Unload a model, with `--admin`.", UnloadBody),
    "/v1/load_lora_adapter": Route(
        "post", "Load an adapter, with `--admin`, as in vLLM.", LoadAdapterBody, answer="text/plain"
    ),
    "/v1/unload_lora_adapter": Route(
        "post",
        "Unload an adapter, with `--admin`, as in vLLM.",
        UnloadAdapterBody,
        answer="text/plain",
    ),
    "/v1/models": Route("get", "List the served models."),
    "/v1/models/{name}": Route("get", "Describe a model."),
    "/health": Route("get", "Return whether the server can answer."),
    "/ready": Route("get", "Return whether the models are loaded and requests are accepted."),
    "/metrics": Route("get", "Return counts and times for Prometheus.", answer="text/plain"),
    "/openapi.json": Route("get", "Return this page."),
}
"""All routes except those of the chat page."""
_EVENTS: Final = (ChatBody, CompletionBody, ResponsesBody, MessagesBody, InfillBody, PredictBody)
_LINES: Final = (OllamaChatBody, GenerateBody)
"""Bodies whose answers may be streams, of events or of lines."""
_REFUSALS: Final = {
    "400": "The request is malformed, or asks for something that is not supported.",
    "401": "The API key is missing or wrong.",
    "403": "The server does not answer for that host, or the route is disabled.",
    "404": "There is no such model or path.",
    "405": "The path has other methods.",
    "413": "The body is too long.",
    "415": "The content type of the body is not JSON.",
    "417": "The server does not meet what the request expects of it.",
    "429": "The server has as many requests as it accepts; try again later.",
    "500": "The server failed.",
    "503": "The server is shutting down, or a process of its model is lost.",
}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_ERRORS: Final[Mapping[str, dict[str, Any]]] = {
    "Error": _ERROR,
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
    "OllamaError": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
}
"""The errors of each protocol."""


def _error_of(path: str) -> str:
    """Return the name of a path's type of error."""
    if path.startswith(OLLAMA):
        return "OllamaError"
    return "AnthropicError" if path.startswith(ANTHROPIC) else "Error"


def openapi_page() -> dict[str, Any]:
    """Return the description of all routes, in OpenAPI 3.1."""
    bodies = [route.body for route in ROUTES.values() if route.body is not None]
    references, schemas = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    known = dict(zip(bodies, references, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gptrs serve",
            "version": __version__,
            "description": "Models of gptrs for clients of OpenAI, Anthropic and Ollama.",
        },
        "paths": {path: {method: _operation(path, route, summary, known)
                         for method, summary in route.ways.items()}
                  for path, route in ROUTES.items()},
        "components": {
            "schemas": {**{name: _nullable(each) for name, each in schemas.items()},
                        **_ERRORS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }  # fmt: skip


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object in which null means an absent field, even an unknown one."""
    if "properties" not in schema:
        return schema
    kept = {*schema.get("required", ()), "type"}  # the last one says which of several it is
    made = {**schema, "properties": {
        name: each if name in kept or _takes_null(each) else {"anyOf": [each, {"type": "null"}]}
        for name, each in schema["properties"].items()
    }}  # fmt: skip
    return made | {"additionalProperties": {"type": "null"}}


def _takes_null(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "null" or any(map(_takes_null, schema.get("anyOf", ())))


def _operation(
    path: str, route: Route, summary: str, known: Mapping[type, dict[str, Any]]
) -> dict[str, Any]:
    content: dict[str, Any] = {route.answer: {"schema": {}}}
    if route.answer == "application/json":
        kinds = {True: "array", False: "object", None: ["array", "object"]}
        content = {route.answer: {"schema": {"type": kinds[route.is_list]}}}
    if route.body in _EVENTS:
        content["text/event-stream"] = {"schema": {}}  # of each event, as clients read it
    if route.body in _LINES:
        content["application/x-ndjson"] = {"schema": {}}
    error = {"$ref": f"#/components/schemas/{_error_of(path)}"}
    refused = {"content": {"application/json": {"schema": error}}}
    told: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: {"description": why, **refused} for status, why in _REFUSALS.items()},
        },
    }
    if route.body is not None:
        given = "multipart/form-data" if route.form else "application/json"
        body = {given: {"schema": known[route.body]}}
        told["requestBody"] = {"required": True, "content": body}
    parameters: list[dict[str, Any]] = [
        {"name": each, "in": "query", "schema": {"type": "string"}} for each in route.query
    ]
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        parameters.insert(0, name)
    if parameters:
        told["parameters"] = parameters
    return told
