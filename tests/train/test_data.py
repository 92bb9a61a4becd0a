"""Data: the forms of rows, what is learnt of them, packing, order, and what is refused."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from gptrs.errors import UsageError
from gptrs_runtime.chat.template import ChatTemplate, ChatTemplateError
from gptrs_runtime.load import load_model
from gptrs_runtime.sources.hf_directory import HfDirectory
from gptrs_train import chat_rows
from gptrs_train.batches import Rows, Windows, order_of, split
from gptrs_train.chat_rows import DataError, Example
from gptrs_train.data import ModelTexts, Source, files_of, read_source
from gptrs_train.runs import _texts_of
from runtime.tiny_bert import save_tiny_bert

END = 999


class Words:
    """A tokenizer of words, whose template is ROLE words END for each message."""

    name = "words"
    begin = None
    end = END
    ends = (END,)

    def __init__(self, templated=False):
        self.templated = templated

    def encode(self, text):
        return self.encode_part(text)

    def encode_part(self, text):
        return [sum(map(ord, word)) % 900 for word in text.split()]

    def encode_chats(self, chats):
        return [self._chat(chat) for chat in chats]

    def _chat(self, chat):
        found = []
        for message in chat.messages:
            role = 901 if message["role"] == "assistant" else 900
            found += [role, *self.encode_part(message["content"]), END]
        return [*found, 901] if chat.answers else found


def rows_file(folder, *rows):
    path = folder / "train.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path, mask=False, templated=False, vocabulary=1000):
    return read_source(path, lambda: Words(templated), vocabulary, mask_prompt=mask)


def shown(example):
    """Return the tokens of an example, those that are learnt in brackets."""
    pairs = zip(example.tokens.tolist(), example.learnt.tolist(), strict=True)
    return [[token] if learnt else token for token, learnt in pairs]


CHAT = [
    {"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"},
]  # fmt: skip
PAIR = {"prompt": "a b ", "completion": "c"}
A, B, C, D, E = (ord(letter) for letter in "abcde")


@pytest.mark.parametrize(
    ("row", "mask", "templated", "expected"),
    [
        ({"text": "a b"}, False, False, [[A], [B], [END]]),
        (PAIR, False, False, [[A], [B], [C], [END]]),
        (PAIR, True, False, [A, B, [C], [END]]),
        (PAIR, True, True, [900, A, B, END, 901, [C], [END]]),
        ({"prompt": CHAT[:1], "completion": CHAT[1:2]}, True, False,
         [900, A, B, END, 901, [C], [END]]),
        ({"prompt": CHAT[:1], "completion": "c"}, True, False, [900, A, B, END, 901, [C], [END]]),
        ({"prompt": "a b", "completion": CHAT[1:2]}, True, False,
         [900, A, B, END, 901, [C], [END]]),
        ({"messages": CHAT[:2]}, False, False, [[x] for x in (900, A, B, END, 901, C, END)]),
        ({"messages": CHAT}, True, False,
         [900, A, B, END, 901, [C], [END], 900, D, END, 901, [E], [END]]),
        ({"messages": [*CHAT[:1], {**CHAT[1], "weight": 0}, *CHAT[2:]]}, True, False,
         [900, A, B, END, 901, C, END, 900, D, END, 901, [E], [END]]),
        ({"messages": [*CHAT[:1], {**CHAT[1], "train": False}, *CHAT[2:]]}, True, False,
         [900, A, B, END, 901, C, END, 900, D, END, 901, [E], [END]]),
        ({"messages": CHAT[1:]}, True, False,
         [901, [C], [END], 900, D, END, 901, [E], [END]]),
        ({"messages": CHAT[1:2]}, True, False, [901, [C], [END]]),
        ({"prompt": CHAT[:3], "completion": CHAT[3:], "text": None}, True, False,
         [900, A, B, END, 901, C, END, 900, D, END, 901, [E], [END]]),
        ({"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}],
          "system": "d", "tools": "[]"}, True, False,
         [900, D, END, 900, A, B, END, 901, [C], [END]]),
    ],
)  # fmt: skip
def test_rows_of_each_form_are_learnt_as_asked(row, mask, templated, expected, tmp_path):
    found = read(rows_file(tmp_path, {"text": "z"} if not mask else PAIR, row), mask, templated)
    assert shown(found.examples[1]) == expected


@pytest.mark.parametrize(
    ("row", "mask", "problem"),
    [
        ("{", False, r"train\.jsonl:2"),
        ("[1]", False, r"train\.jsonl:2.*must be an object"),
        (
            {"input": "a", "output": "b"},
            False,
            r"train\.jsonl:2 has `input`, `output`; a row needs",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, True, "2 has `chosen`, `rejected`: pref"),
        ({"messages": CHAT[:1], "chosen": "b", "rejected": "c"}, False, "`rejected`: preferences"),
        ({**PAIR, "label": False}, True, "has a `label` that says whether its answer is good"),
        ({"messages": CHAT, "label": True}, False, "has a `label` that says whether"),
        ({"messages": "[]"}, False, "2: `messages` must be a list of .* got `'\\[\\]'`"),
        ({"instruction": "a", "input": "", "output": "b"}, False, "call the instruction, with"),
        ({"input_ids": [1], "labels": [1]}, False, "has `input_ids`: rows are texts"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, False,
         "2: a message is `from` `'function_call'`; known are `human`"),
        ({"messages": CHAT, "system": 3}, False, "2: `system` must be a text"),
        ({"messages": CHAT, "tools": "{"}, False, "2: `tools`.* is not usable JSON"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, False, "2 has an image"),
        ({"messages": [CHAT[0], {"role": "assistant", "function_call": {"name": "f"}}]}, False,
         "2 has a `function_call`, which chat templates do not read"),
        ({"prompt": "a"}, False, r"train\.jsonl:2 has `prompt`; a row needs"),
        ({"prompt": CHAT[:1], "completion": 3}, False, r"2: `completion` must be a text, got `3`"),
        ({"text": 3}, False, r"train\.jsonl:2: `text` must be a text, got `3`"),
        ({"text": ""}, False, r"train\.jsonl:2: `text` is empty"),
        ({"prompt": "a", "completion": ""}, False, r"train\.jsonl:2: `completion` is empty"),
        ({"text": "a"}, True, r"train\.jsonl:2 has `text`, and no prompt to mask"),
        ({"messages": []}, False, r"train\.jsonl:2: `messages` must be a list of at least one"),
        ({"messages": [{"content": "a"}]}, False, r"train\.jsonl:2: message 0 must be an object"),
        ({"messages": CHAT[:1]}, True, r"train\.jsonl:2 has no message of the assistant"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0}]}, True, "no message .* that counts"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 0}]}, False, "but all messages are learnt"),
        ({"messages": [CHAT[0], {**CHAT[1], "train": False}]}, False, "but all messages are learn"),
        ({"messages": [{**CHAT[0], "train": True}, CHAT[1]]}, True, "message 0 is true, but only"),
        ({"messages": [CHAT[0], {**CHAT[1], "train": "no"}]}, True, "must be true or false, got"),
        ({"messages": [CHAT[0], {**CHAT[1], "train_detail": []}]}, True, "has `train_detail`"),
        ({"messages": [CHAT[0], {**CHAT[1], "weight": 2}]}, True, "must be 0 or 1, got `2`"),
        ({"messages": CHAT, "enable_thinking": "no"}, True, "2: `enable_thinking` must be true or"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_its_line(row, mask, problem, tmp_path):
    path = rows_file(tmp_path, PAIR, row)
    with pytest.raises(DataError, match=problem):
        read(path, mask)


def test_marks_of_byte_order_and_ends_of_lines_of_windows_are_no_text(tmp_path):
    rows, text = tmp_path / "rows.jsonl", tmp_path / "plain.txt"
    rows.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
    text.write_bytes(b"\xef\xbb\xbfa b")
    assert [shown(each) for each in read(rows).examples] == [[[A], [END]], [[B], [END]]]
    assert read(text).stream.tolist() == [A, B]


def test_rows_have_their_own_variables_of_the_template(tmp_path):
    class Told(Words):
        def _chat(self, chat):
            return [int(chat.variables["year"]), *super()._chat(chat)]

    row = {"messages": CHAT, "chat_template_kwargs": {"year": 7}, "add_generation_prompt": True}
    found = read_source(rows_file(tmp_path, row), Told, 1000, mask_prompt=True)
    assert found.examples[0].tokens[0] == 7
    assert found.examples[0].tokens[-1] == END


class Thoughtful(Words):
    """As Qwen3's template: thoughts before an answer that no question follows, instructions (800)
    before the last question as in Mistral's."""

    def _chat(self, chat):
        last = max(n for n, each in enumerate(chat.messages) if each["role"] == "user")
        found = []
        for number, message in enumerate(chat.messages):
            part = super()._chat(chat.with_messages([message]))
            part = part[:-1] if chat.answers else part
            thinks = number > last and message["role"] == "assistant"
            found += [800] * (number == last) + ([*part[:1], 850, *part[1:]] if thinks else part)
        return [*found, 901] if chat.answers else found


