"""Further routes of llama.cpp's server: `/completion`, `/apply-template`, `/props`, `/slots`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from gptrs import __version__
from gptrs.errors import ModelError
from gptrs_runtime.chat.answer_reader import AnswerEvent, TextDelta
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import BadWord, Bias, TemplateBody, Token, Tokens
from gptrs_serve.chat import Chat
from gptrs_serve.dialects.infill import GapWriter, Predicting, predicted
from gptrs_serve.dialects.ollama_body import (
    OpenAIPenalty,
    RepeatLastN,
    RepeatPenalty,
    TypicalP,
)
from gptrs_serve.events import event_of, json_answer
from gptrs_serve.fields import NOTHING
from gptrs_serve.listing import context_length
from gptrs_serve.metrics import Metrics
from gptrs_serve.problems import RequestError, about_field, fields_called
from gptrs_serve.requests import asked_conversation
from gptrs_serve.served import WRITING, Served, longest_prompt
from gptrs_serve.tools.use import told_tools

_Off = Annotated[Literal[0], Meta(description="This sampler is always off.", extra=NOTHING)] | None
_OfOff = Annotated[Any, Meta(description="A setting of a sampler that is off.", extra=NOTHING)]
_SCORES: Final = "completion_probabilities"
_SAME: Final = ("typical_p", "presence_penalty", "frequency_penalty", "ignore_eos")
_CALLED: Final = {"repetition_penalty": "repeat_penalty", "response_format": "json_schema"}


class PredictBody(Predicting, kw_only=True):
    """`/completion`."""

    refused: ClassVar[Mapping[str, str]] = {
        "image_data": "messages of `/v1/chat/completions` may have images",
        "lora": "an adapter is named as the `model`",
        "response_fields": "answers have all fields",
    }
    prompt: Annotated[
        str | list[Token | str],
        Meta(description="A text, its tokens, or a list of texts and tokens that are joined."),
    ]
    typical_p: TypicalP | None = None
    repeat_penalty: RepeatPenalty | None = None
    presence_penalty: OpenAIPenalty | None = None
    frequency_penalty: OpenAIPenalty | None = None
    ignore_eos: Annotated[bool, Meta(description="Continue past end-of-text tokens.")] = False
    logit_bias: (
        Annotated[
            dict[BadWord, Bias] | list[tuple[int | BadWord, Bias | Literal[False]]],
            Meta(
                description="Add to the logits of tokens, or of those of a text; `[token, false]`"
                " bans one."
            ),
        ]
        | None
    ) = None
    grammar: Annotated[str, Meta(description="The grammar of the answer: GBNF or Lark.")] = ""
    json_schema: (
        Annotated[dict[str, Any], Meta(description="The JSON schema of the answer.")] | None
    ) = None
    return_tokens: Annotated[bool, Meta(description="Also return the tokens of the answer.")] = (
        False
    )
    n_probs: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=20,
                description="Return the log-probability of each token, and of the N likeliest.",
            ),
        ]
        | None
    ) = None
    repeat_last_n: RepeatLastN | None = None
    dynatemp_range: _Off = None
    dynatemp_exponent: _OfOff = None
    dry_multiplier: _Off = None
    dry_base: _OfOff = None
    dry_allowed_length: _OfOff = None
    dry_penalty_last_n: _OfOff = None
    dry_sequence_breakers: _OfOff = None
    xtc_probability: _Off = None
    xtc_threshold: _OfOff = None
    mirostat: _Off = None
    mirostat_tau: _OfOff = None
    mirostat_eta: _OfOff = None
    n_keep: (
        Annotated[
            int, Meta(description="A prompt that does not fit is refused, not cut.", extra=NOTHING)
        ]
        | None
    ) = None

    def given(self, model: LoadedModel) -> dict[str, object]:
        """Return the fields of a completion of a model; RequestError for several prompts."""
        form: dict[str, object] | None = None
        if self.json_schema is not None:
            form = {"type": "json_object", "schema": self.json_schema}
        return {
            **{name: getattr(self, name) for name in _SAME},
            "prompt": self._joined(model),
            "logprobs": self.n_probs or None,
            "repetition_penalty": self.repeat_penalty,
            "logit_bias": self._biases(model),
            "grammar": self.grammar or None,
            "response_format": form,
        }

    def _joined(self, model: LoadedModel) -> str | Tokens:
        """Return the prompt; texts become tokens, a first one with special tokens before it."""
        if isinstance(self.prompt, str):
            return self.prompt
        if len(self.prompt) > 1 and all(isinstance(part, str) for part in self.prompt):
            raise RequestError(
                "`prompt` has several texts: `/v1/completions` answers them in one request",
                param="prompt",
            )
        tokens: Tokens = []
        most = longest_prompt(model)
        for number, part in enumerate(self.prompt):
            if isinstance(part, str):
                model.tokenizer.require_fitting(part, max(0, most - len(tokens)))
                tokens += model.tokenizer.encode(part, special=not number)
            else:
                tokens.append(part)
        if not tokens:
            raise RequestError("`prompt` has no token", param="prompt")
        return tokens

    def _biases(self, model: LoadedModel) -> dict[str, float] | None:
        """Return the biases by the numbers of tokens."""
        given = self.logit_bias
        if given is None:
            return None
        found: dict[str, float] = {}
        for name, value in given.items() if isinstance(given, dict) else given:
            tokens: Tokens | list[str] = [str(name)]
            # Keys of an object are texts, and so are the numbers among them.
            if isinstance(name, str) and not (isinstance(given, dict) and name.isdigit()):
                tokens = model.tokenizer.encode(name, special=False)
            found.update(dict.fromkeys(map(str, tokens), -100.0 if value is False else value))
        return found


async def completion(
    request: Request, body: PredictBody, served: Served, metrics: Metrics
) -> Response:
    """Continue a text."""
    _, model = served.named(body.model, "causal_lm")
    with fields_called(_CALLED):
        given = await served.reading.prepared(lambda: body.given(model))
        writer = partial(TokensWriter, tells_tokens=body.return_tokens)
        return await predicted(request, body, given, served, metrics, writer)


class TokensWriter(GapWriter):
    """Writes the tokens of the pieces, and their scores, if they are requested."""

    def __init__(self, chat: Chat, *, tells_tokens: bool) -> None:
        super().__init__(chat)
        self._tells_tokens = tells_tokens
        self._told = 0

    @override
    def told(self, event: AnswerEvent) -> Iterator[bytes]:
        assert isinstance(event, TextDelta)  # it is read as text alone
        self._text += event.text
        tokens = {"tokens": self._new()} if self._tells_tokens else {}
        yield event_of({"content": event.text, **tokens, **self._scores(), "stop": False})

    def _new(self) -> list[int]:
        tokens = self.chat.stream.texts[0].tokens
        begin, self._told = self._told, len(tokens)
        return tokens[begin:]

    def _scores(self) -> dict[str, object]:
        """Return the scores that have come since the last ones."""
        scores, self.scores = self.scores, []
        return self.chat.texts.with_ids(scores, _SCORES) if scores else {}

    @override
    def end(self) -> bytes:
        # Of tokens whose text never comes, such as the one that ends it.
        rest = self._scores()
        told = {**self.whole(), "content": ""}
        told.pop(_SCORES, None)
        return event_of({**told, **rest})

    @override
    def whole(self) -> dict[str, object]:
        tokens = [*self.chat.stream.texts[0].tokens]
        more = {"tokens": tokens} if self._tells_tokens else {}
        scores = self.chat.stream.generations[0].logprobs
        more |= self.chat.texts.with_ids(scores, _SCORES) if scores else {}
        return {**super().whole(), **more}


async def applied(body: TemplateBody, served: Served) -> Response:
    """Return the text of messages as the template of the model renders them."""
    _, model = served.named(body.model, served.capability(body.model, WRITING))

    def render() -> str:
        asked = asked_conversation(body, told_tools(body))
        template = model.chat_template(with_tools=asked.tools is not None)
        return template.render(asked)

    with about_field("messages"):
        return json_answer({"prompt": await served.reading.run(render)}, 1)


async def props(request: Request, served: Served) -> Response:
    """Describe a model, by default the first."""
    name = request.query_params.get("model")
    called, model = served.named(name, served.capability(name, WRITING))
    try:
        template = model.chat_template().source
    except ModelError:
        template = ""
    has_images = "image_lm" in model.capabilities
    return JSONResponse(
        {
            "default_generation_settings": {"n_ctx": context_length(model)},
            "model_alias": called,
            "chat_template": template,
            "modalities": {"vision": has_images, "audio": False},
            "build_info": f"gptrs {__version__}",
        }
    )


async def slots(request: Request, served: Served) -> Response:
    """Return the places of answers that run at once, with what each has read and written.

    RequestError, if the query asks for it, where all are taken.
    """
    engine = served.engine
    running = [] if engine is None else engine.running_texts()
    most = 0 if engine is None else max(engine.most_running, len(running))
    if request.query_params.get("fail_on_no_slot") and len(running) == most:
        raise RequestError(f"{most} answers run, which is the most", status=503, code="no_slot")
    idle: dict[str, object] = {"model": None, "is_processing": False}
    found = [
        {
            "model": name,
            "is_processing": True,
            "speculative": text.guesses is not None,
            "n_prompt_tokens": len(text.prompt),
            "n_prompt_tokens_cache": text.found,
            "n_decoded": len(text.tokens),
        }
        for name, text in running
    ]
    rows = [*found, *([idle] * (most - len(found)))]
    return JSONResponse([{"id": number, **row} for number, row in enumerate(rows)])
