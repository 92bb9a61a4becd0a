"""The smaller routes: embeddings, rankings, classes, tokens, the models that there are."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.errors import ContextLengthError
from gptrs_runtime.images.image_prompts import shown_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Entity, LabelScore, Ranked
from gptrs_runtime.text_classes.classify import all_classes
from gptrs_runtime.verbs import Verb
from gptrs_serve.bodies import (
    ClassifyBody,
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    TagBody,
    TaskFields,
    TokenizeBody,
)
from gptrs_serve.events import for_client
from gptrs_serve.problems import RequestError
from gptrs_serve.requests import asked_conversation, require_no_conversation
from gptrs_serve.served import RANKING, SERVED, Served
from gptrs_serve.tools.use import told_tools

Result = TypeVar("Result")


async def answered(request: Request, body: TaskFields, served: Served, verb: Verb) -> Response:
    """Return what a task finds, in the form of its protocol."""
    needs = _ranking(body.model, served) if verb.name == "rank" else verb.needs
    name, model = served.named(body.model, needs)
    function = all_classes if verb.name == "classify" else None  # in the order of the classes
    work = served.found(verb, model, body.asked(verb.request()), function)
    found, read = await _for_client(request, work)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse(_FORMS[verb.name](body, name, found, usage))


def _vectors(
    body: EmbeddingBody, model: str, found: Sequence[np.ndarray], usage: object
) -> dict[str, object]:
    encoded = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encoded(vector) if encoded else vector.tolist(),
        }
        for index, vector in enumerate(found)
    ]
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _classes(
    body: ClassifyBody, model: str, found: Sequence[Sequence[LabelScore]], usage: object
) -> dict[str, object]:
    data: list[dict[str, object]] = [
        {
            "index": index,
            "label": max(row, key=lambda each: each.score).label,
            "probs": [each.score for each in row],
            "num_classes": len(row),
        }
        for index, row in enumerate(found)
    ]
    return _described("classify", model, data, usage)


def _tags(
    body: TagBody, model: str, found: Sequence[Sequence[Entity]], usage: object
) -> dict[str, object]:
    data: list[dict[str, object]] = [
        {"index": index, "entities": [asdict(entity) for entity in entities]}
        for index, entities in enumerate(found)
    ]
    return _described("tag", model, data, usage)


def _ranked(
    body: RerankBody, model: str, found: Sequence[Ranked], usage: object
) -> dict[str, object]:
    results: list[dict[str, object]] = []
    for each in found:
        result: dict[str, object] = {"index": each.index, "relevance_score": each.score}
        if body.return_documents:
            result["document"] = {"text": each.text}
        results.append(result)
    return {"id": f"rerank-{uuid.uuid4().hex}", "model": model, "results": results, "usage": usage}


_FORMS: Final[Mapping[str, Callable[..., dict[str, object]]]] = {
    "embed": _vectors,
    "classify": _classes,
    "tag": _tags,
    "rank": _ranked,
}
"""The results of tasks, in the formats of OpenAI, vLLM and Jina."""


async def _for_client(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of `work`, which ends, with ClientDisconnect, when the client goes away.

    RequestError for a text that is longer than the model reads.
    """
    try:
        return await for_client(request, work)
    except ContextLengthError as error:
        raise RequestError(
            f"{error.message}; `truncate` has it cut",
            param="truncate",
            code="context_length_exceeded",
        ) from error


def _described(
    what: str, model: str, data: Sequence[dict[str, object]], usage: object
) -> dict[str, object]:
    """Return a list of results as vLLM describes one."""
    return {
        "id": f"{what}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": list(data),
        "usage": usage,
    }


def _encoded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def _ranking(name: str | None, served: Served) -> str:
    """Return the capability by which a model ranks; without a name that of the first one."""
    models = served.models.values() if name is None else [served.models.get(name)]
    found = (each for each in models if each is not None)
    return next(
        (kind for each in found for kind in RANKING if kind in each.capabilities), RANKING[0]
    )


async def tokenize(body: TokenizeBody, served: Served) -> Response:
    """Return the tokens of a text, or of messages as the template renders them."""
    _, model = _reader(body.model, served)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either `prompt` or `messages`", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise RequestError(
                "the template of `messages` writes special tokens itself; leave out"
                " `add_special_tokens`",
                param="add_special_tokens",
            )
        tokens = await served.tokens(model, asked_conversation(body, told_tools(body)))
    else:
        require_no_conversation(body)
        text, special = body.prompt or "", body.add_special_tokens is not False
        tokens = await served.reading.run(lambda: model.tokenizer.encode(text, special=special))
    length = model.token_reader().context_length
    return JSONResponse(
        {"count": len(tokens), "max_model_len": length, "tokens": list(shown_tokens(tokens))}
    )


async def detokenize(body: DetokenizeBody, served: Served) -> Response:
    """Return the text of tokens."""
    _, model = _reader(body.model, served)
    most = model.token_reader().vocab_size
    for token in body.tokens:
        if token >= most:
            raise RequestError(
                f"token {token} is not in the vocabulary of {most} tokens", param="tokens"
            )
    text = await served.reading.run(lambda: model.tokenizer.decode(body.tokens, special=True))
    return JSONResponse({"prompt": text})


def _reader(name: str | None, served: Served) -> tuple[str, LoadedModel]:
    if name is None:
        name = next(iter(served.models))
    known = served.models.get(name)
    found = [each for each in SERVED if known is not None and each in known.capabilities]
    return served.named(name, found[0] if found else SERVED[0])


def listed_models(served: Served) -> Response:
    """Return the models that there are."""
    return JSONResponse(
        {"object": "list", "data": [_model(name, served) for name in served.models]}
    )


def one_model(name: str, served: Served) -> Response:
    """Return one model; RequestError if there is none of the name."""
    if name not in served.models:
        raise RequestError(
            f"there is no model called {name[:80]!r}",
            status=404,
            param="model",
            code="model_not_found",
        )
    return JSONResponse(_model(name, served))


def _model(name: str, served: Served) -> dict[str, object]:
    model = served.models[name]
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "gptrs",
        "max_model_len": model.token_reader().context_length,
        "capabilities": sorted(model.capabilities),
    }
