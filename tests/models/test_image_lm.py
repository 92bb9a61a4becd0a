"""Idefics3 and SmolVLM write as transformers does about the same images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs_runtime.generation.chat_session import ChatSession
from gptrs_runtime.images.image_prompts import PicturedTokens, image_part
from gptrs_runtime.images.settings import tiling_processor_of
from gptrs_runtime.images.tiling import tiling_processor

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("PIL.Image", reason="images need Pillow")
pytest.importorskip("jinja2", reason="conversations need Jinja")

from gptrs_models.idefics3 import position_rows  # noqa: E402
from models.image_lm_support import (  # noqa: E402
    SIDE,
    Idefics3ImageProcessorPil,
    pixels,
    reference_inputs,
    reference_tokens,
    save_image_lm,
)
from models.image_models import assert_close  # noqa: E402

TOKENS = 24
CASES = {
    "idefics3": ("Idefics3", {}),
    "smolvlm": ("SmolVLM", {"scale_factor": 3, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory) -> Path:
    """A directory for each case."""
    kind, settings = CASES[request.param]
    return save_image_lm(tmp_path_factory.mktemp("vlm") / "m", kind, **settings)


def asked(*images: object, text: str = "what is this ?") -> list[dict]:
    """A message with images before, within and after a text."""
    parts: list[dict] = [{"type": "text", "text": "a fox"}]
    for image in images:
        part = {"type": "image"} if image is None else {"type": "image", "image": image}
        parts += [part, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def pictured(model, messages: list[dict]) -> PicturedTokens:
    """The tokens of a prompt with images."""
    prompt = model.prompt_tokens(messages)
    assert isinstance(prompt, PicturedTokens)
    return prompt


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(31, 36))
def test_five_draws_of_weights_write_as_in_transformers(tmp_path, backend_name, seed):
    kind, settings = [*CASES.values()][seed % 2]
    folder, images = save_image_lm(tmp_path, kind, seed, **settings), [pixels(50, 40)]
    inputs = reference_inputs(folder, asked(None), images)
    model = gptrs.load_model(folder, backend=backend_name)
    assert written(model, images, max_tokens=48) == reference_tokens(folder, inputs, 48)


def written(model, images: list[np.ndarray], **options: object) -> list[int]:
    """The tokens that our model writes greedily."""
    greedy = {"max_tokens": TOKENS, "ignore_eos": True, **options}
    return list(gptrs.generate(model, asked(*images), **greedy).token_ids)


def expected(folder: Path, images: list[np.ndarray]) -> list[int]:
    """The tokens that transformers writes greedily."""
    inputs = reference_inputs(folder, asked(*[None] * len(images)), images)
    return reference_tokens(folder, inputs, TOKENS)


@pytest.mark.parametrize("sizes", [[(50, 40)], [(20, 90)], [(9, 9)], [(30, 70), (64, 31)]], ids=str)
def test_texts_about_images_are_those_of_transformers(folder, backend_name, sizes):
    images = [pixels(*size) for size in sizes]
    model = gptrs.load_model(folder, backend=backend_name)
    inputs = reference_inputs(folder, asked(*[None] * len(images)), images)
    prompt = pictured(model, asked(*images))
    assert list(prompt.shown) == inputs["input_ids"][0].tolist()
    assert written(model, images) == expected(folder, images)


def test_steps_of_any_size_write_the_same(folder, backend_name):
    model, image = gptrs.load_model(folder, backend=backend_name), pixels(50, 40)
    assert written(model, [image], prefill_chunk=13) == expected(folder, [image])


def test_vectors_of_pictures_are_those_of_transformers(folder, backend_name):
    import transformers

    pictures = np.random.default_rng(0).standard_normal((2, 3, SIDE, SIDE)).astype(np.float32)
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        features = theirs.model.get_image_features(torch.from_numpy(pictures)[None]).pooler_output
    model = gptrs.load_model(folder, backend=backend_name)
    ours = model.image_lm().image_vectors(pictures)
    assert_close(ours.reshape(-1, ours.shape[-1]), torch.cat(list(features)).numpy())


def test_texts_share_no_pages_about_unlike_images(folder):
    """The tokens of both prompts are alike for transformers, and pages are found by tokens."""
    model, images = gptrs.load_model(folder, backend="ref"), [pixels(50, 40, n) for n in range(5)]
    alone = [expected(folder, [image]) for image in images]
    assert len(set(map(tuple, alone))) > 1
    for _ in range(2):
        assert [written(model, [image]) for image in images] == alone
    prompts = [asked(image) for image in images]
    batch = gptrs.generate_batch(model, prompts, max_tokens=TOKENS, ignore_eos=True)
    assert [list(made.token_ids) for made in batch] == alone


def test_the_next_turn_finds_what_was_read_of_an_image(folder):
    model, image = gptrs.load_model(folder, backend="ref"), pixels(50, 40)
    session = ChatSession(model, max_tokens=4)
    first = session.ask("what is this ?", [image])
    list(first)
    session.remember(first)
    second = session.ask("and that ?")
    list(second)
    assert second._text.found >= 32  # a page at least
    fresh = gptrs.load_model(folder, backend="ref")
    alone = gptrs.generate(fresh, session.messages, max_tokens=4)
    assert alone.token_ids == second.generation.token_ids


def test_an_engine_answers_about_images(folder):
    model, images = gptrs.load_model(folder, backend="ref"), [pixels(50, 40), pixels(20, 90)]
    with gptrs.Engine(model) as engine:
        streams = [
            engine.submit(asked(image), max_tokens=TOKENS, ignore_eos=True) for image in images
        ]
        for stream in streams:
            list(stream)
        found = [list(stream.generations[0].token_ids) for stream in streams]
    assert found == [expected(folder, [image]) for image in images]


def test_an_image_may_be_a_file(folder, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    image.fromarray(pixels(50, 40)).save(tmp_path / "fox.png")
    model = gptrs.load_model(folder, backend="ref")
    known = pictured(model, asked(pixels(50, 40))).pictures
    assert pictured(model, asked(tmp_path / "fox.png")).pictures == known
    part = image_part(tmp_path / "fox.png")
    assert part["image_url"]["url"].startswith("data:image/png;base64,")
    assert pictured(model, [{"role": "user", "content": [part]}]).pictures == known


def test_what_is_no_image_is_refused(folder):
    model = gptrs.load_model(folder, backend="ref")
    wrong = {
        5: "`Path` of a file",
        Path("/no/such.png"): "No such file",
        "data:image/png;base64,?": "malformed",
        "data:image/png;base64,Zm94": "not an image that can be read",
    }
    for image, problem in wrong.items():
        with pytest.raises((UsageError, ModelError), match=problem):
            model.prompt_tokens(asked(image))
    with pytest.raises(UsageError, match=r"ui8 \[H, W, 3\], got float32\[2, 2, 3\]"):
        model.prompt_tokens(asked(np.zeros((2, 2, 3), np.float32)))
    with pytest.raises(UsageError, match="got the keys"):
        model.prompt_tokens([{"role": "user", "content": [{"type": "image", "path": "fox.png"}]}])


def test_no_text_is_the_name_of_a_file(folder, tmp_path):
    """Messages may come from strangers: neither a name nor a URL is opened."""
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    image.fromarray(pixels(9, 9)).save(tmp_path / "fox.png")
    model = gptrs.load_model(folder, backend="ref")
    path = str(tmp_path / "fox.png")
    for name in (path, f"file://{path}", "https://example.org/fox.png", "data:,fox"):
        for part in ({"type": "image", "image": name}, {"type": "image_url", "image_url": name}):
            with pytest.raises(UsageError, match="is a URL `data:image/") as error:
                model.prompt_tokens([{"role": "user", "content": [part]}])
            assert "are not opened" in str(error.value.hint)


def test_more_images_than_the_context_are_refused(folder):
    model = gptrs.load_model(folder, backend="ref")
    many = [pixels(40, 40, seed) for seed in range(25)]
    with pytest.raises(ContextLengthError, match="the context has 400"):
        model.prompt_tokens(asked(*many))


def test_marks_of_images_in_a_text_are_refused(folder):
    model = gptrs.load_model(folder, backend="ref")
    with pytest.raises(UsageError, match="2 marks `<image>` for 1 images"):
        model.prompt_tokens(asked(pixels(9, 9), text="what is <image> ?"))


@pytest.mark.parametrize("options", [{"use_cache": False}, {"prompt_cache": "cache.gptrsten"}])
def test_options_that_do_not_go_with_images_are_refused(folder, tmp_path, options):
    if "prompt_cache" in options:
        options = {"prompt_cache": tmp_path / options["prompt_cache"]}
    model = gptrs.load_model(folder, backend="ref")
    with pytest.raises(UsageError, match="does not go with images"):
        written(model, [pixels(9, 9)], **options)


def test_a_model_that_reads_no_images_says_so(tmp_path):
    from runtime.tiny_chat import save_tiny_chat

    model = gptrs.load_model(save_tiny_chat(tmp_path / "m"), backend="ref")
    with pytest.raises(ModelError, match="reads no images"):
        model.prompt_tokens(asked(pixels(9, 9)))


PROCESSORS = {
    "as it is": {},
    "one square": {"do_image_splitting": False, "image_mean": [0.4, 0.3, 0.2]},
    "not resized": {"do_resize": False, "max_image_size": {"longest_edge": 30}},
    "a box": {"size": {"height": 40, "width": 70}, "resample": 3},
    "not normalized": {"do_normalize": False, "do_rescale": False},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", PROCESSORS)
def test_images_are_cut_as_transformers_does(name):
    small = {"size": {"longest_edge": 100}, "max_image_size": {"longest_edge": 25}}
    settings = {**small, **PROCESSORS[name]}
    theirs = Idefics3ImageProcessorPil(**settings)
    ours = tiling_processor(settings)
    for size in [(50, 40), (97, 33), (20, 133), (1, 7), (64, 64)]:
        levels = np.random.default_rng(size).integers(0, 256, (*size, 3), np.uint8)
        expected = theirs([[levels]], return_row_col_info=True, input_data_format="channels_last")
        tiles = ours(levels)
        assert [[tiles.rows]] == expected["rows"]
        assert [[tiles.columns]] == expected["cols"]
        found = np.stack([ours.levels(picture) for picture in tiles.pictures])
        np.testing.assert_array_equal(found, np.asarray(expected["pixel_values"][0], np.float32))


def test_an_image_of_too_many_pictures_is_refused():
    ours = tiling_processor({"size": {"longest_edge": 4000}, "max_image_size": {"longest_edge": 9}})
    with pytest.raises(ModelError, match="at most 256 are made"):
        ours(pixels(50, 50))


class Files(dict):
    """The JSON files of a model, in memory."""

    def read_json(self, name: str):
        """Return the file, None without it."""
        return self.get(name)


def test_another_processor_is_refused():
    files = Files({"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor"}})
    with pytest.raises(ModelError, match=r"cuts images into pictures, found `'ViTImageProcessor'`"):
        tiling_processor_of(files)


@pytest.mark.whole
@pytest.mark.parametrize("side", [1, 2, 4, 5, 6, 14, 26, 27, 32, 37])
def test_positions_are_compared_as_transformers_does(side):
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    step = 1.0 / torch.tensor([side])
    places = torch.clamp(torch.arange(side, dtype=torch.float32) * step, max=1.0 - 1e-6)
    buckets = torch.bucketize(places, bounds, right=True)
    rows = (buckets[:, None] * side + buckets).reshape(-1).numpy()
    np.testing.assert_array_equal(position_rows(side), rows)
