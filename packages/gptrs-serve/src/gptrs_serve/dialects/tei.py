"""Routes of Text Embeddings Inference: `/embed`, `/rerank` with `texts`, and `/info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, cast

from msgspec import Meta, field
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from gptrs import __version__
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.option_fields import Options
from gptrs_runtime.text_classes.classify import longest_text
from gptrs_runtime.verbs import VERBS
from gptrs_serve.bodies import MOST_TEXTS, EmbeddingBody, Model, RerankBody, TextInput, Texts
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.listing import (
    answered,
    context_length,
    embedded,
    lists_of,
    results_of,
    written_vectors,
)
from gptrs_serve.pools import THREADS
from gptrs_serve.problems import RequestError, fields_called
from gptrs_serve.served import EMBEDDING, RANKING, Served
from gptrs_serve.text_calls import MOST_TEXTS as MOST_TOGETHER

_Direction = Annotated[
    Literal["Right", "right"],
    Meta(description="Texts lose their end, unless the model says otherwise.", extra=NOTHING),
]


class _Scaled(EmbeddingBody, kw_only=True):
    """Embeddings whose length is asked for."""

    normalize: bool = True

    @override
    def asked(self, request: type[Options]) -> dict[str, Any]:
        return {**super().asked(request), "normalize": self.normalize}


class TextsBody(RequestFields, kw_only=True):
    """`/embed`."""

    refused: ClassVar[Mapping[str, str]] = {
        "prompt_name": "a prompt can stand in the texts",
    }
    inputs: Annotated[Texts, Meta(description="A text, or several.")]
    model: Model | None = None
    normalize: Annotated[bool, Meta(description="False: do not scale vectors to length 1.")] = True
    truncate: Annotated[bool, Meta(description="Cut texts that exceed the context.")] = False
    truncation_direction: _Direction | None = None
    dimensions: (
        Annotated[int, Meta(ge=1, description="Keep the first N elements of each vector.")] | None
    ) = None

    def asked(self) -> EmbeddingBody:
        """Return the requested embeddings."""
        same = ("model", "normalize", "truncate", "dimensions")
        fields = {name: getattr(self, name) for name in same}
        return converted({**fields, "input": self.inputs}, _Scaled)


async def texts_embedded(request: Request, body: TextsBody, served: Served) -> Response:
    """Return a list of vectors."""
    with fields_called({"input": "inputs", "encoding_format": "inputs"}):
        asked = body.asked()
        _, found, _ = await embedded(request, asked, served)
        return await written_vectors(found, lambda: lists_of(asked, found), served)


class TextsRankBody(RerankBody, kw_only=True):
    """`/rerank`: with `documents` as in Jina and Cohere, with `texts` as in this protocol."""

    refused: ClassVar[Mapping[str, str]] = {
        name: why for name, why in RerankBody.refused.items() if name != "texts"
    }
    documents: Annotated[
        Annotated[list[str | TextInput], Meta(max_length=MOST_TEXTS)],
        Meta(description="The documents, for an answer as of `/v1/rerank`."),
    ] = field(default_factory=list)
    texts: (
        Annotated[
            Annotated[list[str], Meta(min_length=1, max_length=MOST_TEXTS)],
            Meta(description="The documents, for a list with the index and score of each."),
        ]
        | None
    ) = None
    return_text: Annotated[bool, Meta(description="Return the texts as well.")] = False
    raw_scores: (
        Annotated[
            Literal[False],
            Meta(description="Scores are as the files of the model say.", extra=NOTHING),
        ]
        | None
    ) = None
    truncation_direction: _Direction | None = None


async def texts_ranked(request: Request, body: TextsRankBody, served: Served) -> Response:
    """Return the scores of texts, the best first; of documents as `/v1/rerank` does."""
    if (body.texts is None) == (not body.documents):
        raise RequestError("give `documents` or `texts`", param="documents")
    with_texts = body.return_text or body.return_documents
    if body.texts is None:
        asked = replace(body, return_documents=with_texts)
        return await answered(request, asked, served, VERBS["rank"])
    asked = replace(body, documents=list[str | TextInput](body.texts))
    _, found, _ = await results_of(request, asked, served, VERBS["rank"])
    return JSONResponse(
        [
            {"index": each.index, "score": each.score} | ({"text": each.text} if with_texts else {})
            for each in found
        ]
    )


_KINDS: Final = (*EMBEDDING, *RANKING)
_DTYPES: Final = {"f32": "float32", "bf16": "bfloat16"}


async def info(request: Request, served: Served) -> Response:
    """Describe the named model, or else the first that embeds, ranks or classifies."""
    name = request.query_params.get("model")
    called, model = served.named(name, served.capability(name, _KINDS))
    limit = (
        longest_text(model) if "text_classifier" in model.capabilities else context_length(model)
    )
    return JSONResponse(
        {
            "model_id": called,
            "model_sha": None,
            "model_dtype": _DTYPES.get(model.precision, model.precision),
            "model_type": _kind(model),
            "max_concurrent_requests": served.ledger.most_requests,
            "max_input_length": limit,
            "max_batch_tokens": MOST_TOGETHER * (limit or 1),
            "max_batch_requests": MOST_TOGETHER,
            "max_client_batch_size": MOST_TEXTS,
            "auto_truncate": False,
            "tokenization_workers": THREADS,
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }
    )


def _kind(model: LoadedModel) -> dict[str, object]:
    """Return the task of a model, with its classes; one with a single class is a reranker."""
    if model.capabilities.isdisjoint(RANKING):
        return {"embedding": {}}
    named = cast("Mapping[str, str]", model.config.get("id2label") or {})
    labels = {"id2label": named, "label2id": {label: number for number, label in named.items()}}
    is_ranker = "reranker" in model.capabilities or len(named) == 1
    return {"reranker" if is_ranker else "classifier": labels}
