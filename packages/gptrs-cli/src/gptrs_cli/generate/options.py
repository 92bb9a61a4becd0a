"""The options of `gptrs generate`, as `settings` has those that all commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PromptOption = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="The text to continue.")
]
PromptIdsOption = Annotated[
    str | None, typer.Option("--prompt-ids", metavar="1,2,3", help="The tokens to continue.")
]
PromptFileOption = Annotated[
    str | None,
    typer.Option(
        "--prompt-file",
        metavar="FILE",
        help="Continue the text of a UTF-8 file, used as it is; `-` reads standard input.",
    ),
]
ChatOption = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Let the prompt be a message, in the form of the model's chat template; on a terminal,"
        " without a prompt, a conversation.",
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="With --chat: what the model is told first."),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE.jsonl",
        help="Many prompts, each an object on a line: `prompt`, `prompt_ids` or `messages`,"
        " perhaps `id` and `max_tokens`; each result is a line.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.jsonl",
        help="With --prompts: append the results to a file; what is in it is not done again.",
    ),
]
BatchSizeOption = Annotated[
    int | None,
    typer.Option(
        "--batch-size", metavar="N", help="With --prompts: how many at once.  [default: 8]"
    ),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        metavar="N",
        envvar="GPTRS_MAX_TOKENS",
        show_envvar=False,
        help="Stop after N new tokens; without it as the model says, else 128."
        "  [env: GPTRS_MAX_TOKENS]",
    ),
]
GreedyOption = Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="X",
        envvar="GPTRS_TEMPERATURE",
        show_envvar=False,
        help="Sample; below 1 the likely tokens gain, 0: greedy.  [env: GPTRS_TEMPERATURE]",
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        metavar="K",
        envvar="GPTRS_TOP_K",
        show_envvar=False,
        help="Sample among the K likeliest; 0: all.  [env: GPTRS_TOP_K]",
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        metavar="P",
        envvar="GPTRS_TOP_P",
        show_envvar=False,
        help="Sample among the fewest that reach probability P.  [env: GPTRS_TOP_P]",
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        metavar="P",
        envvar="GPTRS_MIN_P",
        show_envvar=False,
        help="Sample among those at least P times as likely as the likeliest.  [env: GPTRS_MIN_P]",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        envvar="GPTRS_SEED",
        show_envvar=False,
        help="Make sampling repeatable.  [env: GPTRS_SEED]",
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty",
        metavar="X",
        envvar="GPTRS_REPETITION_PENALTY",
        show_envvar=False,
        help="Above 1, tokens that occurred, in the prompt too, become less likely."
        "  [env: GPTRS_REPETITION_PENALTY]",
    ),
]
PresencePenaltyOption = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        metavar="X",
        envvar="GPTRS_PRESENCE_PENALTY",
        show_envvar=False,
        show_default=False,
        help="Subtracted from the logits of tokens that were generated before."
        "  [env: GPTRS_PRESENCE_PENALTY]",
    ),
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        envvar="GPTRS_FREQUENCY_PENALTY",
        show_envvar=False,
        show_default=False,
        help="The same, once for each time.  [env: GPTRS_FREQUENCY_PENALTY]",
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End before this text appears; can be repeated."),
]
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after a token that ends the text.")
]
NumReturnOption = Annotated[
    int,
    typer.Option(
        "--num-return",
        metavar="N",
        show_default=False,
        help="N texts for the prompt, which is read once.",
    ),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        help="In results as JSON: the log-probability of each token, and of the N likeliest ones,"
        " by the model's own logits, before penalties and temperature.",
    ),
]
SpecialOption = Annotated[
    bool,
    typer.Option(
        "--special/--skip-special-tokens",
        show_default=False,
        help="Show special tokens such as those that end a text; they are left out otherwise.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        help="Allocate a cache of N tokens at once, and no more, which bounds its memory.",
    ),
]
ContextShiftOption = Annotated[
    bool,
    typer.Option(
        "--context-shift",
        help="When the context is full, forget the first half of it and read the rest anew;"
        " without it, what does not fit is refused.",
    ),
]
KeepOption = Annotated[
    int,
    typer.Option(
        "--keep",
        metavar="N",
        show_default=False,
        help="With --context-shift: never forget the first N tokens.",
    ),
]
PrefillChunkOption = Annotated[
    int | None,
    typer.Option(
        "--prefill-chunk",
        metavar="N",
        help="Read the prompt in steps of N tokens: fewer need less memory.  [default: 256]",
    ),
]
PromptCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt-cache",
        metavar="FILE.safetensors",
        help="Keep what reading the prompt gave in a file; prompts that begin alike start there.",
    ),
]
NoCacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Compute the whole text anew for each token: slow.")
]
EchoOption = Annotated[bool, typer.Option("--echo", help="Print the prompt before its text.")]
