"""The options of generations: from a request of `gptrs generate`, with the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gptrs.errors import UsageError
from gptrs_cli.generate.options import FormOptions
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.options.settings import Settings
from gptrs_cli.options.text_input import read_text
from gptrs_runtime.generation.grammar import Form, Grammar
from gptrs_runtime.generation.model_settings import configured_sampling
from gptrs_runtime.generation.options import GUESSING, GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.option_fields import option_fields


def generation_options(
    request: GenerateRequest, model: LoadedModel, settings: Settings
) -> GenerationOptions:
    """Return the options of generations, with the default sampling of `model`, and its draft."""
    given = dict(request.given)
    drawn = {name: given.pop(name) for name in option_fields(Sampling) if name in given}
    sampling = _sampling(drawn, request, model.generation_config)
    if settings.load.processes is not None:
        require_alike(sampling, guesses=not GUESSING.isdisjoint(given))
    if request.greedy:
        given["beams"] = 1
    form = _form(request.form)
    if form is not None:
        given["form"] = Grammar(model, *form)
    if "draft" in given:
        given["draft"] = load_model(given["draft"], settings.load.made_backend())
    return GenerationOptions(**given, sampling=sampling)


def require_alike(sampling: Sampling, *, guesses: bool) -> None:
    """Raise UsageError for options whose effect would differ between cooperating processes."""
    if guesses:
        raise UsageError(
            "guesses follow from measured times, which several processes do not share",
            hint="leave out --draft, --mtp and --prompt-lookup",
        )
    if sampling.temperature > 0 and sampling.seed is None:
        raise UsageError(
            "several processes must choose the same tokens", hint="give a --seed, or --greedy"
        )


def _form(options: FormOptions) -> tuple[Form, str] | None:
    """Return the form of texts and its source, which may be read from a file.

    UsageError for a file that cannot be read.
    """
    if options.json_schema is not None:
        return "json_schema", read_text(options.json_schema, "the JSON schema")
    if options.grammar is not None:
        return "lark", read_text(options.grammar, "the grammar")
    return None if options.regex is None else ("regex", options.regex)


def _sampling(
    drawn: dict[str, Any], request: GenerateRequest, settings: Mapping[str, object]
) -> Sampling:
    """Return the sampling of a model with these settings in its generation_config.json."""
    fields = option_fields(Sampling)
    samples = any(fields[name].option.samples for name in drawn)
    if request.greedy or (request.given.get("beams", 1) > 1 and not samples):
        drawn["temperature"] = 0.0
    return configured_sampling(settings, **drawn)
