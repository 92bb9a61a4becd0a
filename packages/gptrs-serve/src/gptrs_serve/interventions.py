"""`/v1/interventions`: reads and steers hidden states; off without `--interventions`."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Sequence

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_runtime.generation.generate import Generation
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.events import for_client
from gptrs_serve.problems import RequestError
from gptrs_serve.requests import asked_conversation, finish_reason, require_no_conversation
from gptrs_serve.served import Served
from gptrs_serve.tools.use import told_tools
from gptrs_serve.watched_runs import Found, InterventionBody, Interventions


async def intervened(request: Request, body: InterventionBody, served: Served) -> Response:
    """Answer a prompt with interventions; RequestError if they are off or invalid."""
    interventions = served.interventions
    if interventions is None:
        raise RequestError(
            "this server reads and steers no hidden states: start it with `--interventions`",
            status=403,
            code="no_interventions",
        )
    name, model = served.named(body.model, "causal_lm")
    return await for_client(request, _answer(name, model, body, served, interventions))


async def _answer(
    name: str,
    model: LoadedModel,
    body: InterventionBody,
    served: Served,
    interventions: Interventions,
) -> Response:
    tokens = await _tokens(model, body, served)
    account = served.account(model, len(tokens), max(1, body.max_tokens), 1, None)
    try:
        found = await interventions.run(model, tokens, body, account.tokens_of_answer())
    except UsageError as error:  # names and vectors that the model does not have
        more = f"; {error.hint}" if error.hint else ""
        raise RequestError(f"{error.message}{more}", param="read", code=error.code) from error
    made = found.generation if body.max_tokens else None
    written = len(made.token_ids) if made else 0
    return JSONResponse(
        {
            "id": f"intervention-{uuid.uuid4().hex}",
            "object": "intervention",
            "created": int(time.time()),
            "model": name,
            "choices": [_choice(made)] if made else [],
            "prompt_token_ids": [int(token) for token in tokens],
            "states": _states(found, body) if body.read else {},
            "logit_lens": _lenses(found),
            "usage": {
                "prompt_tokens": len(tokens),
                "completion_tokens": written,
                "total_tokens": len(tokens) + written,
            },
        }
    )


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


def _states(found: Found, body: InterventionBody) -> dict[str, object]:
    def data(name: str, rows: np.ndarray) -> object:
        if body.encoding_format == "float":
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