def test_answers_are_found_in_chats_whose_template_rewrites_what_precedes_the_last_question(
    tmp_path,
):
    turns = [*CHAT[:1], {"role": "assistant", "content": "a b"}, *CHAT[2:]]
    path = rows_file(tmp_path, {"messages": turns})
    (found,) = read_source(path, Thoughtful, 1000, mask_prompt=True).examples
    assert shown(found) == [
        900, A, B, END, 901, [A], [B], [END], 800, 900, D, END, 901, [850], [E], [END]
    ]  # fmt: skip


class Harmonic(Words):
    """As gpt-oss's template: thoughts (850) before the last answer, and before calls until there is
    one; 998 ends earlier answers, 997 calls, and no text may stand beside calls."""

    ends = (END, 997)

    def _chat(self, chat):
        found = []
        for number, message in enumerate(chat.messages):
            last = chat.messages[number:] == [message] and not chat.answers
            answers = [x for x in chat.messages[number + 1 :] if x["role"] == "assistant"]
            later = any("tool_calls" not in each for each in answers)
            if calls := message.get("tool_calls"):
                assert not message["content"]
                words = self.encode_part(" ".join(calls[0]["function"]["arguments"]))
                found += [*([] if later else [901, 850, 998]), 901, *words, 997]
            elif message["role"] == "assistant":
                words = self.encode_part(message["content"])
                found += [*([901, 850, 998] if last else []), 901, *words, END if last else 998]
            else:
                found += [900, *self.encode_part(message["content"]), END]
        return [*found, 901] if chat.answers else found


