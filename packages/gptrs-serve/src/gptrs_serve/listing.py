"""The smaller routes: embeddings, rankings, classes, tokens, the list of models."""

from __future__ import annotations

import base64
import time
import uuid
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.errors import ModelError
from gptrs_runtime.embedding.embed import cosine_similarities, embed_either
from gptrs_runtime.images.image_prompts import levels_of, shown_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Entity, LabelScore, Ranked
from gptrs_runtime.text_classes.classify import all_classes
from gptrs_runtime.tokenization.encoded_text import LongTextError
from gptrs_runtime.verbs import VERBS, Verb
from gptrs_serve.bodies import (
    ClassifyBody,
    DetokenizeBody,
    EmbeddingBody,
    ImageInput,
    RerankBody,
    ScoreBody,
    TagBody,
    TaskFields,
    TokenizeBody,
)
from gptrs_serve.events import for_client, json_answer
from gptrs_serve.problems import RequestError, about_field
from gptrs_serve.requests import asked_conversation, require_no_conversation
from gptrs_serve.served import EMBEDDING, RANKING, SERVED, Served
from gptrs_serve.tools.use import told_tools

_MOST_NUMBERS: Final = 20_000
"""Most numbers of vectors that are written on the event loop: about 5 ms."""
Result = TypeVar("Result")


async def results_of(
    request: Request, body: TaskFields, served: Served, verb: Verb
) -> tuple[str, Sequence[Any], int]:
    """Return the model, the results of a task, and the number of tokens read."""
    if isinstance(body, EmbeddingBody):
        return await embedded(request, body, served)
    kinds = RANKING if verb.name == "rank" else (verb.needs,)
    name, model = served.named(body.model, served.capability(body.model, kinds))
    function = all_classes if verb.name == "classify" else None  # in the order of the classes
    work = served.found(verb, model, body.asked(verb.request()), function)
    return name, *await _for_client(request, work, _named(body))


async def answered(request: Request, body: TaskFields, served: Served, verb: Verb) -> Response:
    """Return the result of a task, in the format of its protocol."""
    name, found, read = await results_of(request, body, served, verb)
    usage = {"prompt_tokens": read, "total_tokens": read}
    if not isinstance(body, EmbeddingBody):
        return JSONResponse(_FORMS[verb.name](body, name, found, usage))
    write = partial(_vectors, body, name, found, usage)
    return await written_vectors(found, write, served)


async def written_vectors(
    vectors: Sequence[np.ndarray], write: Callable[[], object], served: Served
) -> Response:
    """Return the JSON of what `write` makes of vectors, of many in a thread."""
    # 2,048 vectors take 1 s to write: in a thread, row by row, as an encoder holds Python's lock.
    if sum(map(len, vectors)) > _MOST_NUMBERS:
        return await served.reading.run(lambda: _json(write()))
    return _json(write())


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


async def embedded(
    request: Request, body: EmbeddingBody, served: Served
) -> tuple[str, Sequence[Any], int]:
    """Return the model, the vectors of texts and images, and the number of tokens read."""
    name, model = served.named(body.model, served.capability(body.model, EMBEDDING))
    found, read = await _for_client(request, _embedded(body, model, served), _named(body))
    return name, found, read


async def _embedded(
    body: EmbeddingBody, model: LoadedModel, served: Served
) -> tuple[Sequence[Any], int]:
    """Return the vectors in the order of the request, and the number of tokens read."""
    verb = VERBS["embed"]
    inputs, asked = body.inputs(), body.asked(verb.request())
    images = [each.image for each in inputs if isinstance(each, ImageInput)]
    texts = [each for each in inputs if not isinstance(each, ImageInput)]
    found: Sequence[Any] = []
    read = 0
    # Texts first, as they may be joined with those of other requests; the order of the request is
    # restored below.
    if texts:
        found, read = await served.found(verb, model, {**asked, "texts": texts})
    if not images:
        return found, read
    if "image_embedder" not in model.capabilities:
        raise RequestError(f"`{model.name}` embeds no images", param="input")
    vectors = await served.calls.alone(lambda: _of_images(model, images, asked.get("dimensions")))
    of_texts, of_images = iter(found), iter(vectors)
    ordered = [next(of_images if isinstance(each, ImageInput) else of_texts) for each in inputs]
    return ordered, read


def _of_images(model: LoadedModel, urls: Sequence[str], dimensions: int | None) -> np.ndarray:
    """Return the vectors of images given as URLs, cut like those of texts."""
    levels = [levels_of(url) for url in urls]
    return embed_either(model, (), levels, dimensions=dimensions).vectors


def _vectors(
    body: EmbeddingBody, model: str, found: Sequence[np.ndarray], usage: object
) -> dict[str, object]:
    data = [
        msgspec.Raw(msgspec.json.encode(_vector(body, index, vector)))
        for index, vector in enumerate(found)
    ]
    return {"object": "list", "data": data, "model": model, "usage": usage}


