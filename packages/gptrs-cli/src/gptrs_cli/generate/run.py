"""`gptrs generate`: loads the model, streams its text or prints JSON, and reports the figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct, structs
from msgspec.structs import replace

from gptrs.errors import ModelError, NoTokenError, UsageError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import counted, quoted
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import PromptOptions, template_variables
from gptrs_cli.generate.page import (
    Page,
    answer_of,
    as_numbers,
    figures,
    generated_text,
    shown_text,
)
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import loaded_model, observed, profile_of
from gptrs_cli.options.settings import Settings, model_shown
from gptrs_cli.options.text_input import is_piped, parse_integers, piped_text, read_text
from gptrs_cli.terminal.failures import INTERRUPTED, Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import complain, is_terminal, note
from gptrs_runtime.chat.answer_reader import (
    AnswerEvent,
    AnswerReader,
    TextDelta,
    ThoughtsDelta,
)
from gptrs_runtime.generation.batch import Several
from gptrs_runtime.generation.chat_session import Answer, answer_form, conversation, opens_thoughts
from gptrs_runtime.generation.generate import Generation, GenerationOptions, TextStream
from gptrs_runtime.images.image_prompts import shown_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Generate, GenerateEvent, GenerationTimings
from gptrs_runtime.sources.recommended import first_choice

if TYPE_CHECKING:
    from gptrs_cli.generate import batch
    from gptrs_observe.profile import Profile
    from gptrs_runtime.images import image_prompts
else:
    image_prompts = lazy_module("gptrs_runtime.images.image_prompts")
    batch = lazy_module("gptrs_cli.generate.batch")

# The prompt of a generation: text, a file, tokens, or the default of the demo model.


DEMO_PROMPT = "def read_file(path):\n"


class Prompt(Struct, frozen=True):
    """Text or tokens to continue; `is_default` when the user named neither."""

    content: str | list[int]
    is_default: bool = False


def read_prompt(options: PromptOptions, *, has_default: bool) -> Prompt:
    """Return the given prompt, else piped text, else DEMO_PROMPT if `has_default`.

    Piped text loses its last line break, which `echo` adds. Raises UsageError for no prompt, for
    two, or for malformed tokens; InputFileError for a file that cannot be read as UTF-8.
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


def run(request: GenerateRequest, settings: Settings) -> int:
    """Generate and print; return the exit code, 0 if no text was cut by an error.

    JSON includes the profile that `settings` ask for.
    """
    with observed(settings) as profile:
        if request.batch.prompts is not None:
            return batch.run_prompts(request, request.batch.prompts, settings)
        prompt = read_prompt(
            request.prompt, has_default=request.model is None and not request.prompt.chat
        )
        with Waiting(f"loading {model_shown(request.model)}") as waiting:
            model = loaded_model(request.model, settings, request.adapter)
            model.template_variables.update(template_variables(request.prompt.template_var))
            options = generation_options(request, model, settings)
            several = request.output.num_return > 1
            if request.output.stream or (sys.stdout.isatty() and not (settings.json or several)):
                options = options.for_stream()
            # Special tokens mark thoughts and calls: the reader of answers needs to see them.
            if request.prompt.chat and not options.special:
                options = replace(options, special=answer_form(model).shown)
            work = _Work(request, model, prompt, waiting, options)
            waiting.now("reading the prompt")
            with compilation_shown(model.backend, waiting):
                if settings.json:
                    interrupted = work.print_json(several, profile)
                else:
                    interrupted = work.print_several() if several else work.print_text()
        return INTERRUPTED if interrupted else work.complain()


