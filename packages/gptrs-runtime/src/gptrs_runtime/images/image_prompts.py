"""Conversations with images: messages whose parts are texts and images become tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import mimetypes
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, SupportsIndex, cast, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.plugins.capabilities import CausalLM, ImageLM
from gptrs.quoting import clipped, quoted, shown_value
from gptrs_runtime.chat.messages import IMAGES, Message
from gptrs_runtime.images.decoding import MAX_BYTES, MAX_PIXELS, decoded_image, read_image
from gptrs_runtime.images.tiling import TilingProcessor
from gptrs_runtime.tokenization.tokenizer import TextTokenizer

# Images in texts: special tokens, by which a cache recognizes an image at a position.
#
# A language model reads a picture as a row of vectors. In the tokens of a text each of these
# vectors has a number beyond any vocabulary. A token belongs to one picture, for the life of the
# process: texts find shared keys and values by their tokens, but never those of another picture.


FIRST_PICTURE: Final = 1 << 40
"""The smallest image token; vocabulary tokens are smaller."""
_MOST_VECTORS: Final = 1 << 16
"""Token numbers reserved per picture."""
_KEPT: Final = 64
"""How many pictures keep their tokens after their text ended, since the next turn may repeat
them."""


class Picture:
    """The pixels of a picture, ui8 [H, W, C], and the function `values` that turns them into model
    input.

    `first` is the token of its first vector.
    """

    __slots__ = ("__weakref__", "_levels", "_values", "_vectors", "first")

    def __init__(
        self, first: int, levels: np.ndarray, values: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self.first = first
        self._levels = levels
        self._values = values
        self._vectors: WeakKeyDictionary[object, np.ndarray] = WeakKeyDictionary()

    def vectors(self, lm: ImageLM) -> np.ndarray:
        """Return the vectors that a model reads for it, f32 [T, E]; computed once."""
        found = self._vectors.get(lm)
        if found is None:
            found = lm.image_vectors(self._values(self._levels)[np.newaxis])[0]
            self._vectors[lm] = found
        return found

    def is_seen(self, lm: ImageLM) -> bool:
        """Return whether the vectors for a model are computed."""
        return lm in self._vectors


_pictures: WeakValueDictionary[int, Picture] = WeakValueDictionary()
_known: WeakValueDictionary[bytes, Picture] = WeakValueDictionary()
_latest: deque[Picture] = deque(maxlen=_KEPT)
_numbers = itertools.count()
_lock = ForkSafeLock()


def picture_of(
    levels: np.ndarray, values: Callable[[np.ndarray], np.ndarray], identity: str
) -> Picture:
    """Return the picture of ui8 [H, W, C], the same object for the same bytes and `identity`.

    `identity` identifies the function `values`.
    """
    identified = f"{identity} {levels.shape}".encode()
    digest = hashlib.blake2b(
        identified + np.ascontiguousarray(levels).tobytes(), digest_size=32
    ).digest()
    with _lock:
        found = _known.get(digest)
        if found is None:
            number = next(_numbers)
            found = Picture(FIRST_PICTURE + number * _MOST_VECTORS, levels, values)
            _known[digest] = _pictures[number] = found
        _latest.append(found)
    return found


class PicturedTokens(Sequence[int]):
    """The tokens of a prompt with pictures, which it keeps alive; `shown` has the model's image
    tokens instead.

    It is immutable.
    """

    def __init__(self, tokens: Sequence[int], pictures: Sequence[Picture], count: int) -> None:
        """Substitute the `count` vectors of each picture for the tokens below 0, in order.

        UsageError unless their number matches.
        """
        positions = [position for position, token in enumerate(tokens) if token < 0]
        if len(positions) != len(pictures) * count or count > _MOST_VECTORS:
            raise UsageError(
                f"{len(pictures)} pictures of {count} vectors need {len(pictures) * count} tokens,"
                f" the prompt has {len(positions)}",
                hint="leave tokens that stand for images out of your texts",
            )
        self.pictures = tuple(pictures)
        self.shown = tuple(-1 - token if token < 0 else token for token in tokens)
        self._tokens = list(tokens)
        for index, position in enumerate(positions):
            self._tokens[position] = pictures[index // count].first + index % count

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | list[int]:
        return self._tokens[index]


def shown_tokens(tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens of a prompt, with the model's own for pictures."""
    return tokens.shown if isinstance(tokens, PicturedTokens) else tokens


