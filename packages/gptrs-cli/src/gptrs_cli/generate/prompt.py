"""The prompt of a generation: text, a file, tokens, or what suits the demo model."""

from __future__ import annotations

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.generate.options import PromptOptions
from gptrs_cli.options.inputs import parse_integers
from gptrs_cli.options.text_input import is_piped, piped_text, read_text

DEMO_PROMPT = "def read_file(path):\n"


@dataclass(frozen=True)
class Prompt:
    """Text or tokens to continue; `is_default` when the user named neither."""

    content: str | list[int]
    is_default: bool = False


def read_prompt(options: PromptOptions, *, has_default: bool) -> Prompt:
    """Return the one prompt that is given, else what is piped in, else DEMO_PROMPT if it may be.

    A piped text loses its last line break, which `echo` adds. UsageError without a prompt, for two
    of them, and for malformed tokens; InputFileError for a file that cannot be read as UTF-8.
    """
    given = list(options.given)
    if len(given) > 1:
        raise UsageError(f"`{given[0]}` and `{given[1]}` exclude each other", hint="give one")
    text = options.prompt if options.text is None else options.text
    if text is not None:
        return Prompt(text)
    if options.prompt_ids is not None:
        return Prompt(parse_integers(options.prompt_ids, "--prompt-ids"))
    if options.prompt_file is not None:
        return Prompt(read_text(options.prompt_file, "the prompt"))
    if is_piped() and (piped := piped_text("the prompt")):
        return Prompt(piped)
    if has_default:
        return Prompt(DEMO_PROMPT, is_default=True)
    raise UsageError(
        "there is no prompt",
        hint='give it as an argument, `gptrs generate "Once upon a time"`, pipe it in,'
        " or name --prompt-file or --prompt-ids",
    )
