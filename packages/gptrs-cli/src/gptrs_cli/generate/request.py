"""What `gptrs generate` was asked for, and which options fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from gptrs.errors import UsageError
from gptrs.runtime.generation.generate import GenerationOptions
from gptrs.runtime.generation.model_settings import configured_sampling
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.load import LoadedModel
from gptrs_cli.generate.prompt import PromptChoice


@dataclass(frozen=True)
class SamplingChoice:
    """How to choose tokens; None where the model decides."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float

    def for_model(self, settings: Mapping[str, object]) -> Sampling:
        """What that means for a model with these settings in its generation_config.json."""
        return configured_sampling(settings, **dataclasses.asdict(self))


@dataclass(frozen=True)
class Prompts:
    """A file of prompts, where the results go, and how many prompts run at once."""

    path: Path
    out: Path | None
    batch_size: int | None


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the model or gptrs decides."""

    model: Path | None
    prompt: PromptChoice
    chat: bool
    system: str | None
    prompts: Prompts | None
    count: int
    sampling: SamplingChoice
    options: GenerationOptions
    echo: bool

    @property
    def model_shown(self) -> str:
        """The model in words."""
        return f"`{self.model}`" if self.model else "the demo model"

    def options_for(self, model: LoadedModel) -> GenerationOptions:
        """The options, with the sampling that suits `model`."""
        sampling = self.sampling.for_model(model.generation_config)
        return dataclasses.replace(self.options, sampling=sampling)

    def check(self, *, out: Path | None, batch_size: int | None) -> None:
        """UsageError for options that do not fit together, before anything is loaded."""
        if self.system is not None and not self.chat:
            _refuse("`--system` belongs to a conversation", "add --chat")
        if self.chat and self.prompt.ids is not None:
            _refuse("`--chat` makes a message of a text, not of tokens", "use --prompt")
        if self.count < 1:
            _refuse(f"`--num-return` must be at least 1, got {self.count}", "leave it out for 1")
        if self.prompts is None:
            _refuse_given({"--out": out, "--batch-size": batch_size}, "needs `--prompts`")
            return
        _refuse_given(self.prompt.given, "and `--prompts` exclude each other")
        _refuse_given({"--echo": self.echo or None}, "and `--prompts` exclude each other")
        several = self.count if self.count > 1 else None
        _refuse_given({"--num-return": several}, "and `--prompts` exclude each other")
        cache = self.options.prompt_cache
        _refuse_given({"--prompt-cache": cache}, "and `--prompts` exclude each other")


def refuse_greedy_with(context: typer.Context, names: Sequence[str]) -> None:
    """UsageError if one of these parameters is on the command line; a variable may be set."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            _refuse(f"`--greedy` and `{option}` exclude each other", "leave out one of them")


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"`{name}` {why}", hint=f"leave out {name}")


def _refuse(problem: str, hint: str) -> None:
    raise UsageError(problem, hint=hint)
