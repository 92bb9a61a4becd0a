"""The table of tasks: one row each, from which commands, routes and tasks on rows of data follow.

`gptrs --help` reads names and summaries here: what a row refers to is imported when it is used.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from gptrs.lazy_module import lazy_module
from gptrs.quoting import counted

if TYPE_CHECKING:
    import msgspec

    from gptrs_runtime import perplexity, results
    from gptrs_runtime import verb_requests as asked_of
    from gptrs_runtime.embedding import embed
    from gptrs_runtime.embedding.embed import Embedded, Matches
    from gptrs_runtime.loaded_model import LoadedModel
    from gptrs_runtime.option_fields import Options
    from gptrs_runtime.results import Entity, Filling, LabelScore, Ranked, Result
    from gptrs_runtime.speech import transcribe
    from gptrs_runtime.text_classes import classify, fill
    from gptrs_runtime.tokenization import tokenizer
    from gptrs_runtime.verb_requests import (
        ClassifyRequest,
        EmbedRequest,
        FillRequest,
        MatchRequest,
        RankRequest,
        TagRequest,
    )
else:
    msgspec = lazy_module("msgspec")
    perplexity = lazy_module("gptrs_runtime.perplexity")
    results = lazy_module("gptrs_runtime.results")
    asked_of = lazy_module("gptrs_runtime.verb_requests")
    embed = lazy_module("gptrs_runtime.embedding.embed")
    transcribe = lazy_module("gptrs_runtime.speech.transcribe")
    classify = lazy_module("gptrs_runtime.text_classes.classify")
    fill = lazy_module("gptrs_runtime.text_classes.fill")
    tokenizer = lazy_module("gptrs_runtime.tokenization.tokenizer")

Rows = Iterator[tuple[object, ...]]
INPUTS: Final = frozenset(("texts", "documents", "query", "pairs", "images", "sound", "text"))
"""Fields of requests that are what a task works on; the others are its options."""
_HUB: Final = "a .gptrschk file, or ORG/NAME[@REVISION] of the Hugging Face hub."
_WITH_HEAD: Final = f"A directory as transformers saves it, {_HUB}"
_SHOWN_CLASSES: Final = 5
"""Classes of a text in the table."""
_SHOWN_VALUES: Final = 4
"""Values of a vector in the table."""


class Verb(Struct, frozen=True):
    """A task of models, by `name`; `summary` and `more` are its help.

    `function` takes a model, and fields of its `request` by keyword; where it has them, `lengths`
    and `progress`, too. `needs` is the method of a model that refuses those that lack what it
    takes; none if no model runs. `result` is what `--json` prints: what was found is its
    `column`, or each attribute of it a key. Where each text is treated by itself, `each` is true,
    and `column` is what a row of data gains. `table` has the titles and the rows of what a terminal
    shows of a request and what was found, `told` the same in a few words. `routes` are those of the
    server.

    `model` says on the command line which models are meant, None for all; `adapted` takes an
    adapter of one, too.
    """

    name: str
    summary: str
    more: str
    request: Callable[[], type[Options]]
    function: Callable[[], Callable[..., Any]]
    result: Callable[[], type[Result]]
    needs: str
    column: str = ""
    table: Callable[[Any, Any], Rows] | None = None
    told: Callable[[Any, Any], str] | None = None
    each: bool = False
    model: str | None = _WITH_HEAD
    adapted: bool = False
    routes: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that the function takes, in the order of the request."""
        taken = inspect.signature(self.function()).parameters
        named = self.request().__struct_fields__
        return tuple(name for name in named if name in taken and name not in INPUTS)

    def run(
        self,
        model: LoadedModel,
        asked: Mapping[str, Any],
        function: Callable[..., Any] | None = None,
        **hooks: Any,
    ) -> Any:
        """Return what the function, or another one like it, finds for fields of a request.

        Those that it does not take are left out. Its errors are raised.
        """
        function = function or self.function()
        taken = inspect.signature(function).parameters
        given = {**asked, **hooks}
        return function(model, **{name: given[name] for name in given if name in taken})

    def values(self, model: LoadedModel, texts: Sequence[str], **options: Any) -> list[Any]:
        """Return what each text gains, as JSON values; errors are raised."""
        found = self.run(model, {"texts": texts, **options})
        return [msgspec.to_builtins(each, enc_hook=results.plain) for each in found]

    def result_of(self, asked: Options, found: Any, **more: Any) -> Result:
        """Return the result of a request; a key that may be left out is where it would be empty."""
        kind = self.result()
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            name = field.name
            value = getattr(found, name, getattr(asked, name, None))
            value = more.get(name, found if name == self.column else value)
            is_empty = value is None or (isinstance(value, list | tuple) and not value)
            if field.required or not is_empty:
                fields[name] = value
        return kind(**fields)


