"""Images of `gptrs generate --chat --image`, `gptrs chat --image` and `--prompts`."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs_runtime.generation.chat_session import ChatSession
from gptrs_runtime.images.image_prompts import image_part

image = pytest.importorskip("PIL.Image", reason="images need Pillow")
pytest.importorskip("torch", reason="the tiny model is made by torch")
pytest.importorskip("transformers", reason="the tiny model is made by transformers")

from models.image_lm_support import pixels, save_image_lm  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model that reads images, and two of these."""
    made = tmp_path_factory.mktemp("vlm")
    for number in (0, 1):
        image.fromarray(pixels(50, 40, number)).save(made / f"{number}.png")
    return save_image_lm(made / "m").parent


def wanted(folder, *names: str) -> list[int]:
    """What Python writes about images."""
    model = gptrs.load_model(folder / "m", backend="ref")
    parts = [image_part(folder / name) for name in names]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "what is this ?"}]}]
    return list(gptrs.generate(model, messages, max_tokens=9, ignore_eos=True).token_ids)


def test_generate_is_about_the_images(gptrs, folder):
    common = ("--model", folder / "m", "--chat", "--json", "--max-tokens", 9, "--ignore-eos")
    for names in (("0.png",), ("1.png",), ("0.png", "1.png")):
        images = [part for name in names for part in ("--image", folder / name)]
        result = gptrs("generate", *common, *images, "what is this ?").json
        assert result["token_ids"] == wanted(folder, *names)
        assert result["prompt"].count("<global-img>") == len(names)
    assert gptrs("generate", *common, "what is this ?").json["token_ids"] == wanted(folder)


def test_prompts_of_a_file_have_images(gptrs, folder, tmp_path):
    lines = [
        {
            "messages": [
                {"role": "user", "content": [part, {"type": "text", "text": "what is this ?"}]}
            ]
        }
        for part in (image_part(folder / f"{number}.png") for number in (0, 1))
    ]
    lines.append({"messages": [{"role": "user", "content": [{"type": "image", "image": "0.png"}]}]})
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    options = ("--prompts", file, "--json", "--max-tokens", 9, "--ignore-eos", "--skip-bad")
    result = gptrs("generate", "--model", folder / "m", *options)
    found = [line["token_ids"] for line in result.json_lines if "token_ids" in line]
    assert found == [wanted(folder, "0.png"), wanted(folder, "1.png")]
    assert "are not opened" in result.err or "URL `data:image" in result.err


def test_a_chat_shows_its_images_with_the_first_message(gptrs_process, folder):
    options = ("--max-tokens", 5, "--image", folder / "0.png")
    result = gptrs_process("chat", folder / "m", *options, stdin=b"what is this ?\nand that ?\n")
    session = ChatSession(gptrs.load_model(folder / "m", backend="ref"), max_tokens=5)
    for text, images in (("what is this ?", [folder / "0.png"]), ("and that ?", [])):
        answer = session.ask(text, images)
        list(answer)
        session.remember(answer)
        assert answer.generation.text.strip() in result.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--image", "x.png", "what"), "`--image` belongs to a conversation"),
        (("--image", "x.png", "--prompts", "x.jsonl"), "`--image` and `--prompts` exclude"),
    ],
)
def test_an_image_without_a_message_is_refused(gptrs, folder, arguments, problem):
    result = gptrs("generate", "--model", folder / "m", *arguments)
    assert result.code == 2
    assert problem in result.err


def test_a_model_that_reads_none_says_so(gptrs, folder, tmp_path):
    from runtime.tiny_chat import save_tiny_chat

    save_tiny_chat(tmp_path / "m")
    arguments = ("--model", tmp_path / "m", "--chat", "--image", folder / "0.png", "what")
    result = gptrs("generate", *arguments)
    assert result.code != 0
    assert "reads no images" in result.err
