"""The plugins of decoders that came after those in `plugin`."""

from gptrs.api import ModelPlugin


def _decoder(name: str, model: str) -> ModelPlugin:
    return ModelPlugin(name=name, summary=model, factory="gptrs_models.llama_tasks:load", api="0.1")


DOTS1 = _decoder("dots1", "dots.llm1, with experts")
ERNIE4_5_MOE = _decoder("ernie4_5_moe", "ERNIE 4.5 with experts")
GLM4_MOE = _decoder("glm4_moe", "GLM-4.5 and its successors, with experts")
GLM4_MOE_LITE = _decoder("glm4_moe_lite", "GLM-4.7 Flash, with experts and latent attention")
GRANITEMOE = _decoder("granitemoe", "Granite 3 with experts")
GRANITEMOESHARED = _decoder("granitemoeshared", "Granite with experts beside an MLP")
GRANITEMOEHYBRID = _decoder("granitemoehybrid", "Granite 4, with mixers of Mamba 2 or without")
HUNYUAN_V1_MOE = _decoder("hunyuan_v1_moe", "Hunyuan with experts")
LFM2_MOE = _decoder("lfm2_moe", "LFM2 with experts")
MINIMAX_M2 = _decoder("minimax_m2", "MiniMax-M2, with experts")
PHIMOE = _decoder("phimoe", "Phi 3.5 with experts")
REFINED_WEB = _decoder("RefinedWeb", "Falcon 40B in its older files")
REFINED_WEB_MODEL = _decoder("RefinedWebModel", "Falcon 7B and Falcon RW in their older files")
QWEN3_5 = _decoder("qwen3_5_text", "the language model of Qwen3.5")
QWEN3_5_MOE = _decoder("qwen3_5_moe_text", "the language model of Qwen3.5 with experts")
APERTUS = _decoder("apertus", "Apertus")
CWM = _decoder("cwm", "Code World Model")
HYPERCLOVAX = _decoder("hyperclovax", "HyperCLOVA X")
IQUESTCODER = _decoder("iquestcoder", "IQuest-Coder")
JAIS2 = _decoder("jais2", "Jais 2")
SOLAR_OPEN = _decoder("solar_open", "Solar Open, with experts")
VAULTGEMMA = _decoder("vaultgemma", "VaultGemma")
YOUTU = _decoder("youtu", "Youtu-LLM, with latent attention")
