"""Experts of quantized files: stacked as they are stored, their chosen codes read by one kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptrs
from fuzzing.tiny_models import save_tiny_model
from gptrs.nn import ExpertMatrices
from gptrs_backend_numba.backend import NumbaBackend
from gptrs_backend_numba.lowering.quantization import QUANTIZED_GROUPED
from runtime.generation.test_company import Company
from runtime.generation.tiny_lms import VOCABULARY

SETTINGS: dict[str, object] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96},
    **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"shared_expert_intermediate_size": 64, "max_position_embeddings": 512},
    "rms_norm_eps": 1e-6,
}
TOKENS = np.random.default_rng(2).integers(0, VOCABULARY, (2, 30))


def save(folder: Path, **settings: object) -> Path:
    random = np.random.default_rng(1)

    def weight(shape: tuple[int, ...]) -> np.ndarray:
        return (random.normal(size=shape) / 6).astype(np.float32) + (len(shape) == 1)

    return save_tiny_model(
        folder,
        "qwen2_moe",
        gptrs.get_backend("ref"),
        {**SETTINGS, **settings},
        weight,  # type: ignore[arg-type]
    )


def matrices(model: gptrs.LoadedModel) -> list[ExpertMatrices]:
    return [each for each in model.named_modules().values() if isinstance(each, ExpertMatrices)]


@pytest.mark.parametrize("type_", ["q4", pytest.param("q8", marks=pytest.mark.exhaustive)])
def test_experts_of_a_gguf_file_stay_quantized(
    tmp_path: Path, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[str] = []
    compile_ = NumbaBackend.compile_symbolic

    def spy(self: NumbaBackend, program, roles, guards):
        programs.append(str(program))
        return compile_(self, program, roles, guards)

    path = tmp_path / "x.gguf"
    gptrs.quantize(save(tmp_path / "m"), path, type_)
    exact = gptrs.load_model(path, "numba", precision="f32")
    assert [each.weight is None for each in matrices(exact)] == [False] * 6
    wanted = exact.forward(TOKENS)
    monkeypatch.setattr(NumbaBackend, "compile_symbolic", spy)
    for backend in ("ref", "numba"):
        model = gptrs.load_model(path, backend)
        for each in matrices(model):
            assert each.weight is None
            assert each.parts["codes"].shape[0] == 5
        found = model.forward(TOKENS)
        if backend == "ref":
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.999
    text = max(programs, key=len)
    assert text.count(QUANTIZED_GROUPED) in (3, 6)  # layers may be one function
    assert "scan" not in text


def test_experts_are_quantized_when_they_are_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path / "m")
    wanted = gptrs.load_model(folder, "ref").forward(TOKENS)
    model = gptrs.load_model(folder, "ref", weights="q8")
    assert {str(each.parts["codes"].type) for each in matrices(model)} == {
        "si8[5, 32, 64]",
        "si8[5, 64, 32]",
    }
    assert np.corrcoef(model.forward(TOKENS).ravel(), wanted.ravel())[0, 1] > 0.999


@pytest.mark.exhaustive
def test_rows_that_fill_no_panel_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    gptrs.quantize(save(tmp_path / "m", hidden_size=40, num_attention_heads=4), path, "q8")
    model = gptrs.load_model(path, "numba")
    assert {each.weight is None for each in matrices(model)} == {False}
    wanted = gptrs.load_model(path, "ref").forward(TOKENS)
    assert np.corrcoef(model.forward(TOKENS).ravel(), wanted.ravel())[0, 1] > 0.999


@pytest.mark.exhaustive
@pytest.mark.usefixtures("without_amx")
def test_a_text_among_others_is_the_text_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    gptrs.quantize(save(tmp_path / "m"), path, "q4")
    Company(path, "numba", "quantized experts").require_same()
