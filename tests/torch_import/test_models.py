"""Architectures with random weights through torch.compile, torch.export and ONNX, as torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="these tests run models of torch")
pytest.importorskip("transformers", reason="these tests run its models")
pytest.importorskip("onnx", reason="these tests read ONNX models")

import import_models  # noqa: E402
from model_zoo import MODELS  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.whole]
SAMPLE: dict[str, tuple[str, ...]] = {
    "torch.compile": (
        *("GPT2", "Roberta", "Qwen2", "ModernBert", "DeiT", "Whisper encoder", "Wav2Vec2", "GRU"),
        "MobileNetV3 block",
    ),
    "torch.export": (
        *("Bert", "DistilBert", "MPNet", "Llama", "Mistral", "Gemma2", "Qwen3", "OPT", "Bart"),
        *("T5 encoder", "ViT", "Dinov2", "Swin", "ConvNext", "RegNet", "EfficientNet", "SegFormer"),
        *(
            "Falcon",
            "Falcon with ALiBi",
            "DETR",
            "SigLIP",
            "HuBERT",
            "DenseNet-like",
            "dilated convolutions",
        ),
    ),
    "ONNX": (
        *("Electra", "Gemma", "Phi", "Beit", "ResNet", "U-Net", "CLIP", "LSTM"),
        "Transformer of torch",
    ),
}
"""The way in of some models: `tools/import_models.py` tries all by all, which takes minutes."""
CASES = [(name, route) for route, names in SAMPLE.items() for name in names]


@pytest.fixture
def _fresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "route"), CASES)
@pytest.mark.usefixtures("_fresh")
def test_a_model_gives_what_torch_gives(name: str, route: str) -> None:
    if route == "ONNX":
        pytest.importorskip("onnxscript", reason="torch writes ONNX files with it")
    import_models.require_equal(name, route, "ref")
    if route == "torch.compile":
        assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["GPT2", "ResNet"])
@pytest.mark.usefixtures("_fresh")
def test_a_model_compiled_in_place_on_numba(name: str) -> None:
    import_models.require_equal(name, "torch.compile", "numba")


def test_the_page_lists_the_models() -> None:
    page = import_models.PAGE.read_text("utf-8")
    assert import_models.with_table(page) == page, "run `python tools/import_models.py --write`"
    assert len(MODELS) >= 50
    assert len({name for name, _ in CASES} & MODELS.keys()) == len(CASES) >= 30
    assert import_models.REFUSED.keys() <= {(n, r) for n in MODELS for r in import_models.ROUTES}
