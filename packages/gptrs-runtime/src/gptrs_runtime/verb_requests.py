"""Requests of tasks: one field for each input and each option, see `option_fields`.

Options of the command line, fields of requests and options of Ray tasks follow from the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

from gptrs.errors import UsageError
from gptrs_runtime.option_fields import (
    PATH,
    PATHS,
    TEXT,
    TEXTS,
    TOKENS,
    Kind,
    Missing,
    Option,
    Options,
)
from gptrs_runtime.speech.fallback import Fallback

TEMPLATE: Final = "This example is {}."
"""The sentence that must follow from a text for it to have a label."""
OUTSIDE: Final = "O"
"""The class of what is none of the others."""
MOST_COMPARED: Final = 100
"""Most texts whose similarities are shown."""
Aggregation = Literal["none", "simple", "first", "average", "max"]
"""How classes of tokens become those of words."""


class SubtitleFormat(StrEnum):
    """How a transcription is printed."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"


_Unserved = partial(Option, request=Missing("the server has no such route"))
_AsFiles = partial(Option, request=Missing("as the files of the model say"))
_Listed = partial(Option, kind=TEXTS, parsed=list[str])
_FALLBACK: Final[Kind] = ("a `Fallback`", lambda value: isinstance(value, Fallback))
_GROUP: Final = Missing("`--text` and `--input` name texts, `--file` and an argument one text")

Texts = Annotated[
    Sequence[str], Meta(description="The texts."), Option(kind=TEXTS, flag=_GROUP, request="input")
]
BatchSize = Annotated[
    int,
    Meta(ge=1, description="Run N texts together."),
    Option(metavar="N", request=Missing("the server joins the texts of its clients")),
]
Truncate = Annotated[
    bool,
    Meta(
        description="Cut texts that exceed the model's context, or refuse them; default: cut"
        " them, with a note."
    ),
    Option(
        flag="--truncate/--no-truncate",
        request=Meta(
            description="Cut texts that exceed the model's context instead of refusing them."
        ),
    ),
]


class EmbedRequest(Options, frozen=True, kw_only=True):
    """Texts or images to embed, and the form of the output."""

    texts: Texts = ()
    out: (
        Annotated[
            Path,
            Meta(
                description="Write the tensor `embeddings` [N, D] as .npy, .npz, .safetensors or"
                " .gptrsten."
            ),
            Option(kind=PATH, metavar="FILE", request=Missing("the answer has the vectors")),
        ]
        | None
    ) = None
    similarity: Annotated[
        bool,
        Meta(description="Show pairwise similarities instead of vectors."),
        Option(request=Missing("the answer has the vectors")),
    ] = False
    normalize: (
        Annotated[
            bool,
            Meta(
                description="Scale all vectors to length 1, or do not; default: as the model says."
            ),
            _AsFiles(flag="--normalize/--no-normalize"),
        ]
        | None
    ) = None
    prompt_name: (
        Annotated[
            str,
            Meta(description="Prepend this prompt of the model to each text."),
            _AsFiles(metavar="NAME"),
        ]
        | None
    ) = None
    prompt: (
        Annotated[
            str,
            Meta(description="Prepend this prompt to each text."),
            Option(
                flag=Missing("it can stand in the texts"),
                request=Missing("it can stand in the texts"),
            ),
        ]
        | None
    ) = None
    truncate: Truncate | None = None
    dimensions: (
        Annotated[
            int,
            Meta(ge=1, description="Keep the first N elements of each vector."),
            Option(metavar="N", request=Meta(ge=1)),
        ]
        | None
    ) = None
    batch_size: BatchSize = 32
    images: Annotated[
        Sequence[Path],
        Meta(description="An image instead of texts; repeatable."),
        Option(
            kind=PATHS,
            flag="--image",
            metavar="FILE",
            parsed=list[Path],
            request=Missing("`input` may have images"),
        ),
    ] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images and self.prompt_name is not None:
            raise UsageError("`--prompt-name` is put before texts, not before images")
        if self.images and self.truncate is not None:
            raise UsageError("`--truncate` is about texts, not about images")

    def require_few(self) -> None:
        """UsageError for more texts than have their similarities shown."""
        given = self.images or self.texts
        if self.similarity and len(given) > MOST_COMPARED:
            raise UsageError(
                f"`--similarity` shows at most {MOST_COMPARED} texts, got {len(given)}",
                hint="write the vectors with --out",
            )


class ClassifyRequest(Options, frozen=True, kw_only=True):
    """Texts, perhaps with second ones, and labels that the model does not have."""

    texts: Texts
    pairs: Annotated[
        Sequence[str],
        Meta(description="A second text, read together with the text; give one per text."),
        _Listed(
            flag="--pair",
            metavar="TEXT",
            request=Missing("the protocol has single texts"),
        ),
    ] = ()
    labels: Annotated[
        Sequence[str],
        Meta(
            description="A label of your own, for an NLI model; repeatable.",
        ),
        _Listed(
            flag="--label",
            metavar="LABEL",
            request=Missing("the protocol has the classes of the model"),
        ),
    ] = ()
    template: (
        Annotated[
            str,
            Meta(
                description=f"The hypothesis for a label; default: `{TEMPLATE}`.",
            ),
            Option(metavar="TEXT", request=Missing("it is for labels")),
        ]
        | None
    ) = None
    multi_label: Annotated[
        bool,
        Meta(description="Score each of your labels independently."),
        Option(request=Missing("it is for labels")),
    ] = False
    truncate: Truncate | None = None
    batch_size: BatchSize = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs and self.labels:
            raise UsageError("`--pair` and `--label` exclude each other", hint="give one of them")
        if self.pairs and len(self.pairs) != len(self.texts):
            raise UsageError(f"got {len(self.pairs)} times `--pair` for {len(self.texts)} texts")
        if not self.labels and (self.template is not None or self.multi_label):
            raise UsageError("`--template` and `--multi-label` are for `--label`, which is missing")