class _Work:
    """One prompt for a loaded model; the constructor checks everything."""

    def __init__(
        self,
        request: GenerateRequest,
        model: LoadedModel,
        prompt: Prompt,
        waiting: Waiting,
        options: GenerationOptions,
    ) -> None:
        self._request = request
        self._model = model
        self._prompt = prompt
        self._waiting = waiting
        self._text, content = _content(request, model, prompt)
        self._several: Several | None = None
        self._stream: TextStream | None = None
        if request.output.num_return > 1:
            self._several = Several(model, content, request.output.num_return, options)
        else:
            self._stream = TextStream(model, content, options)

    def print_text(self) -> bool:
        """Print the text as it comes, then the figures; return whether the user interrupted."""
        assert self._stream is not None
        page = Page()
        before = self._shown_prompt(page)
        self._name_default(page)
        interrupted = write_stream(
            page, self._stream, self._model, self._waiting, before, self._reader()
        )
        result = self._stream.generation
        if interrupted:
            note(f"interrupted after {counted(len(result.token_ids), 'token')}")
        else:
            note(figures(result, self._model))
            self._note_model()
            self._note_cut([result])
            self._note_silence(result)
        return interrupted

    def print_several(self) -> bool:
        """Print all texts at the end, then the figures; return whether the user interrupted."""
        interrupted, results = self._finished()
        page = Page()
        self._name_default(page)
        page.write(self._shown_prompt(page), dim=True)
        for number, result in enumerate(results, start=1):
            page.write(f"--- {number} of {len(results)}\n", dim=True)
            answer = self._answer(result)
            if answer is None:
                page.write(shown_text(result, self._model))
            else:
                page.write_answer([ThoughtsDelta(answer.reasoning or ""), TextDelta(answer.text)])
            page.end_line()
        longest = max(results, key=lambda result: len(result.token_ids))
        interruption = f"interrupted after {counted(len(longest.token_ids), 'token')}"
        note(interruption if interrupted else figures(longest, self._model))
        self._note_model()
        self._note_cut([] if interrupted else results)
        return interrupted

    def print_json(self, several: bool, profile: Profile | None) -> bool:
        """Print one object at the end; return whether the user interrupted."""
        interrupted, results = self._finished()
        texts = [generated_text(each, self._answer(each)) for each in results]
        adapter = self._request.adapter
        print_result(
            Generate(
                **structs.asdict(texts[0]),
                prompt=self._text,
                prompt_token_ids=results[0].prompt_token_ids,
                timings=GenerationTimings(**structs.asdict(results[0].timings)),
                model=self._model.name,
                backend=self._model.backend.name,
                precision=self._model.precision,
                adapter=UNSET if adapter is None else str(adapter),
                generations=texts if several else UNSET,
                profile=profile_of(profile),
            )
        )
        return interrupted

    def complain(self) -> int:
        """Report the errors that ended texts; return the exit code, 0 for none."""
        made = self._several.generations if self._several is not None else []
        made += [self._stream.generation] if self._stream is not None else []
        errors = dict.fromkeys(each.error for each in made if each.error is not None)
        for error in errors:
            complain("error", error)
        return NoTokenError.exit_code if errors else 0

    def _finished(self) -> tuple[bool, list[Generation]]:
        """Return whether the user interrupted, and all texts so far."""
        interrupted = False
        try:
            if self._several is not None:
                self._several.run()
            reader, shown = self._reader(), 0
            for piece in self._stream or ():
                if self._request.output.stream:
                    found = [TextDelta(piece)] if reader is None else reader.push(piece)
                    # An empty event where the text is withheld: a reader of the stream sees that
                    # tokens come.
                    shown = self._print_events(found or [TextDelta("")], shown)
            if self._request.output.stream and reader is not None:
                self._print_events(reader.finish(), shown)
        except KeyboardInterrupt:
            interrupted = True
        self._waiting.stop()
        if self._several is not None:
            return interrupted, self._several.generations
        assert self._stream is not None
        return interrupted, [self._stream.generation]

    def _print_events(self, events: Sequence[AnswerEvent], shown: int) -> int:
        """Print the text after the first `shown` tokens; return the new number of tokens."""
        assert self._stream is not None
        tokens = self._stream.generation.token_ids
        for event in events:
            if isinstance(event, TextDelta | ThoughtsDelta):
                kind = "text" if isinstance(event, TextDelta) else "reasoning"
                print_result(GenerateEvent(event=kind, text=event.text, token_ids=tokens[shown:]))
                shown = len(tokens)
        return len(tokens)

    def _reader(self) -> AnswerReader | None:
        """Return the reader of answers; None if all of the output is text."""
        request, tokens = self._request, self._stream and self._stream.generation.prompt_token_ids
        if not request.prompt.chat or request.shows_special or tokens is None:
            return None
        form = answer_form(self._model)
        if form.is_plain:
            return None
        # With a form the answer begins at once: thoughts could not match it.
        opened = not request.form.given and opens_thoughts(self._model, form, tokens)
        return AnswerReader(form, opened=opened)

    def _answer(self, result: Generation) -> Answer | None:
        """Return a text as an answer; None outside of conversations."""
        return answer_of(self._request, self._model, result) if self._request.prompt.chat else None

    def _note_cut(self, results: Sequence[Generation]) -> None:
        """Note that a text ended before it matched the form."""
        if self._request.form.given and any(made.finish_reason == "length" for made in results):
            note("a text was cut before its form was whole: raise --max-tokens")

    def _note_model(self) -> None:
        """Tell a person at a terminal that the model is the bundled one, and of others."""
        if self._request.model is None and is_terminal(sys.stderr):
            note(
                f"no model was named: this is the bundled `{self._model.name}`; `--model` names"
                f" another: {first_choice('text')}"
            )

    def _note_silence(self, result: Generation) -> None:
        """Say what to try where a model that was tuned to chat has nothing to say to a prompt."""
        asked = self._request.prompt.chat or self._request.form.given
        if not asked and result.finish_reason == "eos" and not result.text.strip():
            with suppress(ModelError):
                self._model.chat_template()
                note("the model ended its text at once; it was tuned to chat: try --chat")

    def _name_default(self, page: Page) -> None:
        """Show the default prompt on standard error if only the text goes to standard output."""
        if self._prompt.is_default and not page.is_terminal and not self._request.output.echo:
            note(f"continues the prompt {quoted(DEMO_PROMPT.strip())}; give one of your own")

    def _shown_prompt(self, page: Page) -> str:
        """Return the prompt if it was asked for with --echo or is the default, else ""."""
        if not (self._request.output.echo or (self._prompt.is_default and page.is_terminal)):
            return ""
        return self._text if self._text is not None else f"{self._prompt.content} "


