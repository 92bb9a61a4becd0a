"""`/embed` of Text Embeddings Inference: the vectors of texts, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from gptrs_runtime.option_fields import Options
from gptrs_serve.bodies import EmbeddingBody, Model, Texts
from gptrs_serve.fields import NOTHING, RequestFields, converted
from gptrs_serve.listing import embedded, lists_of, written_vectors
from gptrs_serve.problems import fields_called
from gptrs_serve.served import Served


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
    truncation_direction: (
        Annotated[
            Literal["Right", "right"],
            Meta(
                description="Texts lose their end, unless the model says otherwise.", extra=NOTHING
            ),
        ]
        | None
    ) = None
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
