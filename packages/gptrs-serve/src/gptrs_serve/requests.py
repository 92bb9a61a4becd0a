"""Options and prompts for the engine, from the bodies of requests."""

from __future__ import annotations

import re
import time
import uuid
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from starlette.requests import Request

from gptrs.errors import NoTokenError, UsageError
from gptrs_runtime.chat.conversation import FIELDS, Conversation, conversation_of
from gptrs_runtime.generation.generate import GenerationOptions
from gptrs_runtime.generation.logits_processors import (
    AllowedTokens,
    LogitsProcessor,
    SuppressSequences,
)
from gptrs_runtime.generation.model_settings import configured_sampling
from gptrs_runtime.generation.outcome import FinishReason
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.answers import AnswerStream, Piece
from gptrs_serve.bodies import ChatBody, CompletionBody, Conversing, Generating, TokenizeBody
from gptrs_serve.keys import Key
from gptrs_serve.metrics import guesses_of
from gptrs_serve.problems import KEY, RequestError, about_field
from gptrs_serve.token_texts import TokenTexts

_MOST_PROMPTS: Final = 1024
_ANY_SEED: Final = -1
"""The seed that means "any" in vLLM, llama.cpp and many apps; other negative numbers are seeds."""
_TOKEN: Final = re.compile(r"0|[1-9][0-9]{0,17}")
"""Token numbers in one spelling, so that no two keys name the same token."""


class LogitBias:
    """A logits processor that adds to the logits of some tokens; -100 bans one."""

    def __init__(self, biases: Mapping[str, float], vocab_size: int) -> None:
        """Read OpenAI's `logit_bias`; RequestError for keys that are not tokens of the model."""
        for name in biases:
            if not (_TOKEN.fullmatch(name) and int(name) < vocab_size):
                raise RequestError(
                    f"`logit_bias` names tokens by their numbers below {vocab_size}, got"
                    f" {name[:40]!r}",
                    param="logit_bias",
                )
        self._tokens = np.array([int(name) for name in biases], np.int64)
        values = np.array(list(biases.values()), np.float32)
        # OpenAI's -100 means never, but a logit can be 100 above another.
        self._biases = np.where(values <= -100, -np.inf, values).astype(np.float32)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Add the biases."""
        logits[self._tokens] += self._biases
        return logits


def processors_of(body: Generating, model: LoadedModel) -> list[LogitsProcessor]:
    """Return the logits processors of a request; RequestError for tokens that do not exist."""
    vocab_size = model.token_reader().vocab_size
    found: list[LogitsProcessor] = []
    if body.allowed_token_ids:
        with about_field("allowed_token_ids"):
            require_known_tokens(body.allowed_token_ids, vocab_size)
        found.append(AllowedTokens(body.allowed_token_ids, vocab_size))
    if body.bad_words:
        with about_field("bad_words"):
            spelled = {tuple(model.tokenizer.encode(text, special=False))
                       for word in body.bad_words for text in (word, f" {word}")}  # fmt: skip
        found.append(SuppressSequences(filter(None, spelled), ()))
    if body.logit_bias:
        found.append(LogitBias(body.logit_bias, vocab_size))
    return found


def shown_special(body: Generating, model: LoadedModel) -> frozenset[str]:
    """Return the special tokens that the text of an answer shows: none, or all but its end."""
    if body.skip_special_tokens is not False or not model.has_tokenizer:
        return frozenset()
    ends = () if body.ignore_eos else model.eos_tokens
    return model.tokenizer.special_pieces() - {model.tokenizer.token_text(end) for end in ends}


def shown_texts(body: Generating, model: LoadedModel, texts: TokenTexts) -> TokenTexts:
    """Return the texts of tokens as a request asks for them."""
    special, by_number = shown_special(body, model), bool(body.return_tokens_as_token_ids)
    return texts.shown(special, by_number=by_number) if special or by_number else texts


def options_of(
    body: Generating,
    model: LoadedModel,
    logprobs: int | None,
    *,
    special: frozenset[str] = frozenset(),
) -> GenerationOptions:
    """Return the options of a request, except `max_tokens` and `form`; `special` tokens are shown.

    Missing options come from generation_config.json, if that samples, else from OpenAI's
    defaults: temperature 1, all tokens. RequestError and UsageError for unsupported options.
    """
    settings = model.generation_config
    asked = body.sampling()
    if "temperature" not in asked and not settings.get("do_sample"):
        asked["temperature"] = 1.0
    if asked.get("top_k") == -1:  # as vLLM writes it
        asked["top_k"] = 0
    if asked.get("seed") == _ANY_SEED:
        del asked["seed"]
    sampling = configured_sampling(settings, **asked)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    stop = [text for text in stop if text]  # an empty one has no effect
    with about_field("stop_token_ids"):
        require_known_tokens(body.stop_token_ids or (), model.token_reader().vocab_size)
    return GenerationOptions(
        sampling=sampling,
        stop=tuple(stop),
        keep_stop=body.include_stop_str_in_output is True,
        stop_tokens=tuple(body.stop_token_ids or ()),
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        logprobs=logprobs,
        special=special | shown_special(body, model),
        logits_processors=processors_of(body, model),
        # Several greedy steps in one run are faster, but would reach a stream in lumps.
        steps_at_once=1 if body.stream else None,
    )


def client_of(request: Request) -> Client:
    """Return the client of a request: its API key, else its address.

    Unchecked keys do not count, as a client could send any.
    """
    key: Key | None = request.scope.get(KEY)
    if key is not None:
        return key.client
    # Not a header such as X-Forwarded-For, which anyone can write to get a turn of their own. Unix
    # sockets have no address: all of their requests are one client.
    return Client(request.client.host if request.client else "")


def chat_logprobs(body: ChatBody) -> int | None:
    """Return how many likeliest tokens a chat asks for; None without log-probabilities."""
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs`", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def chat_max_tokens(body: ChatBody) -> int | None:
    """Return the most tokens of an answer in a chat; None if the request does not say."""
    if body.max_tokens and body.max_completion_tokens:
        raise RequestError(
            "`max_tokens` and `max_completion_tokens` exclude each other", param="max_tokens"
        )
    return body.max_completion_tokens or body.max_tokens


def asked_conversation(
    body: ChatBody | Conversing, tools: list[dict[str, Any]] | None
) -> Conversation:
    """Return the conversation of a request, with `tools` for its template."""
    fields = {name: getattr(body, name) for name in FIELDS}
    try:
        return conversation_of({**fields, "tools": tools})
    except UsageError as error:
        # Clients mark the field that `param` names.
        told = next((name for name in FIELDS if f"`{name}" in error.message), "messages")
        told = "chat_template_kwargs" if "variable" in error.message else told
        raise RequestError(error.message, param=told) from error


def require_no_conversation(body: TokenizeBody) -> None:
    """Raise RequestError for fields of conversations beside a text."""
    for name in (*FIELDS, "tool_choice"):
        if getattr(body, name) is not None:
            raise RequestError(f"`{name}` needs `messages`", param=name)


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts of a completion; RequestError for mixed kinds, or too many."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(part) for part in prompt}
    if len(kinds) > 1:
        raise RequestError("`prompt` mixes texts, tokens and lists of tokens", param="prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if len(prompt) > _MOST_PROMPTS:
        raise RequestError(
            f"a request may have at most {_MOST_PROMPTS} prompts, got {len(prompt)}", param="prompt"
        )
    return cast("list[str | list[int]]", prompt)


def require_fitting(body: CompletionBody) -> None:
    """Raise RequestError for fields of a completion that exclude each other."""
    if body.best_of is not None and body.best_of != body.n:
        raise RequestError("`best_of` other than `n` is not supported", param="best_of")
    if body.truncate_prompt_tokens == 0:
        raise RequestError(
            "`truncate_prompt_tokens` is at least 1, or -1", param="truncate_prompt_tokens"
        )
    scores_prompt = body.prompt_logprobs is not None
    if body.max_tokens == 0 and not (body.echo or scores_prompt):
        raise RequestError(
            "`max_tokens` may be 0 only with `echo` or `prompt_logprobs`", param="max_tokens"
        )
    if scores_prompt and body.stream:
        raise RequestError("`prompt_logprobs` excludes `stream`", param="prompt_logprobs")
    scores_echo = body.echo and body.logprobs is not None
    if scores_prompt and scores_echo:
        raise RequestError(
            "`echo` with `logprobs` scores the prompt: leave out `prompt_logprobs`",
            param="prompt_logprobs",
        )
    if body.interventions is not None and body.max_tokens == 0:
        raise RequestError(
            "`interventions` need an answer: `/v1/interventions` reads a prompt alone",
            param="interventions",
        )
    if body.interventions is not None and (scores_echo or scores_prompt):
        raise RequestError(
            "`interventions` do not go with the scores of a prompt: leave out"
            f" {'`prompt_logprobs`' if scores_prompt else '`echo` or `logprobs`'}",
            param="interventions",
        )


# Answers as objects of OpenAI's API: whole ones, and chunks of a stream.


_REASONS: dict[FinishReason, str] = {"eos": "stop", "stop": "stop", "length": "length"}


def finish_reason(reason: FinishReason | None, *, calls: bool = False) -> str | None:
    """Return OpenAI's finish reason; `calls` says whether there are tool calls. None: not ended."""
    if calls and reason in ("eos", "stop"):
        return "tool_calls"
    return None if reason is None else _REASONS.get(reason)