def write_stream(
    page: Page,
    pieces: TextStream,
    model: LoadedModel,
    waiting: Waiting,
    before: str = "",
    reader: AnswerReader | None = None,
) -> bool:
    """Write `before`, then the text as it arrives; return whether the user interrupted.

    Without a tokenizer, token ids are shown. `reader` separates thoughts from text; None: all of it
    is text.
    """
    has_text = model.has_tokenizer
    interrupted, begun, shown = False, False, 0
    try:
        for piece in pieces:
            waiting.stop()
            if not begun:
                page.write(before, dim=True)
                begun = True
            if not has_text:
                tokens = pieces.generation.token_ids
                piece = as_numbers(tokens[shown:])
                shown = len(tokens)
            if reader is None:
                page.write(piece)
            else:
                page.write_answer(reader.push(piece))
    except KeyboardInterrupt:
        # What was generated stays on the page, and the figures below it still count it.
        interrupted = True
    waiting.stop()
    # The reader may hold back text that could begin a tag of thoughts; at the end it cannot.
    page.write_answer([] if reader is None else reader.finish())
    page.end_line()
    return interrupted


def _content(
    request: GenerateRequest, model: LoadedModel, prompt: Prompt
) -> tuple[str | None, str | Sequence[int]]:
    """Return the prompt as text, None for tokens, and the input of the generation."""
    if isinstance(prompt.content, list):
        return None, prompt.content
    if not request.prompt.chat:
        return prompt.content, prompt.content
    content = image_prompts.about_images(prompt.content, request.prompt.image)
    message = {"role": "user", "content": content}
    tokens = model.prompt_tokens([*conversation(request.prompt.system), message])
    return model.tokenizer.decode(list(shown_tokens(tokens)), special=True), tokens