def has_pictures(tokens: np.ndarray) -> bool:
    """Return whether any of the tokens of a step, si64 [N], belongs to a picture."""
    return bool(tokens.max() >= FIRST_PICTURE)


def seen(lm: ImageLM, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of a step without pictures, si64 [N], the vectors, and their rows.

    Vectors are f32 [N, E], and zeros where the third, i1 [N], is false.
    """
    given = tokens >= FIRST_PICTURE
    numbers, positions = np.divmod(tokens[given] - FIRST_PICTURE, _MOST_VECTORS)
    found = {int(number): _pictures[int(number)].vectors(lm) for number in np.unique(numbers)}
    rows = np.stack([found[int(n)][int(p)] for n, p in zip(numbers, positions, strict=True)])
    vectors = np.zeros((len(tokens), rows.shape[1]), np.float32)
    vectors[given] = rows
    return np.where(given, np.int64(lm.image_token), tokens), vectors, given


MAX_IMAGES: Final = 64
"""Most images of a conversation."""
_DATA_URL: Final = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64", re.IGNORECASE)


class TextsWithImages(CausalLM, ImageLM, Protocol):
    """A language model that reads images."""


def has_images(messages: Sequence[Message]) -> bool:
    """Return whether a part of any message is an image."""
    return any(part.get("type") in IMAGES for message in messages for part in _parts(message))


def require_no_images(messages: Sequence[Message], name: str) -> None:
    """Raise ModelError for messages with images, which the model `name` does not read."""
    if has_images(messages):
        raise ModelError(
            f"`{name}` reads no images, and a message has one",
            hint="take a model that does: `gptrs inspect` shows `image_lm` for it",
        )


def image_part(image: object) -> dict[str, object]:
    """Return the image part of a message: the current content of a file, or ui8 [H, W, 3].

    Raises the errors of `read_image` and `levels_of`.
    """
    if not isinstance(image, str | os.PathLike):
        return {"type": "image", "image": levels_of(image)}
    path = Path(os.fspath(cast("str | os.PathLike[str]", image)))
    read_image(path)  # refuse other values before they become part of a conversation
    media = mimetypes.guess_type(path.name)[0] or "image/unknown"
    data = base64.b64encode(read_whole(path.resolve(), MAX_BYTES)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}


def about_images(text: str, images: Sequence[object]) -> object:
    """Return the content of a message: the text, behind images where there are some.

    Raises the errors of `image_part`.
    """
    if not images:
        return text
    return [*map(image_part, images), {"type": "text", "text": text}]


def pictured_prompt(
    lm: TextsWithImages,
    processor: Callable[[], TilingProcessor],
    render: Callable[[Sequence[Message]], str],
    tokenizer: TextTokenizer,
    messages: Sequence[Message],
) -> PicturedTokens | list[int]:
    """Return the tokens of a conversation with its images, as `render` writes its text.

    UsageError for parts that are not images, and a text that has marks of images itself; ModelError
    for images that cannot be read.
    """
    images: list[object] = []
    text = render([_plain(message, images) for message in messages])
    if not images:
        return tokenizer.encode(text, special=False)
    if len(images) > MAX_IMAGES:
        raise UsageError(f"a conversation has {MAX_IMAGES} images at most, got {len(images)}")
    between = text.split(lm.image_mark)
    if len(between) != len(images) + 1:
        raise UsageError(
            f"the text of the conversation has {len(between) - 1} marks `{lm.image_mark}` for"
            f" {len(images)} images",
            hint="leave the mark out of your texts; the chat template writes it for each image",
        )
    make, pictures, pieces = processor(), list[Picture](), [between[0]]
    for number, (image, after) in enumerate(zip(images, between[1:], strict=True)):
        # Each becomes a picture or more; decoding may take a second.
        _require_room(lm, len(pictures) + len(images) - number)
        tiles = make(levels_of(image, on_white=make.levels.on_white))
        pictures += [picture_of(tile, make.levels, repr(make.levels)) for tile in tiles.pictures]
        pieces += [lm.image_prompt(tiles.rows, tiles.columns), after]
    _require_room(lm, len(pictures))
    tokens = tokenizer.encode("".join(pieces), special=False)
    marked = [-1 - token if token == lm.image_token else token for token in tokens]
    return PicturedTokens(marked, pictures, lm.picture_tokens)


def _require_room(lm: TextsWithImages, pictures: int) -> None:
    """ContextLengthError if so many pictures do not fit into the context."""
    needed = pictures * lm.picture_tokens
    if needed > lm.context_length:
        raise ContextLengthError(
            f"the images take {needed} tokens and more, the context has {lm.context_length}",
            hint="give fewer images",
        )


def levels_of(image: object, *, on_white: bool = False) -> np.ndarray:
    """Return an image as ui8 [H, W, 3]: a file, a `data:` URL, or an array that is one already.

    A text is never taken for a file name, because messages may be untrusted. UsageError for
    anything else; errors as of `read_image`.
    """
    if isinstance(image, os.PathLike):
        return read_image(cast("os.PathLike[str]", image), on_white=on_white)
    if isinstance(image, str):
        return _of_data_url(image, on_white)
    if not isinstance(image, np.ndarray):
        raise UsageError(
            "an image is a `Path` of a file, a `data:` URL, or an array ui8 [H, W, 3], got"
            f" {shown_value(image)}"
        )
    array = cast("np.ndarray", image)
    shape = array.shape
    if array.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or not array.size:
        raise UsageError(f"an image is ui8 [H, W, 3], got {array.dtype}{list(shape)}")
    if shape[0] * shape[1] > MAX_PIXELS:
        raise UsageError(f"an image has {MAX_PIXELS} pixels at most, got {list(shape)}")
    return array


def _of_data_url(url: str, on_white: bool) -> np.ndarray:
    """Return the image in a URL; nothing is opened. UsageError for another URL."""
    head, comma, text = url[: MAX_BYTES * 4 // 3 + 200].partition(",")
    if not comma or not _DATA_URL.fullmatch(head):
        raise UsageError(
            f"an image is a URL `data:image/...;base64,...`, got {clipped(quoted(url), 60)}",
            hint="other URLs and names of files are not opened: read the file first, or give a"
            " `pathlib.Path`",
        )
    try:
        # Some encoders, such as `base64.encodebytes`, break lines.
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"the base64 of an image is malformed: {error}") from error
    if len(data) > MAX_BYTES or len(text) < len(url) - len(head) - 1:
        raise UsageError(f"an image has {MAX_BYTES} bytes at most")
    return decoded_image(data, "an image of a message", on_white=on_white)


def _plain(message: Message, images: list[object]) -> Message:
    """Return a message of parts, its images moved to `images`: templates mark their positions."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]}
    if not isinstance(content, list):
        return message
    parts: list[Mapping[str, object]] = []
    for part in _parts(message):
        if part.get("type") in IMAGES:
            images.append(_image_in(part))
            parts.append({"type": "image"})
        else:
            parts.append(part)
    return {**message, "content": parts}


def _parts(message: Message) -> list[Mapping[str, object]]:
    """Return the parts of a message."""
    content = message.get("content")
    return cast("list[Mapping[str, object]]", content) if isinstance(content, list) else []


def _image_in(part: Mapping[str, object]) -> object:
    """Return the image of a part: `image` as transformers has it, or `image_url` as OpenAI does."""
    found = part[str(part["type"])]
    return cast("Mapping[str, object]", found)["url"] if isinstance(found, Mapping) else found
