"""A conversation with a model: its messages. Each answer finds what was read in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from msgspec.structs import replace

from gptrs_runtime.chat.messages import Message
from gptrs_runtime.generation.chat_answers import answer_form, read_answer
from gptrs_runtime.generation.keyword_options import generation_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.images.image_prompts import about_images
from gptrs_runtime.loaded_model import LoadedModel


class ChatSession:
    """A conversation with `model`, which may begin with a `system` message.

    Options are those of `stream`, for each answer; special tokens that mark thoughts are shown.
    ModelError for a model without tokenizer or chat template.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: GenerationOptions | None = None,
        system: str | None = None,
        **fields: Unpack[OptionFields],
    ) -> None:
        self.messages: list[Message] = conversation(system)
        self._model = model
        asked = generation_options(model, options, fields)
        _ = model.tokenizer  # which must be there, too
        model.chat_template()
        special = asked.special or answer_form(model).shown
        self._options = replace(asked, special=special)

    def ask(self, text: str, images: Sequence[object] = ()) -> TextStream:
        """Return the answer to `text`; `remember` makes it part of the conversation.

        `images` stand before the text, for models that read them: paths of files, or ui8 [H, W, 3].

        ChatTemplateError if the template refuses the conversation, ContextLengthError if it does
        not fit; the conversation is then unchanged.
        """
        messages = [*self.messages, {"role": "user", "content": about_images(text, images)}]
        prompt = self._model.conversation_tokens(messages)
        answer = TextStream(self._model, prompt, self._options.for_stream())
        self.messages = messages
        return answer

    def remember(self, answer: TextStream) -> None:
        """Add `answer`, or what there is of it, and end it.

        Its thoughts become `reasoning_content` of the message, which templates leave out or not.
        """
        answer.close()
        made = read_answer(self._model, answer.generation)
        thoughts = {} if made.reasoning is None else {"reasoning_content": made.reasoning}
        self.messages.append({"role": "assistant", "content": made.text, **thoughts})


def conversation(system: str | None, *texts: str) -> list[Message]:
    """Return messages: `system`, if there is one, then those of a user."""
    told: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*told, *({"role": "user", "content": text} for text in texts)]
