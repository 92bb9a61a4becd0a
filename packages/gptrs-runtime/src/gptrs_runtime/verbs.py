"""The table of tasks that treat each text by itself: their functions, and what they add to a row.

One row makes a task of `gptrs batch` and of Ray Data, with its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from gptrs_runtime.embedding.embed import embed
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_classes.classify import classify
from gptrs_runtime.text_classes.fill import fill, tag

_OF_CALLERS: Final = ("model", "texts", "lengths", "progress")
"""Parameters that no user sets: they come from the code that calls."""


class Verb(msgspec.Struct, frozen=True):
    """A task by `name`; `of_texts` takes a model, a list of texts, and options by keyword.

    It returns a result for each text, which is `column` of a row of data.
    """

    name: str
    column: str
    of_texts: Callable[..., Iterable[Any]]

    @property
    def options(self) -> frozenset[str]:
        """The names of the options."""
        return frozenset(inspect.signature(self.of_texts).parameters) - frozenset(_OF_CALLERS)

    def values(self, model: LoadedModel, texts: Sequence[str], **options: Any) -> list[Any]:
        """Return the result for each text as JSON values; the errors are those of `of_texts`."""
        found = self.of_texts(model, texts, **options)
        return [_plain(each) for each in found]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else msgspec.to_builtins(value)


VERBS: Final = (
    Verb("embed", "embedding", embed),
    Verb("classify", "classes", classify),
    Verb("tag", "entities", tag),
    Verb("fill", "fillings", fill),
)
