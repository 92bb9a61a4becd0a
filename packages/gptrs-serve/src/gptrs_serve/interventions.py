"""`/v1/interventions`, and what other routes answer about hidden states; off by default."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.quoting import quoted
from gptrs_runtime.generation.generate import Generation, GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.answers import AnswerStream
from gptrs_serve.bodies import TokenizeBody, Tokens
from gptrs_serve.events import for_client
from gptrs_serve.intervention_fields import (
    Intervention,
    LensTokens,
    Names,
    NumberFormat,
    Positions,
    Steering,
    Vectors,
)
from gptrs_serve.problems import RequestError
from gptrs_serve.requests import (
    asked_conversation,
    client_of,
    finish_reason,
    require_no_conversation,
    require_written,
)
from gptrs_serve.served import Served
from gptrs_serve.tools.use import told_tools
from gptrs_serve.watched_runs import Found, Watched


class InterventionBody(TokenizeBody, kw_only=True):
    """`/v1/interventions`: a prompt or messages, the values to read, and the vectors to add."""

    refused: ClassVar[Mapping[str, str]] = {
        "stream": "values are sent when the answer is complete",
        "n": "a request has one answer; `/v1/completions` has several",
    }
    prompt: (  # pyright: ignore[reportIncompatibleVariableOverride]  # read once, by its own route
        Annotated[
            Annotated[str, Meta(max_length=500_000)] | Tokens, Meta(description="A text or tokens.")
        ]
        | None
    ) = None
    max_tokens: Annotated[
        int, Meta(ge=0, description="Most tokens per answer; 0: only read the prompt.")
    ] = 0
    temperature: Annotated[float, Meta(ge=0, le=2, description="0: take the likeliest tokens.")] = (
        0.0
    )
    seed: Annotated[int, Meta(description="The seed of sampling.")] = 0
    read: Names = msgspec.field(default_factory=list[str])
    positions: Positions = "last"
    encoding_format: NumberFormat = "float"
    logit_lens: LensTokens | None = None
    steer: Vectors = msgspec.field(default_factory=list[str | Steering])

    def intervention(self) -> Intervention:
        """Return the fields that other routes have in `interventions`."""
        return Intervention(
            read=self.read,
            positions=self.positions,
            encoding_format=self.encoding_format,
            logit_lens=self.logit_lens,
            steer=self.steer,
        )


async def intervened(request: Request, body: InterventionBody, served: Served) -> Response:
    """Answer a prompt with interventions; RequestError if they are off or invalid."""
    served.allowed_interventions()
    name, model = served.named(body.model, "causal_lm")
    return await for_client(request, _answer(request, name, model, body, served))


async def _answer(
    request: Request, name: str, model: LoadedModel, body: InterventionBody, served: Served
) -> Response:
    tokens = await _tokens(model, body, served)
    watched = await served.watched(model, body.intervention(), len(tokens))
    sampling = Sampling(temperature=body.temperature, seed=body.seed)
    stream = served.submit(
        name,
        model,
        tokens,
        GenerationOptions(sampling=sampling, ignore_eos=body.max_tokens == 0),
        max_tokens=max(1, body.max_tokens),
        answers=1,
        priority=0,
        client=client_of(request),
        watched=watched,
    )
    async with stream:  # ends it in the engine, too, when the client goes away
        async for piece in stream:
            require_written([piece])
    (told,) = await told_interventions(watched, stream, served)
    made = stream.generations[0] if body.max_tokens else None
    written = len(made.token_ids) if made else 0
    return JSONResponse(
        {
            "id": f"intervention-{uuid.uuid4().hex}",
            "object": "intervention",
            "created": int(time.time()),
            "model": name,
            "choices": [_choice(made)] if made else [],
            "prompt_token_ids": [int(token) for token in tokens],
            **told,
            "usage": {
                "prompt_tokens": len(tokens),
                "completion_tokens": written,
                "total_tokens": len(tokens) + written,
            },
        }
    )


async def told_interventions(
    watched: Watched | None, stream: AnswerStream, served: Served
) -> list[dict[str, object]]:
    """Return `states` and `logit_lens` of each answer of a stream that has ended.

    Empty without interventions. RequestError for rows that cannot be told.
    """
    if watched is None:
        return []
    found = await served.allowed_interventions().found(watched, stream.texts)
    asked = watched.asked
    return [
        {"states": _states(each, asked) if asked.read else {}, "logit_lens": _lenses(each)}
        for each in found
    ]


async def _tokens(model: LoadedModel, body: InterventionBody, served: Served) -> Sequence[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either `prompt` or `messages`", param="prompt")
    if body.messages is not None:
        asked = await served.reading.prepared(lambda: asked_conversation(body, told_tools(body)))
        return await served.tokens(model, asked)
    require_no_conversation(body)
    assert body.prompt is not None
    return await served.tokens(model, body.prompt)


def _choice(made: Generation) -> dict[str, object]:
    reason = finish_reason(made.finish_reason)
    return {"index": 0, "text": made.text, "token_ids": made.token_ids, "finish_reason": reason}


def _states(found: Found, asked: Intervention) -> dict[str, object]:
    def data(name: str, rows: np.ndarray) -> object:
        if asked.encoding_format == "float":
            if not np.isfinite(rows).all():
                raise RequestError(
                    f"{quoted(name)} has numbers that are not finite, which JSON does not have: ask"
                    " for `base64`",
                    param="encoding_format",
                )
            return rows.tolist()
        return base64.b64encode(rows.astype("<f4").tobytes()).decode("ascii")

    return {
        name: {"shape": rows.shape, "positions": found.positions, "data": data(name, rows)}
        for name, rows in found.states.items()
    }


def _lenses(found: Found) -> dict[str, object]:
    return {
        name: [
            {"position": position, "tokens": msgspec.to_builtins(tokens)}
            for position, tokens in zip(found.positions, rows, strict=True)
        ]
        for name, rows in found.lens.items()
    }