def _of_vectors(asked: EmbedRequest, found: Embedded) -> Rows:
    """The first values of each vector, or how alike each two are."""
    texts = [str(each) for each in asked.images or asked.texts]
    what = "image" if asked.images else "text"
    if found.similarities is None:
        yield "#", "vector", what
        for number, (vector, text) in enumerate(zip(found.vectors, texts, strict=True)):
            shown = " ".join(f"{value:.4f}" for value in vector[:_SHOWN_VALUES])
            yield number, f"{shown} ..." if len(vector) > _SHOWN_VALUES else shown, text
        return
    yield "#", *map(str, range(len(texts))), what
    for number, (row, text) in enumerate(zip(found.similarities, texts, strict=True)):
        yield number, *(f"{value:.4f}" for value in row), text


def _of_classes(asked: ClassifyRequest, found: Sequence[Sequence[LabelScore]]) -> Rows:
    yield "#", "class", "score", "text"
    for number, row in enumerate(found):
        for rank, each in enumerate(row[:_SHOWN_CLASSES]):
            yield number, each.label, each.score, asked.texts[number] if not rank else ""


def _of_ranking(_: RankRequest, found: Sequence[Ranked]) -> Rows:
    yield "score", "#", "text"
    for each in found:
        yield each.score, each.index, each.text


def _of_matches(asked: MatchRequest, found: Matches) -> Rows:
    yield "image", "probability", "logit", "text"
    for image, name in enumerate(asked.images):
        for text in map(int, found.logits[image].argsort()[::-1]):
            share, logit = found.probabilities[image, text], found.logits[image, text]
            yield name, f"{share:.4f}", f"{logit:.2f}", asked.texts[text]


def _of_entities(_: TagRequest, found: Sequence[Sequence[Entity]]) -> Rows:
    yield "#", "class", "score", "characters", "text"
    for number, row in enumerate(found):
        for each in row:
            yield number, each.label, each.score, f"{each.start}-{each.end}", each.text


def _of_fillings(_: FillRequest, found: Sequence[Sequence[Sequence[Filling]]]) -> Rows:
    yield "#", "mask", "probability", "token", "text"
    for number, row in enumerate(found):
        for position, best in enumerate(row):
            for each in best:
                yield (
                    number,
                    position,
                    each.score,
                    each.token,
                    json.dumps(each.text, ensure_ascii=False),
                )


