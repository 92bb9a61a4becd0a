"""What `gptrs` brings along: text from the bundled model, a chat template, a decoded image."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

import gptrs
from gptrs_runtime.images.decoding import read_image

assert jinja2.__version__
greedy = gptrs.Sampling(temperature=0)
model = gptrs.load_model()
result = gptrs.generate(model, "import os\n", max_tokens=8, sampling=greedy)
assert len(result.token_ids) == 8, result
with gptrs.use_backend(gptrs.get_backend("ref")):
    assert gptrs.tensor([1.0, 2.0]).numpy().sum() == 3
Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save("picture.png")
assert read_image(Path("picture.png")).shape == (4, 6, 3)
assert importlib.metadata.version("gptrs") == gptrs.__version__