def lists_of(body: EmbeddingBody, vectors: Sequence[np.ndarray]) -> list[object]:
    """Return vectors as lists of numbers; RequestError as of `_vector`."""
    return [_vector(body, index, vector)["embedding"] for index, vector in enumerate(vectors)]


def _vector(body: EmbeddingBody, index: int, vector: np.ndarray) -> dict[str, object]:
    """Return a vector as OpenAI's API has it; RequestError for numbers that JSON does not have."""
    if body.encoding_format == "base64":
        return {"object": "embedding", "index": index, "embedding": _encoded(vector)}
    if not np.isfinite(vector).all():  # JSON has no such numbers
        raise RequestError(
            f"the vector of input {index} has numbers that are not finite: ask for `base64`",
            param="encoding_format",
        )
    return {"object": "embedding", "index": index, "embedding": vector.tolist()}


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


async def scored(request: Request, body: ScoreBody, served: Served) -> Response:
    """Return the similarity of pairs of texts: by a reranker, else the cosine of vectors."""
    firsts, seconds = (
        [texts] if isinstance(texts, str) else texts for texts in (body.text_1, body.text_2)
    )
    if len(firsts) not in (1, len(seconds)):
        raise RequestError(
            f"`text_1` is one text or as many as `text_2`, got {len(firsts)} and {len(seconds)}",
            param="text_1",
        )
    needs = served.capability(body.model, RANKING)
    if not any(needs in model.capabilities for model in served.called(body.model)):
        needs = "text_embedder"
    name, model = served.named(body.model, needs)
    cut = {"truncate": body.may_cut}
    score = _cosines if needs == "text_embedder" else _relevances
    work = score(served, model, firsts, seconds, cut)
    scores, read = await _for_client(request, work, _named_pairs(body, needs))
    data: list[dict[str, object]] = [
        {"index": index, "object": "score", "score": one} for index, one in enumerate(scores)
    ]
    usage = {"prompt_tokens": read, "total_tokens": read}
    return JSONResponse(_described("score", name, data, usage))


async def _relevances(
    served: Served,
    model: LoadedModel,
    firsts: Sequence[str],
    seconds: Sequence[str],
    cut: Mapping[str, object],
) -> tuple[list[float], int]:
    """Return the scores of a reranker: one query for all texts, or one for each."""
    queries = [(firsts[0], list(seconds))]
    if len(firsts) > 1:
        queries = [(one, [other]) for one, other in zip(firsts, seconds, strict=True)]
    scores: list[float] = []
    read = 0
    for number, (query, documents) in enumerate(queries):
        asked = {"query": query, "documents": documents, **cut}
        try:
            found, count = await served.found(VERBS["rank"], model, asked)
        except LongTextError as error:  # which counts the documents of one query
            raise LongTextError(number + error.number, error.told) from error
        scores += [one.score for one in sorted(found, key=lambda one: one.index)]
        read += count
    return scores, read


async def _cosines(
    served: Served,
    model: LoadedModel,
    firsts: Sequence[str],
    seconds: Sequence[str],
    cut: Mapping[str, object],
) -> tuple[list[float], int]:
    """Return the cosine similarity of each pair."""
    texts = [*firsts, *seconds]
    vectors, read = await served.found(VERBS["embed"], model, {"texts": texts, **cut})
    first, second = (np.stack(vectors[begin:][:count]) for begin, count in
                     ((0, len(firsts)), (len(firsts), len(seconds))))  # fmt: skip
    pairs = zip(np.broadcast_to(first, second.shape), second, strict=True)
    return [float(cosine_similarities(np.stack(pair))[0, 1]) for pair in pairs], read


_FORMS: Final[Mapping[str, Callable[..., dict[str, object]]]] = {
    "classify": _classes,
    "tag": _tags,
    "rank": _ranked,
}
"""The results of tasks, in the formats of OpenAI, vLLM and Jina."""


