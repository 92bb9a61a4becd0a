"""A task is one row: what it is asked, its function, and its result fit each other."""

from __future__ import annotations

import inspect

import pytest
from msgspec import Meta

from gptrs.errors import UsageError
from gptrs_runtime.capable_model import CapableModel
from gptrs_runtime.embedding.embed import embed_either
from gptrs_runtime.option_fields import Missing, Options, option_fields
from gptrs_runtime.verb_requests import ClassifyRequest, EmbedRequest, RankRequest
from gptrs_runtime.verbs import INPUTS, VERBS
from gptrs_serve import bodies
from gptrs_serve.fields import decoded
from gptrs_serve.openapi import ROUTES

FUNCTIONS = [(verb.name, verb.function) for verb in VERBS.values()]
FUNCTIONS.append(("embed", lambda: embed_either))
OF_COMMANDS = {
    "embed": {"out", "prompt"},
    "transcribe": {"format"},
}
"""Fields that no function takes: the command does what they ask for."""


@pytest.mark.parametrize(("name", "function"), FUNCTIONS)
def test_options_have_the_defaults_of_the_function(name, function):
    parameters = inspect.signature(function()).parameters
    for field, option in option_fields(VERBS[name].request()).items():
        if field in parameters and field not in INPUTS:
            default = parameters[field].default
            assert default in (option.default, None), field


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_function_takes_all_that_is_asked(verb):
    taken = {*inspect.signature(verb.function()).parameters}
    if verb.name == "embed":
        taken |= {*inspect.signature(embed_either).parameters}
    left = {*verb.request().__struct_fields__} - taken
    assert left == OF_COMMANDS.get(verb.name, set()) - taken


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_model_has_what_a_verb_needs(verb):
    assert not verb.needs or callable(getattr(CapableModel, verb.needs))
    assert bool(verb.column) >= verb.each
    assert issubclass(verb.request(), Options)


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_field_is_an_option_of_the_command_or_says_why_not(verb):
    for name, field in option_fields(verb.request()).items():
        told = field.option.flag
        assert (field.flag is None) == isinstance(told, Missing)
        assert not isinstance(told, Missing) or told.why, name


def test_what_does_not_go_together_is_refused_in_python_too():
    with pytest.raises(UsageError, match="2 times `--pair` for 1 text"):
        ClassifyRequest(texts=["a"], pairs=["b", "c"])
    with pytest.raises(UsageError, match="`texts` must be a list of texts, got"):
        ClassifyRequest(texts=3)
    with pytest.raises(UsageError, match="`batch_size` must be at least 1, got 0"):
        EmbedRequest(texts=["a"], batch_size=0)


@pytest.mark.parametrize("name", bodies.TASKS)
def test_a_field_is_one_of_the_body_of_its_route_or_says_why_not(name):
    body = bodies.TASKS[name]
    for field, option in option_fields(VERBS[name].request()).items():
        told = option.option.request
        if isinstance(told, Missing):
            assert told.why
            assert field not in body.__struct_fields__
        else:
            assert (field if isinstance(told, Meta) else told) in body.__struct_fields__


def test_each_route_of_a_verb_is_described():
    for name, body in bodies.TASKS.items():
        # One may have fields of another protocol beside those of the others.
        assert all(issubclass(ROUTES[path].body, body) for path in VERBS[name].routes)
    assert {path for verb in VERBS.values() for path in verb.routes} <= ROUTES.keys()


def test_what_a_route_is_asked_is_a_request():
    body = decoded(
        b'{"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}', bodies.RerankBody
    )
    asked = body.asked(RankRequest)
    expected = {"query": "a", "documents": ["b", "c"], "top_k": 1, "truncate": False}
    assert asked == expected
    assert RankRequest(**asked).top_k == 1
    for given, cut in (("", False), (', "truncate": true', True), (', "truncate": false', False)):
        for cutting in ("", ', "truncate_prompt_tokens": -1'):
            text = f'{{"input": "a"{given}{cutting}}}'.encode()
            asked = decoded(text, bodies.EmbeddingBody).asked(EmbedRequest)
            assert asked == {"texts": ["a"], "truncate": cut or (bool(cutting) and not given)}