def test_calls_of_tools_are_learnt_where_a_template_drops_their_thoughts_later(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"c": 1}'}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "e"},
    ]
    path = rows_file(tmp_path, {"messages": turns}, {"messages": turns[:4]})
    found, short = read_source(path, Harmonic, 1000, mask_prompt=True).examples
    # An end that only earlier answers have is not learnt: it would not end a generated one.
    assert shown(found) == [
        900, A, END, 901, [C], [997], 900, B, END, 901, [D], 998,
        900, A, END, 901, [850], [998], [901], [E], [END],
    ]  # fmt: skip
    assert shown(short) == [
        900, A, END, 901, [C], [997], 900, B, END, 901, [850], [998], [901], [D], [END],
    ]  # fmt: skip


def test_a_chat_that_ends_with_its_answer_is_rendered_twice(tmp_path):
    rendered = []

    class Counting(Words):
        def encode_chats(self, chats):
            rendered.extend(chats)
            return super().encode_chats(chats)

    path = rows_file(tmp_path, {"messages": CHAT[:2]})
    read_source(path, Counting, 1000, mask_prompt=True)
    assert [len(each.messages) for each in rendered] == [2, 1]


def test_answers_that_a_template_leaves_out_are_named(tmp_path):
    class Last(Words):
        def _chat(self, chat):
            return super()._chat(chat.with_messages(chat.messages[-2:]))

    path = rows_file(tmp_path, {"messages": CHAT})
    with pytest.raises(DataError, match=r"jsonl:1: the chat template leaves out message 1") as told:
        read_source(path, Last, 1000, mask_prompt=True)
    assert '"weight": 0' in told.value.hint


def test_many_characters_are_rendered_in_groups_and_a_refused_chat_is_named(tmp_path, monkeypatch):
    groups = []

    class Refusing(Words):
        def encode_chats(self, chats):
            groups.append(len(chats))
            texts = [str(chat.messages) for chat in chats]
            if refused := [n for n, text in enumerate(texts) if "odd" in text]:
                raise ChatTemplateError("roles must alternate", refused[0])
            return super().encode_chats(chats)

    monkeypatch.setattr(chat_rows, "_CHARACTERS", 200)
    rows = [{"messages": CHAT}] * 4
    read_source(rows_file(tmp_path, *rows), Refusing, 1000)
    assert groups == [2, 2]
    path = rows_file(tmp_path, *rows, {"messages": [{"role": "odd", "content": "a"}]})
    with pytest.raises(DataError, match=r"jsonl:5: .*: roles must alternate"):
        read_source(path, Refusing, 1000)


def test_texts_that_never_end_are_noted(tmp_path, caplog):
    class Endless(Words):
        ends = (998,)

    class Unknown(Words):
        end, ends = None, ()

    path = rows_file(tmp_path, {"messages": CHAT})
    read(path)
    assert not caplog.records
    read_source(path, Endless, 1000)
    assert "learns no end; check its chat template" in caplog.text
    read_source(path, Unknown, 1000)
    assert "`words` has no `eos_token_id`" in caplog.text


