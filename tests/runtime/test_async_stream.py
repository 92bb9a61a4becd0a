"""`gptrs.astream`: the text of `stream`, beside other tasks, closed in time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import gptrs
from gptrs.errors import UsageError
from runtime.tiny_gpt2 import save_tiny_gpt2

OPTIONS = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gptrs.load_model(save_tiny_gpt2(tmp_path_factory.mktemp("async") / "tiny"), "ref")


def test_two_texts_beside_each_other_are_those_of_stream(model):
    async def text(prompt: str) -> tuple[str, str]:
        stream = gptrs.astream(model, prompt, **OPTIONS)
        pieces = [piece async for piece in stream]
        return "".join(pieces), stream.generation.finish_reason

    async def both():
        return await asyncio.gather(text("the cat"), text("the dog"))

    expected = [gptrs.generate(model, prompt, **OPTIONS) for prompt in ("the cat", "the dog")]
    assert asyncio.run(both()) == [(each.text, "length") for each in expected]


def test_a_closed_stream_ends(model):
    async def some() -> tuple[int, list[str]]:
        stream = gptrs.astream(model, "the cat", **OPTIONS)
        await anext(stream)
        await stream.aclose()
        return len(stream.generation.token_ids), [piece async for piece in stream]

    count, rest = asyncio.run(some())
    assert (count, rest) == (1, [])


def test_checks_happen_at_once(model):
    with pytest.raises(UsageError):
        gptrs.astream(model, "a", max_tokens=-1)


def test_parameters_are_named_and_read_when_asked(model):
    parameters = model.parameters()
    weight = parameters["transformer.wte.weight"]
    assert (weight.name, weight.shape[1], weight.dtype.name) == (
        "transformer.wte.weight",
        32,
        "f32",
    )
    np.testing.assert_array_equal(weight.numpy(), model.weights.load("transformer.wte.weight"))
    assert list(parameters) == list(model.weights.names())
    assert "source" not in repr(weight)


def test_the_names_of_gptrs_are_the_public_ones():
    assert "astream" in dir(gptrs)
    assert not {"annotations", "os", "importlib", "TYPE_CHECKING"} & set(dir(gptrs))
