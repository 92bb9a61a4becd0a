"""`gptrs validate --against`: compares two models that gptrs loads, on a text."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import MissingLibraryError, ModelError, UsageError
from gptrs.install_hints import install_extra
from gptrs.quoting import counted, quoted
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.completion import model_names
from gptrs_cli.options.declare import option
from gptrs_cli.options.settings import Settings, model_shown
from gptrs_cli.options.text_input import read_text
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import note_below
from gptrs_observe.compare.agreement import (
    TextDivergence,
    VectorDivergence,
    compare_text,
    compare_vectors,
)
from gptrs_observe.results import ValidateAgainst
from gptrs_runtime.load import load
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Profile, RunTimings
from gptrs_runtime.sources.gguf_model import GgufModel
from gptrs_runtime.sources.hf_directory import HfDirectory
from gptrs_runtime.sources.imported_folder import ImportedFolder

if TYPE_CHECKING:
    from gptrs_cli.validate.torch_reference import TorchReference


class AgainstOptions(Struct, frozen=True):
    """Another model to compare with, and the text."""

    against: Annotated[
        Path | None,
        option(
            "--against",
            "Compare with this model, run by gptrs, instead of transformers. For imported models: "
            "a FILE of outputs, another model, or a BACKEND.",
            metavar="MODEL",
            names=model_names,
        ),
    ] = None
    text: Annotated[
        str | None,
        option(
            "--text",
            "With --against: a UTF-8 file for both models; for embedders, a text on each line.",
            metavar="FILE",
        ),
    ] = None
    window: Annotated[
        int | None,
        option(
            "--window",
            "With --against: tokens per window.  [default: the context, at most 1024]",
            metavar="N",
        ),
    ] = None

    def require_unused(self) -> None:
        """Raise UsageError for options that need `--against`."""
        for name, value in (("--text", self.text), ("--window", self.window)):
            if value is not None:
                raise UsageError(
                    f"`{name}` needs a second model to compare with", hint="add `--against MODEL`"
                )


def compare(
    model: Path | None, options: AgainstOptions, settings: Settings
) -> tuple[LoadedModel, LoadedModel, TextDivergence | VectorDivergence, float]:
    """Return both models, the findings, and the seconds.

    `--weights` quantizes only the first model.
    """
    if options.text is None:
        raise UsageError("`--against` compares two models on a text", hint="add `--text FILE`")
    content = read_text(options.text, "the text")
    with Waiting(f"loading {model_shown(model)}") as waiting:
        loaded = loaded_model(model, settings)
        waiting.now(f"loading {model_shown(options.against)}")
        same = replace(settings.load, weights=None, precision=None)
        reference = load(options.against, same.on(same.made_backend()))
        started = time.perf_counter()
        if "causal_lm" not in loaded.capabilities:
            waiting.now("embedding the lines of the text")
            lines = [line for line in content.splitlines() if line.strip()]
            vectors = compare_vectors(loaded, reference, lines)
            return loaded, reference, vectors, time.perf_counter() - started
        reference.causal_lm()
        tokens = _tokens(loaded, reference, content)
    with progress_bar("windows") as step:

        def progress(done: int, total: int) -> None:
            if step is not None:
                step(done, total, "")

        found = compare_text(loaded, reference, tokens, options.window, progress)
    return loaded, reference, found, time.perf_counter() - started


def print_comparison(
    model: LoadedModel,
    reference: LoadedModel,
    found: TextDivergence | VectorDivergence,
    seconds: float,
) -> None:
    """Print a line for each figure, and the names of the models."""
    if isinstance(found, VectorDivergence):
        print(f"cosine of two vectors: {found.cosine:.6f}, least {found.least_cosine:.6f}")
        extent = counted(found.texts, "text")
    else:
        print(
            f"KL divergence: {found.kl:.6f} +- {found.kl_error:.6f},"
            f" 99 % below {found.kl_worst:.6f}"
        )
        print(f"the likeliest token is the same: {found.top1:.2%}")
        ours, theirs = found.model, found.reference
        print(f"perplexity: {ours}, the other one has {theirs.perplexity:.4f}")
        extent = f"{ours.scored} tokens in windows of {ours.window}"
    note_below(
        f"`{_named(model)}` beside `{reference.name}`, {extent}, backend {model.backend.name},"
        f" {seconds:.1f} s"
    )


def told_comparison(
    model: LoadedModel,
    reference: LoadedModel,
    found: TextDivergence | VectorDivergence,
    seconds: float,
    profile: Profile,
) -> ValidateAgainst:
    """Return the `--json` form."""
    figures: dict[str, Any]
    if isinstance(found, TextDivergence):
        figures = {
            "kl": found.kl,
            "kl_error": found.kl_error,
            "kl_worst": found.kl_worst,
            "top1": found.top1,
            "perplexity": _finite(found.model.perplexity),
            "reference_perplexity": _finite(found.reference.perplexity),
            "scored": found.model.scored,
            "window": found.model.window,
        }
    else:
        figures = {
            "texts": found.texts,
            "cosine": _finite(found.cosine),
            "least_cosine": _finite(found.least_cosine),
        }
    return ValidateAgainst(
        model=model.name,
        weights=model.weight_type,
        reference=reference.name,
        backend=model.backend.name,
        **figures,
        timings=RunTimings(load_s=model.load_seconds, validate_s=seconds),
        profile=profile,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _named(model: LoadedModel) -> str:
    return model.name if model.weight_type is None else f"{model.name} in {model.weight_type}"


def _tokens(model: LoadedModel, reference: LoadedModel, text: str) -> Sequence[int]:
    """Return the tokens of the text; UsageError if the two models tokenize it differently."""
    ours, theirs = model.prompt_tokens(text), reference.prompt_tokens(text)
    # The divergence compares distributions position by position, so positions must mean the same
    # tokens.
    if ours != theirs:
        raise UsageError(
            f"`{model.name}` and `{reference.name}` tokenize the text differently: their "
            f"predictions cannot be compared"
        )
    return ours


# transformers as the reference of a comparison; imported only for one.


def torch_reference(model: LoadedModel) -> TorchReference:
    """Load a model with transformers: the factory of the reference `torch`.

    MissingLibraryError if torch is missing; ModelError for a model that transformers cannot load.
    """
    try:
        module = importlib.import_module("gptrs_cli.validate.torch_reference")
    except ImportError as missing:
        raise MissingLibraryError(
            f"the reference `torch` needs torch and transformers: {missing}",
            hint=_install_hint(missing),
        ) from missing
    _require_folder(model)
    return cast("type[TorchReference]", module.TorchReference)(model)


def _require_folder(model: LoadedModel) -> None:
    """Raise ModelError if the model is neither a folder of weights nor a GGUF file."""
    if isinstance(model.files, ImportedFolder):
        raise ModelError(
            f"{quoted(str(model.files.path), 200)} holds a model that transformers does not read",
            hint=f"compare its file: `gptrs validate --model {model.files.file}`",
        )
    if not isinstance(model.files, (HfDirectory, GgufModel)):
        raise ModelError(
            f"{quoted(str(model.files.path), 200)} is a file that transformers does not read",
            hint="compare the folder it was made from, or make one with `gptrs convert`",
        )


def _install_hint(missing: ImportError) -> str:
    """Return an install hint: transformers imports Pillow even for text models."""
    if (missing.name or "").partition(".")[0] == "PIL":
        return (
            "Pillow alone is missing: `pip install pillow`; transformers imports it for any model"
        )
    return install_extra("gptrs-cli", "torch")
