"""Models that say what is known beforehand, for the tests of protocols."""

from __future__ import annotations

from pathlib import Path

from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from runtime.tiny_chat import save_scripted_chat, save_tiny_chat

PARAMETERS = {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip
CALL = '{"name": "f", "arguments": {"a": 1}}'
THOUGHTS, SAID = "Let me see.", "One moment."
AGENT = f"<think>\n{THOUGHTS}\n</think>\n\n{SAID}\n<tool_call>\n{CALL}\n</tool_call>"
HELLO = "Hello there."
TEMPLATE = "{% if tools %}{% endif %}{{ messages[-1].content }}\nassistant: "
MARKS = "{# <think> <tool_call> </think> #}"
LISTING = (
    "{% if tools %}[{{ tools | length }}]{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{{ m.reasoning_content or '' }}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}{% endfor %}"
    "{% if enable_thinking %}!{% endif %}{{ reasoning_effort }}{% if add_generation_prompt %}"
    "<answer>{% endif %}"
)


def talkers(folder: Path) -> dict[str, LoadedModel]:
    """Models that greet, that think and call a tool, and that show what they are told.

    `agent` and `say` answer "hi" as above; `lists` has all of a conversation in its prompt.
    """
    prompt = "hi\nassistant: "
    saved = {
        "say": save_scripted_chat(folder / "say", HELLO, prompt=prompt, template=TEMPLATE),
        "agent": save_scripted_chat(
            folder / "agent", AGENT, prompt=prompt, template=TEMPLATE + MARKS
        ),
        "lists": save_tiny_chat(folder / "lists", LISTING, n_positions=1024),
    }
    return {name: load_model(path, backend="ref") for name, path in saved.items()}