async def _for_client(request: Request, work: Awaitable[Result], named: _Named) -> Result:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client leaves.

    RequestError for a text that exceeds the model's context, which is `named` by its number.
    """
    with about_field(named.field):
        try:
            return await for_client(request, work)
        except LongTextError as error:
            raise RequestError(
                f"{named.text(error.number)} {error.told}; `truncate` cuts it",
                param="truncate",
                code="context_length_exceeded",
            ) from error


class _Named(Struct, frozen=True):
    """The field that has the texts of a request, and what errors call each `text` of them."""

    field: str
    text: Callable[[int], str]


def _named(body: TaskFields) -> _Named:
    if isinstance(body, RerankBody):
        field = "documents" if getattr(body, "texts", None) is None else "texts"
        return _Named(field, lambda number: f"`query` with `{field}[{number}]`")
    texts: str | list[Any] = getattr(body, "input", "")
    if isinstance(texts, str) or all(isinstance(each, int) for each in texts):  # tokens of one
        return _Named("input", lambda _: "`input`")
    # Images are read apart, and not counted.
    places = [n for n, each in enumerate(texts) if not (isinstance(each, dict) and "image" in each)]
    return _Named("input", lambda number: f"`input[{places[number]}]`")


def _named_pairs(body: ScoreBody, needs: str) -> _Named:
    """Return the names of the texts that are compared: those of pairs, or of all one by one."""

    def called(name: str, number: int) -> str:
        return f"`{name}[{number}]`" if isinstance(getattr(body, name), list) else f"`{name}`"

    def pair(number: int) -> str:
        first = 0 if isinstance(body.text_1, str) or len(body.text_1) == 1 else number
        return f"{called('text_1', first)} with {called('text_2', number)}"

    def text(number: int) -> str:
        firsts = 1 if isinstance(body.text_1, str) else len(body.text_1)
        at_first = number < firsts
        return called("text_1", number) if at_first else called("text_2", number - firsts)

    return _Named("text_2", text if needs == "text_embedder" else pair)


def _described(
    what: str, model: str, data: Sequence[dict[str, object]], usage: object
) -> dict[str, object]:
    """Return a list of results in vLLM's format."""
    return {
        "id": f"{what}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": list(data),
        "usage": usage,
    }


def _encoded(vector: np.ndarray) -> str:
    # Little-endian as OpenAI's client reads it, whatever the machine. It asks for base64 by
    # default, as decimal numbers are several times as long.
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def tokenize(body: TokenizeBody, served: Served) -> Response:
    """Return the tokens of a text, or of messages as the template renders them."""
    _, model = _reader(body.model, served)
    given = (body.prompt, body.content, body.messages)
    if sum(each is not None for each in given) != 1:
        raise RequestError("give one of `prompt`, `content` and `messages`", param="prompt")
    own, other = "add_special", "add_special_tokens"
    own, other = (own, other) if body.content is not None else (other, own)
    if getattr(body, other) is not None:
        raise RequestError(f"`{other}` does not go with this text: use `{own}`", param=other)
    if body.messages is not None:
        # Most templates write <s> themselves; two of them change every answer.
        if body.add_special_tokens:
            raise RequestError(
                "the template of `messages` writes special tokens itself; leave out"
                " `add_special_tokens`",
                param="add_special_tokens",
            )
        asked = await served.reading.prepared(lambda: asked_conversation(body, told_tools(body)))
        tokens = array("I", shown_tokens(await served.tokens(model, asked)))
    else:
        require_no_conversation(body)
        # vLLM adds special tokens by default, and llama.cpp does not.
        text, special = body.prompt or "", body.add_special_tokens is not False
        if body.content is not None:
            text, special = body.content, bool(body.add_special)
        tokens = await served.reading.run(lambda: _tokens(model, text, special))
    length = model.token_reader().context_length
    told = {"count": len(tokens), "max_model_len": length, "tokens": tokens}
    return json_answer(told, len(tokens))


def _tokens(model: LoadedModel, text: str, special: bool) -> array[int]:
    """Return the tokens of a text, in a ninth of the memory of a list of them."""
    tokens = array("I")
    for portion in model.tokenizer.encode_portions(text, special=special):
        tokens.extend(portion)
    return tokens


async def detokenize(body: DetokenizeBody, served: Served) -> Response:
    """Return the text of tokens."""
    _, model = _reader(body.model, served)
    most = model.token_reader().vocab_size
    token = max(body.tokens, default=0)
    if token >= most:
        raise RequestError(
            f"token {token} is not in the vocabulary of {most} tokens", param="tokens"
        )
    text = await served.reading.run(lambda: model.tokenizer.decode(body.tokens, special=True))
    return JSONResponse({"prompt": text, "content": text})  # as in vLLM, and in llama.cpp


def _reader(name: str | None, served: Served) -> tuple[str, LoadedModel]:
    if name is None:
        name = next(iter(served.models))
    known = served.models.get(name)
    found = [each for each in SERVED if known is not None and each in known.capabilities]
    return served.named(name, found[0] if found else SERVED[0])


def context_length(model: LoadedModel) -> int | None:
    """Return the context length of a model; None for one that reads no tokens."""
    try:
        return model.token_reader().context_length
    except ModelError:
        return None


def listed_models(served: Served) -> Response:
    """Return the list of models, with the fields of OpenAI and of Anthropic."""
    names = [*served.models]
    page = {
        "has_more": False,
        "first_id": next(iter(names), None),
        "last_id": (names or [None])[-1],
    }
    data = [_model(name, served) for name in names]
    return JSONResponse({"object": "list", "data": data, **page})


def one_model(name: str, served: Served) -> Response:
    """Return one model; RequestError if the name is unknown."""
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
        "max_model_len": context_length(model),
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
        "capabilities": sorted(model.capabilities),
    }