def told_ids(body: Generating, name: str, tokens: Sequence[int]) -> dict[str, object]:
    """Return the field `name` with tokens, if a request asks for tokens."""
    # An array, as answers of many entries are written in portions of it.
    return {name: array("I", tokens)} if body.return_token_ids else {}


def require_written(pieces: Iterable[Piece]) -> None:
    """Raise NoTokenError if an answer ended because no token was allowed."""
    for piece in pieces:
        if piece.finish_reason == "error":
            raise NoTokenError(piece.error or "the answer cannot go on")


class Envelope:
    """The common fields of all objects of one answer."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self._common: dict[str, object] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def of(self, choices: Iterable[object], **more: object) -> dict[str, object]:
        """Return an object with these choices."""
        return {**self._common, "choices": choices, **more}


def usage(streams: Sequence[AnswerStream], reasoning: int | None = None) -> dict[str, object]:
    """Return token counts; the tokens of a prompt count once for all answers.

    `cached_tokens` were known from other requests. Accepted predictions are guessed tokens that
    were right. `reasoning` counts thoughts; None for a model without thoughts.
    """
    prompt = sum(stream.prompt_tokens for stream in streams)
    new = sum(len(text.tokens) for stream in streams for text in stream.texts)
    cached = sum(stream.cached_tokens for stream in streams)
    told: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    details: dict[str, int] = {} if reasoning is None else {"reasoning_tokens": reasoning}
    guesses = guesses_of(streams)
    if guesses is not None:
        details["accepted_prediction_tokens"] = guesses.accepted
        details["rejected_prediction_tokens"] = guesses.proposed - guesses.accepted
    if details:
        told["completion_tokens_details"] = details
    return told
