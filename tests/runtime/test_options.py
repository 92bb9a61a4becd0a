"""An option of a generation is one field: its other forms follow, or it says why it has none."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta
from msgspec.structs import replace

import gptrs
import option_keywords
from gptrs.errors import ModelError, UsageError
from gptrs_cli.command_group import command_of
from gptrs_cli.commands.generate import generate
from gptrs_runtime.generation.beams import BEAM_SETTINGS, Beams, asked_beams
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_rules,
    configured_sampling,
    configured_stops,
    ignored_settings,
)
from gptrs_runtime.generation.options import GenerationOptions, all_options
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.option_fields import Missing, Option, OptionsOf, in_own_words, option_fields
from gptrs_runtime.verbs import VERBS
from gptrs_serve import bodies
from gptrs_serve.command import serve
from gptrs_serve.fields import decoded

OPTIONS = all_options()
LOADING = option_fields(LoadOptions)
VALUES = {int: 3, float: 0.25}
IN_FILES: dict[str, tuple[object, Callable[[Any], object]]] = {
    "max_new_tokens": (7, lambda settings: configured_max_tokens(settings, 1)),
    "min_new_tokens": (7, lambda settings: configured_rules(settings).min_new_tokens),
    "stop_strings": (
        ("END",),
        lambda settings: configured_stops({"stop_strings": [*settings["stop_strings"]]}),
    ),
    "num_beams": (3, lambda settings: beams(settings).count),
    "length_penalty": (0.5, lambda settings: beams(settings).length_penalty),
    "early_stopping": ("never", lambda settings: beams(settings).early_stopping),
}
"""Values of settings that are not of `Sampling`, and what reads them."""


def beams(settings: dict[str, Any]) -> Beams:
    found = asked_beams({"num_beams": 2, **settings}, GenerationOptions(), Sampling(temperature=0))
    assert found is not None
    return found


def test_the_keywords_are_current():
    written = option_keywords.KEYWORDS.read_text(encoding="utf-8")
    assert written == option_keywords.keywords_text(), "run `python tools/option_keywords.py`"


def test_the_table_in_the_docs_is_current():
    written = option_keywords.PAGE.read_text(encoding="utf-8")
    assert written == option_keywords.page_text(), "run `python tools/option_keywords.py`"
    for name in OPTIONS:
        assert f"\n| `{name}` |" in written


def test_the_table_of_tasks_in_the_docs_is_current():
    page = option_keywords.TASKS_PAGE
    written = page.read_text(encoding="utf-8")
    assert written == option_keywords.page_text(page), "run `python tools/option_keywords.py`"
    for name in VERBS:
        assert f"\n| `gptrs {name}` |" in written


def test_the_forms_of_options_of_loading_are_current():
    page, loader = option_keywords.LOADING_PAGE, option_keywords.LOADER
    told = "run `python tools/option_keywords.py`"
    assert page.read_text(encoding="utf-8") == option_keywords.page_text(page), told
    assert loader.read_text(encoding="utf-8") == option_keywords.loader_text(), told


@pytest.mark.parametrize("name", LOADING)
def test_an_option_of_loading_is_one_of_functions_and_commands(name):
    field = LOADING[name]
    parameters = inspect.signature(gptrs.load_model).parameters
    assert (name in parameters) == (field.option.keyword is None)
    own: Any = {each.name: each for each in command_of(generate, "generate").params}
    served: Any = {each.name: each for each in command_of(serve, "serve").params}
    assert own[name].opts == [field.flag]
    assert field.meta.description in own[name].help
    if name != "adapter":  # those of a server have names
        assert served[name].opts == [field.flag]


class MoreOptions(LoadOptions, frozen=True, kw_only=True):
    """Those of loading, and one more."""

    more: (
        Annotated[
            int,
            Meta(ge=3, description="One more."),
            Option(request=Missing("none"), panel="A", further=True),
        ]
        | None
    ) = None


def test_a_new_option_of_loading_reaches_commands_in_its_own_words():
    found = in_own_words(MoreOptions, LOADING["threads"].reworded("N.", least=1), without=["mesh"])
    assert next(iter(found)) == "threads"
    assert found.keys() == option_fields(MoreOptions).keys() - {"mesh"}
    assert (found["threads"].meta.description, found["threads"].meta.ge) == ("N.", 1)
    assert (found["more"].option.panel, found["more"].meta.ge) == ("", 3)

    def command(given):
        del given

    command.__annotations__["given"] = Annotated[dict, OptionsOf(found, told=True)]
    made: Any = command_of(command, "mine")
    context = made.make_context("mine", ["--more", "4", "--backend-option", "a=b"])
    assert context.params["more"] == 4
    with pytest.raises(Exception, match="greater than or equal to 3"):
        made.make_context("mine", ["--more", "2"])


def test_options_of_loading_on_a_command_line():
    options = LoadOptions(backend="ref", threads=2, backend_options=("a=b", "c=d"), precision="f32")
    assert " ".join(options.command_line()) == (
        "--backend ref --threads 2 --backend-option a=b --backend-option c=d --precision f32"
    )
    assert pickle.loads(pickle.dumps(options)) == options
    backend = options.on(LoadOptions(backend="ref", threads=2).made_backend())
    assert dict(backend.given()).keys() == {"backend", "precision"}
    with pytest.raises(UsageError, match="the backend `ref`, which exists, takes no `mesh`"):
        replace(backend, mesh="data=2").made_backend()
    with pytest.raises(UsageError, match="training takes no `weights`, got `'q8'`"):
        replace(backend, weights="q8").refuse("training", ["weights"])


def test_an_option_is_one_of_the_command_line_or_says_why_not():
    command: Any = command_of(generate, "generate")
    known = {p.name: p for p in command.params if p.param_type_name == "option"}
    for name, field in OPTIONS.items():
        told = field.option.flag
        assert (field.flag is None) == isinstance(told, Missing)
        if isinstance(told, Missing):
            assert told.why
            assert name not in known
        else:
            assert known[name].opts == [field.flag]
            assert field.meta.description in known[name].help
            assert field.option.panel in known[name].rich_help_panel


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_a_field_of_requests_or_says_why_not(name):
    told = OPTIONS[name].option.request
    fields = {*bodies.CompletionBody.__struct_fields__, *bodies.ChatBody.__struct_fields__}
    if isinstance(told, Missing):
        assert told.why
        assert name not in fields
        return
    assert (name if isinstance(told, Meta) else told) in fields
    if isinstance(told, Meta):
        value = VALUES[OPTIONS[name].type]
        body = {"prompt": "a", name: value}
        read = decoded(msgspec.json.encode(body), bodies.CompletionBody)
        assert getattr(configured_sampling({}, **read.sampling()), name) == value


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_a_setting_of_models_or_says_why_not(name):
    field = OPTIONS[name]
    key = field.option.setting
    if isinstance(key, Missing):
        assert key.why
        return
    assert {*ignored_settings({key: 0.3})} <= {*BEAM_SETTINGS}  # which an engine ignores
    if name in Sampling.__struct_fields__:
        value = VALUES[field.type]
        found = configured_sampling({"do_sample": True, key: value})
        assert getattr(found, name) == value
        with pytest.raises(ModelError, match=rf"`{key}` in generation_config\.json must be"):
            configured_sampling({key: "much"})
    else:
        value, read = IN_FILES[key]
        assert read({key: value}) == value


@pytest.mark.parametrize("name", [n for n, f in OPTIONS.items() if f.option.off is not None])
def test_a_value_that_turns_an_option_off_stands_for_none(name):
    off: Any = OPTIONS[name].option.off
    setting: Any = {"do_sample": True, name: VALUES[OPTIONS[name].type]}
    assert getattr(configured_sampling(setting), name) is not None
    assert getattr(configured_sampling(setting, **{name: off}), name) is None
    assert getattr(configured_sampling({**setting, name: off}), name) is None


BOUNDS = {
    "temperature": (-1, "`temperature` must be a finite number >= 0, got -1"),
    "top_k": (0, "`top_k` must be at least 1, got 0"),
    "top_p": (1.5, "`top_p` must be from 0 to 1, got 1.5"),
    "min_p": (-0.5, "`min_p` must be from 0 to 1, got -0.5"),
    "repetition_penalty": (0, "the repetition penalty must be a finite number > 0, got 0"),
    "presence_penalty": (float("inf"), "the presence penalty must be a finite number, got inf"),
    "frequency_penalty": (float("nan"), "the frequency penalty must be a finite number, got nan"),
    "typical_p": (0, "`typical_p` must be above 0 and at most 1, got 0"),
    "epsilon_cutoff": (2, "`epsilon_cutoff` must be above 0 and at most 1, got 2"),
    "eta_cutoff": (-1, "`eta_cutoff` must be above 0 and at most 1, got -1"),
    "max_tokens": (0, "`max_tokens` must be at least 1, got 0"),
    "min_tokens": (-1, "`min_tokens` must be at least 0, got -1"),
    "prefill_chunk": (0, "the prefill chunk must be at least 1, got 0"),
    "logprobs": (-1, "`logprobs` must be at least 0, got -1"),
    "context": (0, "the context must be at least 1, got 0"),
    "keep": (-1, "`keep` must be at least 0, got -1"),
    "beams": (0, "the number of beams must be at least 1, got 0"),
    "steps_at_once": (0, "the number of steps at once must be at least 1, got 0"),
    "length_penalty": (101, "`length_penalty` must be a number from -100 to 100, got `101`"),
}


@pytest.mark.parametrize("kind", [Sampling, GenerationOptions])
def test_a_value_out_of_bounds_is_told(kind):
    fields = option_fields(kind)
    bounded = {
        name for name, field in fields.items() if field.type in VALUES and name != "seed"
    }  # any integer is a seed
    assert bounded == fields.keys() & BOUNDS.keys()
    for name in bounded:
        value, message = BOUNDS[name]
        with pytest.raises(UsageError) as error:
            kind(**{name: value})
        assert error.value.message == message


def test_the_signature_is_as_short_as_the_types():
    shown = str(inspect.signature(Sampling))
    assert shown.startswith("(temperature: float = 1.0, top_k: Optional[int] = None, ")
    assert "Meta" not in shown + str(inspect.signature(GenerationOptions))


def test_options_are_checked_wherever_they_are_made():
    options = GenerationOptions(3, Sampling(seed=1))
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(UsageError, match="`max_tokens` must be at least 1"):
        replace(options, max_tokens=0)
    with pytest.raises(AttributeError):
        options.max_tokens = 4  # pyright: ignore[reportAttributeAccessIssue]