class RankRequest(Options, frozen=True, kw_only=True):
    """A query, and the documents that may answer it."""

    query: Annotated[
        str,
        Meta(description="The query that the documents should answer."),
        Option(metavar="TEXT", request=Meta()),
    ]
    documents: Annotated[
        Sequence[str],
        Meta(description="The documents."),
        Option(kind=TEXTS, flag=_GROUP, request="documents"),
    ]
    top_k: (
        Annotated[
            int,
            Meta(ge=1, description="Print only the N best."),
            Option(flag="--top", metavar="N", request="top_n"),
        ]
        | None
    ) = None
    prompt_name: (
        Annotated[
            str,
            Meta(description="Use this prompt of the model."),
            _AsFiles(metavar="NAME"),
        ]
        | None
    ) = None
    prompt: (
        Annotated[
            str,
            Meta(description="Use this prompt; empty: none."),
            _AsFiles(metavar="TEXT"),
        ]
        | None
    ) = None
    truncate: Truncate | None = None
    batch_size: BatchSize = 32


class MatchRequest(Options, frozen=True, kw_only=True):
    """Images, and texts that may belong to them."""

    images: Annotated[
        Sequence[Path],
        Meta(description="An image; repeatable."),
        _Unserved(kind=PATHS, flag="--image", metavar="FILE", parsed=list[Path]),
    ]
    texts: Texts
    truncate: Truncate | None = None


class TagRequest(Options, frozen=True, kw_only=True):
    """Texts in which to find names, and how tokens become these."""

    texts: Texts
    aggregation: Annotated[
        Aggregation,
        Meta(description=f"How to merge tokens into names: {', '.join(get_args(Aggregation))}."),
        Option(kind=TEXT, metavar="HOW", parsed=str, request=Meta()),
    ] = "simple"
    ignored: Annotated[
        Sequence[str],
        Meta(
            description=f"Leave out this class (default: `{OUTSIDE}`); repeatable.",
        ),
        _Listed(
            flag="--ignore",
            metavar="CLASS",
            request=Missing("clients can leave out what they like"),
        ),
    ] = (OUTSIDE,)
    batch_size: BatchSize = 32


class FillRequest(Options, frozen=True, kw_only=True):
    """Texts with masked tokens, and how many words to tell for each."""

    texts: Texts
    top_k: Annotated[
        int,
        Meta(ge=1, description="Number of words per mask."),
        _Unserved(flag="--top", metavar="N"),
    ] = 5
    batch_size: BatchSize = 32


class TranscribeRequest(Options, frozen=True, kw_only=True):
    """A sound, its language, and how the text is written."""

    sound: Annotated[
        Path,
        Meta(description="A WAV, MP3, FLAC, Ogg, M4A or WebM file, of any length."),
        Option(kind=PATH, flag="FILE", request="file"),
    ]
    language: (
        Annotated[
            str,
            Meta(description="The spoken language, such as `en`; default: detected."),
            Option(metavar="CODE", request="language"),
        ]
        | None
    ) = None
    task: (
        Annotated[
            str,
            Meta(description="Translate the speech into English."),
            Option(
                flag="--translate",
                parsed=bool,
                stands="translate",
                request=Missing("`/v1/audio/translations` is a route of its own"),
            ),
        ]
        | None
    ) = None
    format: Annotated[
        SubtitleFormat,
        Meta(description="Write text, or subtitles as SubRip or WebVTT."),
        Option(kind=TEXT, request="response_format"),
    ] = SubtitleFormat.TEXT
    timestamps: Annotated[
        bool,
        Meta(description="Write each window without timestamps."),
        Option(flag="--no-timestamps", request=Missing("formats without times have none")),
    ] = True
    fallback: (
        Annotated[
            Fallback,
            Meta(description="How to decode doubtful windows again."),
            Option(
                kind=_FALLBACK,
                flag=Missing("its fields are options of their own"),
                request=Missing("`temperature` is the one that is tried"),
            ),
        ]
        | None
    ) = None


class TokenizeRequest(Options, frozen=True, kw_only=True):
    """A text to become tokens, or tokens to become a text."""

    text: (
        Annotated[str, Meta(description="The text."), Option(flag=_GROUP, request="prompt")] | None
    ) = None
    tokens: (
        Annotated[
            Sequence[int],
            Meta(description="Print the text of these tokens instead."),
            Option(
                kind=TOKENS,
                metavar="1,2,3",
                parsed=str,
                request=Missing("`/detokenize` takes them"),
            ),
        ]
        | None
    ) = None
    special: Annotated[
        bool,
        Meta(description="Neither add special tokens nor show them."),
        Option(flag="--no-special", request="add_special_tokens"),
    ] = True


class PerplexityRequest(Options, frozen=True, kw_only=True):
    """A text, and the windows in which a model reads it."""

    text: Annotated[str, Meta(description="The text."), _Unserved(flag=_GROUP)]
    window: (
        Annotated[
            int,
            Meta(description="Tokens per window."),
            _Unserved(metavar="N", unset="the context, at most 1024"),
        ]
        | None
    ) = None
    stride: (
        Annotated[
            int,
            Meta(
                description="Move the window by N tokens; the rest of it is context.",
            ),
            _Unserved(metavar="N", unset="half a window"),
        ]
        | None
    ) = None