def test_texts_of_a_new_model_end_also_if_several_tokens_do(tmp_path):
    save_tiny_bert(tmp_path)
    config = {"model_type": "llama", "eos_token_id": [6, 5]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    texts = _texts_of(HfDirectory.open(tmp_path, weighted=False))
    assert (texts.end, list(texts.ends)) == (5, [5, 6])


@pytest.mark.parametrize("mask", [False, True])
def test_a_text_that_states_its_first_token_has_it_once(mask, tmp_path):
    class Begun(Words):
        begin = ord("s")

        def encode(self, text):
            return [self.begin, *self.encode_part(text)]

    rows = [{"prompt": prompt, "completion": "c"} for prompt in ("s a ", "a ")]
    path = rows_file(tmp_path, *rows)
    for found in read_source(path, Begun, 1000, mask_prompt=mask).examples:
        first = [Begun.begin, A] if mask else [[Begun.begin], [A]]
        assert shown(found) == [*first, [C], [END]]


def test_files_that_nothing_is_learnt_from_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"needs `train.jsonl`, `train.txt`, `train.bin`, found"):
        files_of(tmp_path, None)
    (tmp_path / "train.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"found `train.json`; `pandas.read_json\(FILE\)"):
        files_of(tmp_path, None)
    with pytest.raises(DataError, match="has no rows"):
        read(rows_file(tmp_path, ""))
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"abc")
    with pytest.raises(DataError, match=r"has 3 bytes: a .bin file is tokens of two bytes"):
        read(odd)
    np.array([1, 2000], "<u2").tofile(odd)
    with pytest.raises(DataError, match="has the token 2000, the model has 1000"):
        read(odd)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"is not text in UTF-8: .* at byte 3"):
        read(tmp_path / "latin.txt")
    for name, hint in (("rows.json", "read_json"), ("a.NDJSON", "call it"), ("b.csv.gz", "unpack")):
        (tmp_path / name).write_text("[]", encoding="utf-8")
        with pytest.raises(UsageError, match=r"rows are not read from \.[a-z]+ files") as told:
            read(tmp_path / name)
        assert hint in told.value.hint
    np.arange(10, dtype="<u2").tofile(odd)
    with pytest.raises(DataError, match=r"has 10 tokens .* need 11"):
        Windows(read(odd), 10, 2, 0)
    short = Source(odd, examples=[Example(np.arange(9), np.arange(9) > 7)])
    with pytest.raises(DataError, match="has no text with a token to learn in its first 5"):
        Rows(short, 4, 1, 0)


def texts(count=40, seed=1):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 14, count)
    return [Example(rng.integers(1, 50, n).astype(np.int32), rng.random(n) < 0.7) for n in sizes]


@pytest.mark.parametrize("packed", [True, False])
def test_rows_have_each_text_once_with_its_positions(packed):
    source = Source("", examples=texts())
    rows = Rows(source, 12, 4, 0, packed=packed)
    told = rows.facts()
    kept = [each for each in source.examples if each.learnt[1:13].any()]
    assert (told.texts, told.left_out) == (len(kept), 40 - len(kept))
    assert told.cut == sum(len(each.tokens) > 13 for each in source.examples)
    found = []
    for batch in rows.every():
        assert batch.tokens.shape == batch.targets.shape == batch.weights.shape == (4, 12)
        for n in range(4):
            starts = np.flatnonzero(batch.positions[n] == 0) if packed else np.array([0])
            for begin, end in zip(starts, [*starts[1:], 12], strict=True):
                weights = batch.weights[n, begin:end]
                if weights.any():
                    last = np.flatnonzero(weights)[-1] + 1
                    tokens = batch.tokens[n, begin:end]
                    found.append(
                        (tokens[:last].tolist(), batch.targets[n, begin:end][:last].tolist())
                    )
                if packed:
                    assert batch.positions[n, begin:end].tolist() == list(range(end - begin))
    assert len(found) == len(kept)
    for tokens, targets in found:
        assert tokens[1:] == targets[:-1]
    assert sorted(sum(t) for _, t in found) == sorted(
        int(each.tokens[1 : 2 + np.flatnonzero(each.learnt[1:13])[-1]].sum()) for each in kept
    )
    if packed:
        assert told.rows < len(kept) / 1.4


def test_the_order_is_a_function_of_seed_and_step():
    source = Source("", examples=[Example(np.array([n, n]), np.ones(2, bool)) for n in range(20)])
    one, other = (Rows(source, 1, 3, 7, packed=False) for _ in range(2))
    seen = np.concatenate([one.batch(step).tokens[:, 0] for step in range(20)])
    np.testing.assert_array_equal(other.batch(11).tokens[:, 0], seen[33:36])
    for epoch in range(3):
        assert sorted(seen[20 * epoch : 20 * epoch + 20].tolist()) == list(range(20))
    assert seen[:20].tolist() != seen[20:40].tolist()
    # The raw numbers of Philox are promised by NumPy for good: this order must never change.
    assert order_of(7, 0, 8).tolist() == [4, 1, 6, 3, 2, 7, 5, 0]
    windows = Windows(Source("", stream=np.arange(1000)), 4, 6, 3)
    parts = Windows(Source("", stream=np.arange(1000)), 4, 2, 3)
    np.testing.assert_array_equal(
        windows.batch(5).tokens, np.concatenate([parts.batch(n).tokens for n in (15, 16, 17)])
    )


def test_the_first_batches_of_an_evaluation_are_a_random_part_always_the_same():
    examples = [Example(np.array([n, n]), np.ones(2, bool)) for n in range(20)]
    for found in (
        Rows(Source("", examples=examples), 1, 3, 7, packed=False),
        Windows(Source("", stream=np.arange(21)), 1, 3, 7),
    ):
        batches = list(found.every())
        seen = np.concatenate([each.tokens[each.weights > 0] for each in batches]).tolist()
        assert sorted(seen) == list(range(20)) != seen
        for one, other in zip(batches, found.every(), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize("tokens", [5, 7, 8, 9, 12, 13, 1003])
def test_an_epoch_of_a_stream_has_each_of_its_tokens_at_most_once(tokens):
    length, begins = 4, set()
    windows = Windows(Source("", stream=np.arange(tokens)), length, 1, 3)
    count = max(tokens // length - 1, 1)
    for epoch in range(12):
        rows = np.concatenate([windows.batch(epoch * count + n).tokens for n in range(count)])
        starts = sorted(rows[:, 0].tolist())
        assert starts == list(range(starts[0], starts[0] + count * length, length))
        assert starts[-1] + length < tokens  # the last target is a token, too
        begins.add(starts[0])
    assert len(begins) > 1 or tokens == length + 1


def test_tools_that_a_template_does_not_read_are_noted_once(tmp_path, caplog):
    model = copy.copy(load_model(None, "ref"))
    model.chat_template = lambda with_tools=False: ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}", {}
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [CHAT[0], {"role": "assistant", "content": "c", "tool_calls": [call]}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    path = rows_file(tmp_path, *[{"messages": turns, "tools": [tool]}] * 2)
    made = ModelTexts.of_model(model)
    for _ in range(2):
        read_source(path, lambda: made, 10**6)
    for name in ("tools", "tool_calls"):
        assert caplog.text.count(f"reads no `{name}`") == 1


def test_a_held_out_part_is_apart():
    rest, held = split(Source("", stream=np.arange(100)), 0.1, 0, 12)
    assert (rest.stream[-1], held.stream[0]) == (89, 90)
    source = Source("", examples=texts())
    rest, held = split(source, 0.1, 0, 12)
    assert (len(rest.examples), len(held.examples)) == (37, 3)  # a few have nothing to learn
    assert split(source, 0.0, 0, 12)[1] is None


def test_a_text_without_a_token_to_learn_is_not_held_out():
    long = Example(np.arange(9), np.arange(9) > 7)  # its answer is cut off
    source = Source("", examples=[long] * 30 + [Example(np.arange(3), np.ones(3, bool))] * 10)
    rest, held = split(source, 0.1, 0, 4)
    assert [len(each.tokens) for each in held.examples] == [3]
    assert len(rest.examples) == 39


def test_texts_of_the_demo_model_end_with_its_token(tmp_path):
    model = load_model(None, "ref")
    made = ModelTexts.of_model(model)
    path = rows_file(tmp_path, {"text": "import os"})
    (example,) = read_source(path, lambda: made, 10**6).examples
    assert model.tokenizer.decode(example.tokens.tolist()) == "import os"
    assert example.tokens[-1] in model.eos_tokens
    (tmp_path / "train.txt").write_text("import os\n" * 3, encoding="utf-8")
    stream = read_source(tmp_path / "train.txt", lambda: made, 10**6).stream
    assert model.tokenizer.decode(stream.tolist()) == "import os\n" * 3
