"""`gptrs generate`: stream the text that a model continues a prompt with."""

from __future__ import annotations

import typer

from gptrs_cli.generate.options import (
    BatchSizeOption,
    ChatOption,
    ContextOption,
    ContextShiftOption,
    EchoOption,
    FrequencyPenaltyOption,
    GreedyOption,
    IgnoreEosOption,
    KeepOption,
    LogprobsOption,
    MaxTokensOption,
    MinPOption,
    NoCacheOption,
    NumReturnOption,
    OutOption,
    PrefillChunkOption,
    PresencePenaltyOption,
    PromptCacheOption,
    PromptFileOption,
    PromptIdsOption,
    PromptOption,
    PromptsOption,
    RepetitionPenaltyOption,
    SeedOption,
    SpecialOption,
    StopOption,
    SystemOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)
from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import (
    BackendOption,
    DebugOption,
    DumpDirOption,
    DumpModeOption,
    JsonOption,
    OverrideOption,
    PluginsOption,
    ProfileOption,
    ProfileOutOption,
    ThreadsOption,
    TraceSinkOption,
    WeightBudgetOption,
    settings_of,
)


def generate(
    context: typer.Context,
    model: ModelOption = None,
    prompt: PromptOption = None,
    prompt_ids: PromptIdsOption = None,
    prompt_file: PromptFileOption = None,
    chat: ChatOption = False,
    system: SystemOption = None,
    prompts: PromptsOption = None,
    out: OutOption = None,
    batch_size: BatchSizeOption = None,
    max_tokens: MaxTokensOption = None,
    greedy: GreedyOption = False,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    seed: SeedOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    stop: StopOption = None,
    ignore_eos: IgnoreEosOption = False,
    num_return: NumReturnOption = 1,
    logprobs: LogprobsOption = None,
    special: SpecialOption = False,
    context_size: ContextOption = None,
    context_shift: ContextShiftOption = False,
    keep: KeepOption = 0,
    prefill_chunk: PrefillChunkOption = None,
    prompt_cache: PromptCacheOption = None,
    no_cache: NoCacheOption = False,
    echo: EchoOption = False,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    override: OverrideOption = None,
    weight_budget: WeightBudgetOption = None,
    dump_dir: DumpDirOption = None,
    dump_mode: DumpModeOption = None,
    trace_sinks: TraceSinkOption = None,
    profile: ProfileOption = False,
    profile_out: ProfileOutOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Continue a prompt. The text streams to standard output, figures follow on standard error.

    Sampling options replace single fields of what the model's generation_config.json asks for.
    """
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs.runtime.generation.generate import PREFILL_CHUNK, GenerationOptions
    from gptrs_cli.generate.prompt import PromptChoice
    from gptrs_cli.generate.request import Prompts, Request, SamplingChoice, refuse_greedy_with
    from gptrs_cli.generate.run import run
    from gptrs_cli.observation import observed

    if greedy:
        refuse_greedy_with(context, ("temperature", "top_k", "top_p", "min_p"))
    request = Request(
        model=model,
        prompt=PromptChoice(prompt, prompt_ids, prompt_file),
        chat=chat,
        system=system,
        prompts=None if prompts is None else Prompts(prompts, out, batch_size),
        count=num_return,
        sampling=SamplingChoice(
            temperature=0.0 if greedy else temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        ),
        options=GenerationOptions(
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
            use_cache=not no_cache,
            prefill_chunk=PREFILL_CHUNK if prefill_chunk is None else prefill_chunk,
            logprobs=logprobs,
            special=special,
            context=context_size,
            context_shift=context_shift,
            keep=keep,
            prompt_cache=prompt_cache,
        ),
        echo=echo,
    )
    request.check(out=out, batch_size=batch_size)
    settings = settings_of(context)
    with observed(settings) as found, command_line_overrides(settings.overrides):
        exit_code = run(request, settings, found)
    if exit_code:
        raise typer.Exit(exit_code)
