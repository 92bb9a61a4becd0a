"""Fill-in-the-middle, for models with tokens for it: `suffix` of completions, `/infill`."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.problems import RequestError
from gptrs_serve.served import Served


class GapMarks(Struct, frozen=True):
    """The tokens before the prefix of a gap, before its suffix, and before the answer.

    With `suffix_first`, the suffix comes first.
    """

    before: str
    after: str
    middle: str
    suffix_first: bool = False


MARKS: Final = (
    GapMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    GapMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    GapMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    # DeepSeek Coder, whose bars are full-width.
    GapMarks(
        "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"
    ),
    GapMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    GapMarks("<PRE>", "<SUF>", "<MID>"),
    GapMarks("[PREFIX]", "[SUFFIX]", "", suffix_first=True),  # Codestral
)
"""A row per family; the first whose tokens are all in the vocabulary is used."""


def gap_marks(model: LoadedModel) -> tuple[GapMarks, list[int]]:
    """Return how a model marks gaps, and the tokens; RequestError if it cannot fill gaps."""
    for marks in MARKS if model.has_tokenizer else ():
        names = [name for name in (marks.before, marks.after, marks.middle) if name]
        tokens = [token for name in names if (token := model.tokenizer.number(name)) is not None]
        if len(tokens) == len(names):
            return marks, tokens
    raise RequestError(
        f"`{model.name}` has no tokens that mark a gap, so it cannot write the text between a"
        " prefix and a suffix",
        param="suffix",
        code="model_not_supported",
    )


async def gap_tokens(served: Served, model: LoadedModel, before: str, after: str) -> list[int]:
    """Return the tokens of a prompt whose answer fills the gap between two texts."""
    marks, tokens = gap_marks(model)
    encode, most = model.tokenizer.encode, model.causal_lm().context_length

    def read() -> list[int]:
        # Refused by length before tokenizing, which takes seconds for a text of megabytes.
        for text in (before, after):
            model.tokenizer.require_fitting(text, most)
        # The tokens that begin every text, such as <s>. Some tokenizers also add an end, which
        # would stand in the middle of the prompt.
        begin = [token for token in encode("") if token not in model.eos_tokens]
        ahead = [tokens[0], *encode(before, special=False)]
        behind = [tokens[1], *encode(after, special=False)]
        parts = [*behind, *ahead] if marks.suffix_first else [*ahead, *behind]
        return [*begin, *parts, *tokens[2:]]

    return await served.reading.run(read)