_ROWS: Final[tuple[Verb, ...]] = (
    Verb(
        "embed",
        "Embed texts or images as vectors.",
        "Similar texts get vectors of similar directions. Pooling, normalization and prompts follow"
        " the files of the model.",
        request=lambda: asked_of.EmbedRequest,
        function=lambda: embed.embed,
        result=lambda: results.Embed,
        needs="text_embedder",
        column="embedding",
        table=_of_vectors,
        each=True,
        model="An embedder: a directory as transformers or sentence-transformers save it, " + _HUB,
        adapted=True,
        routes=("/v1/embeddings",),
    ),
    Verb(
        "classify",
        "Classify texts.",
        "The classes are the model's, or your own with --label. --pair adds a second text to each.",
        request=lambda: asked_of.ClassifyRequest,
        function=lambda: classify.label_texts,
        result=lambda: results.Classify,
        needs="text_classifier",
        adapted=True,
        column="classes",
        table=_of_classes,
        told=lambda asked, _: f"classes of {counted(len(asked.texts), 'text')}",
        each=True,
        routes=("/v1/classify", "/classify"),
    ),
    Verb(
        "rank",
        "Rank documents by how well they answer a query.",
        "The model is a reranker (cross-encoder), which reads the query together with each"
        " document, behind a prompt such as an instruction if there is one.",
        request=lambda: asked_of.RankRequest,
        function=lambda: classify.rank,
        result=lambda: results.Rank,
        needs="ranker",
        adapted=True,
        column="ranking",
        table=_of_ranking,
        told=lambda asked, _: f"scores of {counted(len(asked.documents), 'document')}",
        routes=("/v1/rerank", "/rerank", "/v2/rerank"),
    ),
    Verb(
        "match",
        "Score how well texts describe images.",
        "The model embeds both in one space. The probabilities of an image sum to 1 over the texts,"
        " unless the model scores each text independently.",
        request=lambda: asked_of.MatchRequest,
        function=lambda: embed.match,
        result=lambda: results.Match,
        needs="image_text",
        table=_of_matches,
        told=lambda asked, _: (
            f"scores of {counted(len(asked.images), 'image')} and"
            f" {counted(len(asked.texts), 'text')}"
        ),
    ),
    Verb(
        "tag",
        "Find named entities in texts, or classify words.",
        "Each result is a part of the text, characters `start` up to `end`.",
        request=lambda: asked_of.TagRequest,
        function=lambda: fill.tag,
        result=lambda: results.Tag,
        needs="token_classifier",
        adapted=True,
        column="entities",
        table=_of_entities,
        told=lambda asked, found: (
            f"{counted(sum(map(len, found)), 'part')} of {counted(len(asked.texts), 'text')}"
        ),
        each=True,
        routes=("/v1/tag",),
    ),
    Verb(
        "fill",
        "Fill in the masked words of texts.",
        "Write the model's own mask, such as [MASK] or <mask>, in place of a word.",
        request=lambda: asked_of.FillRequest,
        function=lambda: fill.fill,
        result=lambda: results.Fill,
        needs="masked_lm",
        adapted=True,
        column="fillings",
        table=_of_fillings,
        told=lambda _, found: f"words for {counted(sum(map(len, found)), 'mask')}",
        each=True,
    ),
    Verb(
        "transcribe",
        "Transcribe the speech in a file.",
        "Text goes to standard output, figures to standard error.",
        request=lambda: asked_of.TranscribeRequest,
        function=lambda: transcribe.transcribe,
        result=lambda: results.Transcribe,
        needs="hearer",
        routes=("/v1/audio/transcriptions", "/v1/audio/translations"),
    ),
    Verb(
        "tokenize",
        "Print the tokens of a text, or the text of tokens.",
        "No weights are read. In a pipe only the ids are printed, on one line.",
        request=lambda: asked_of.TokenizeRequest,
        function=lambda: tokenizer.tokenize,
        result=lambda: results.Tokenize,
        needs="",
        model=None,
        routes=("/tokenize", "/detokenize"),
    ),
    Verb(
        "perplexity",
        "Measure how well a model predicts a text.",
        "Perplexity is exp of the mean -log p of its tokens; each but the first is scored once."
        " Compare models on one text, window, stride and tokenizer only; bits per byte between"
        " tokenizers, too.",
        request=lambda: asked_of.PerplexityRequest,
        function=lambda: perplexity.text_perplexity,
        result=lambda: results.Perplexity,
        needs="causal_lm",
        model=None,
        adapted=True,
    ),
)
VERBS: Final[Mapping[str, Verb]] = {verb.name: verb for verb in _ROWS}
