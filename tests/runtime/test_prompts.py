"""Prompts in Python: text, tokens of any kind of sequence, messages; everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.generation.keywords import OptionFields, SamplingFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_gpt2 import END, save_tiny_gpt2


def test_tokens_may_be_any_sequence_of_integers(model):
    wanted = [5, 9, 2]
    for prompt in (wanted, tuple(wanted), np.array(wanted), np.array(wanted, np.uint16)):
        assert model.prompt_tokens(prompt) == wanted
    assert model.prompt_tokens([np.int32(5), 9, 2]) == wanted


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (None, "got `NoneType`"),
        (3, "got `int`"),
        (b"text", "got `bytes`"),
        ([1.0], "got a list with a `float` at 0"),
        ([1, True], "got a list with a `bool` at 1"),
        (["a", "b"], "`gptrs.generate_batch` takes several texts"),
        (np.ones((1, 2), np.int64), r"got an array int64\[1, 2\]"),
        (np.ones(2, np.float32), r"got an array float32\[2\]"),
        ([{"content": "hi"}], "message 0 must be an object with a `role`"),
    ],
)
def test_what_is_no_prompt_is_refused(model, prompt, found):
    with pytest.raises(UsageError, match=found):
        gptrs.generate(model, prompt)


def test_one_text_is_no_batch(model):
    with pytest.raises(UsageError, match="takes a list of prompts, got one text"):
        gptrs.generate_batch(model, "the cat")


def test_messages_are_rendered_by_the_chat_template(tmp_path, model):
    chat = load_model(save_tiny_chat(tmp_path / "chat"), "ref")
    messages = [{"role": "user", "content": "hello"}]
    text = f"user: hello{END}\nassistant: "
    assert chat.prompt_tokens(messages) == chat.tokenizer.encode(text, special=False)
    with pytest.raises(ModelError, match="has no chat template"):
        gptrs.generate(model, messages)


def test_every_option_has_a_keyword():
    options, sampling = GenerationOptions.__struct_fields__, Sampling.__struct_fields__
    assert tuple(SamplingFields.__annotations__) == sampling
    assert tuple(OptionFields.__annotations__) == (*sampling, *options)


def test_all_functions_take_options_one_way(model):
    base = GenerationOptions(max_tokens=3, ignore_eos=True)
    wanted = gptrs.generate(model, [5], base).token_ids
    assert gptrs.generate(model, [5], max_tokens=3, ignore_eos=True).token_ids == wanted
    longer = gptrs.generate(model, [5], base, max_tokens=5).token_ids
    assert (len(longer), longer[:3]) == (5, wanted)
    text = gptrs.stream(model, [5], max_tokens=3, ignore_eos=True)
    list(text)
    assert text.generation.token_ids == wanted
    (batch,) = gptrs.generate_batch(model, [[5]], max_tokens=3, ignore_eos=True)
    (several,) = gptrs.generate_several(model, [5], 1, max_tokens=3, ignore_eos=True)
    assert batch.token_ids == several.token_ids == wanted


def test_fields_of_sampling_replace_those_of_the_model(tmp_path):
    asked = {"do_sample": True, "temperature": 5.0, "top_k": 200}
    model = load_model(save_tiny_gpt2(tmp_path / "m", generation_config=asked), "ref")

    def tokens(**fields):
        return gptrs.generate(model, [1], max_tokens=12, ignore_eos=True, **fields).token_ids

    assert tokens(seed=3) == tokens(sampling=Sampling(temperature=5.0, top_k=200, seed=3))
    assert tokens(temperature=0.0) == tokens(top_k=1, seed=9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 5}, "there is no option `max_new_tokens`; did you mean `max_tokens`"),
        ({"temprature": 1.0}, "did you mean `temperature`"),
        ({"temperature": 1.0, "sampling": Sampling()}, "`temperature` and `sampling` exclude"),
        ({"temperature": -1.0}, "`temperature` must be a finite number >= 0"),
    ],
)
def test_wrong_options_are_refused(model, fields, message):
    with pytest.raises(UsageError, match=message):
        gptrs.stream(model, [1], **fields)


def test_what_users_hold_says_what_it_is(model):
    assert repr(model) == (
        "<LoadedModel tiny: gpt2 on ref, 37.1 k parameters f32, context 64;"
        " causal_lm, hidden_states>"
    )
    assert repr(model.tokenizer) == "<TextTokenizer of tokenizer.json: 300 tokens>"
    assert repr(model.weights).endswith("/tiny/model.safetensors: 28 tensors in 1 file>")
    text = gptrs.stream(model, [5], max_tokens=2, ignore_eos=True)
    next(text)
    assert repr(text).startswith("<TextStream: 1 token so far, ")
    text.close()
