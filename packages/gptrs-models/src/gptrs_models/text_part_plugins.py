"""The plugins of kinds whose language model alone is loaded."""

from gptrs.api import ModelPlugin


def _texts_of(name: str, model: str) -> ModelPlugin:
    return ModelPlugin(
        name=name,
        summary=f"the language model of {model}, without images and sounds",
        factory="gptrs_models.text_parts:load",
        api="0.1",
    )


AYA_VISION = _texts_of("aya_vision", "Aya Vision")
COHERE2_VISION = _texts_of("cohere2_vision", "Command A Vision")
DEEPSEEK_VL = _texts_of("deepseek_vl", "DeepSeek-VL")
GEMMA3 = _texts_of("gemma3", "Gemma 3")
IDEFICS2 = _texts_of("idefics2", "Idefics2")
INTERNVL = _texts_of("internvl", "InternVL 3")
LFM2_VL = _texts_of("lfm2_vl", "LFM2-VL")
LLAVA = _texts_of("llava", "LLaVA")
LLAVA_NEXT = _texts_of("llava_next", "LLaVA-NeXT")
LLAVA_ONEVISION = _texts_of("llava_onevision", "LLaVA-OneVision")
MISTRAL3 = _texts_of("mistral3", "Mistral Small 3 and Ministral 3")
QWEN2_VL = _texts_of("qwen2_vl", "Qwen2-VL")
QWEN2_5_VL = _texts_of("qwen2_5_vl", "Qwen2.5-VL")
QWEN2_AUDIO = _texts_of("qwen2_audio", "Qwen2-Audio")
QWEN3_5 = _texts_of("qwen3_5", "Qwen3.5")
QWEN3_5_MOE = _texts_of("qwen3_5_moe", "Qwen3.5 with experts")
QWEN3_VL = _texts_of("qwen3_vl", "Qwen3-VL")
QWEN3_VL_MOE = _texts_of("qwen3_vl_moe", "Qwen3-VL with experts")
VOXTRAL = _texts_of("voxtral", "Voxtral")
