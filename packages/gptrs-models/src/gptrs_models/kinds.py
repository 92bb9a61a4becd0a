"""The table of the kinds of models in this package; everything else is derived from it.

Plugins, the table in README.md and docs/kinds.md are generated from it. Importing it imports no
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gptrs.api import DemoModelPlugin, ModelPlugin

_GGUF = f"{__package__}.gguf_architectures:"
_TIMM = f"{__package__}.timm_families:"
_TOKENIZERS = {
    kind: f"{name}Tokenizer"
    for name, kinds in (
        ("Albert", "albert"),
        ("Bert", "bert distilbert electra ernie nomic_bert"),
        ("Camembert", "camembert"),
        ("CLIP", "clip"),
        ("Deberta", "deberta"),
        ("DebertaV2", "deberta-v2"),
        ("Gemma", "gemma gemma2 gemma3 gemma3_text"),
        ("GPT2", "codegen gpt2 gpt_neo gptj jais2 opt phi starcoder2"),
        ("GPTNeoX", "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe"),
        ("MPNet", "mpnet"),
        ("Qwen2", "internvl qwen2 qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl"),
        ("Qwen2", "qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe"),
        ("Roberta", "bart data2vec-text roberta roberta-prelayernorm"),
        ("T5", "mt5 t5"),
        ("XLMRoberta", "gte jina_embeddings_v3 xlm-roberta"),
    )
    for kind in kinds.split()
}
"""The classes of tokenizers that transformers takes where no file names one."""
_MLX_EXPERTS = dict(gate_proj="w1", up_proj="w3", down_proj="w2")


class Family(NamedTuple):
    """The kinds that `load` of one module builds: `kinds` maps `model_type` to a description.

    `heading` is their section in the docs, `does` lists capabilities. `relatives` maps a kind to
    the nearest `model_type`s that gptrs lacks; `summary` is a template for descriptions. `gguf` has
    the architectures in GGUF files, the written one first, `timm` has wildcards of names in timm;
    their definitions are constants of `gguf_architectures` and `timm_families` named like the
    kind in capitals. `mlx` has the kinds whose numbered expert matrices MLX names; `turned` holds
    for all kinds of the family.
    """

    heading: str
    module: str
    does: str
    kinds: Mapping[str, str]
    relatives: Mapping[str, tuple[str, ...]] = {}
    summary: str = "{}"
    gguf: Mapping[str, str | tuple[str, ...]] = {}
    timm: Mapping[str, tuple[str, ...]] = {}
    mlx: tuple[str, ...] = ()
    turned: bool = False

    def plugins(self) -> Iterator[ModelPlugin]:
        """Yield the description of each kind."""
        factory = f"{__package__}.{self.module}:load"
        for name, what in self.kinds.items():
            architectures = self.gguf.get(name, ())
            if isinstance(architectures, str):
                architectures = (architectures,)
            gguf = dict.fromkeys(architectures, _GGUF + name.upper())
            timm = dict.fromkeys(self.timm.get(name, ()), _TIMM + name.upper())
            yield ModelPlugin(
                name=name, summary=self.summary.format(what), factory=factory, api="0.1",
                relatives=self.relatives.get(name, ()), gguf=gguf, timm=timm,
                mlx=_MLX_EXPERTS if name in self.mlx else {}, turned=self.turned,
                tokenizer=_TOKENIZERS.get(name),
            )  # fmt: skip


_NEAR_BERT = (
    *("bert-generation", "big_bird", "canine", "convbert"),
    *("flaubert", "fnet", "funnel", "ibert"),
    *("layoutlm", "layoutlmv3", "longformer", "luke", "megatron-bert", "mobilebert"),
    *("nystromformer", "rembert", "roformer"),
    *("splinter", "squeezebert", "xlm", "xlm-roberta-xl", "xlnet", "xmod", "yoso"),
)
"""Encoders of text."""
_NEAR_LLAMA = (
    *("afmoe", "aria_text", "baichuan", "bitnet", "chatglm", "dbrx", "deepseek"),
    *("diffllama", "doge"),
    *("gemma3n", "gemma3n_text", "internlm2"),
    *("jais", "jetmoe", "llama4", "llama4_text", "minicpm", "minicpm3", "minimax"),
    *("nemotron_h", "qwen"),
    *("xverse", "yi", "zamba2"),
)
"""Language models with rotary positions and gated layers, or the text part of others."""
_NEAR_GPT2 = ("ctrl", "imagegpt", "openai-gpt")
"""Language models with learned positions."""
_NEAR_RESNET = ("van",)
_NEAR_MOBILENET_V2 = ("mobilevit", "mobilevitv2")
_NEAR_VIT = ("hiera", "ijepa", "swinv2", "vit_mae", "vit_msn")
"""Vision transformers."""
_NEAR_WAV2VEC2 = (
    *("data2vec-audio", "sew", "sew-d", "wav2vec2-bert", "wav2vec2-conformer", "wavlm"),
)
"""Encoders of raw sound, or of its features, with a head of CTC."""
TEXTS, WORDS, MIXTURES, IMAGES, SOURCES, PARTS = (
    "Text encoders",
    "Language models",
    "Mixtures of experts",
    "Images",
    "Text to text, speech, and images within texts",
    "Language models of multimodal models",
)
"""The headings."""

KINDS: tuple[Family, ...] = (
    Family(
        TEXTS, "bert_kinds",
        "`text_embedder`; by the head `text_classifier`, `token_classifier`, `masked_lm`",
        {
            "bert": "BERT encoders: vectors, classes, tags, masked words",
            "roberta": "RoBERTa encoders: vectors, classes, tags, masked words",
            "xlm-roberta": "XLM-RoBERTa encoders, such as E5 and BGE-M3, with every head",
            "distilbert": "DistilBERT encoders: vectors, classes, tags, masked words",
            "mpnet": "MPNet encoders: vectors, classes, tags, masked words",
            "electra": "ELECTRA encoders: vectors, classes, tags, masked words",
            "albert": "ALBERT encoders: vectors, classes, tags, masked words",
            "ernie": "ERNIE encoders: vectors, classes, tags, masked words",
            "roberta-prelayernorm": "RoBERTa encoders with norms first, with every head",
            "camembert": "CamemBERT encoders: vectors, classes, tags, masked words",
            "data2vec-text": "data2vec text encoders, with every head",
        },
        {"bert": _NEAR_BERT},
        gguf={"bert": "bert"},
    ),
    Family(
        TEXTS, "rotary_encoder", "as `bert_kinds`",
        {
            "modernbert": "ModernBERT encoders for long texts, with every head",
            "nomic_bert": "NomicBERT encoders, such as nomic-embed-text, with every head",
            "gte": "GTE encoders, such as gte-multilingual, with every head",
            "eurobert": "EuroBERT encoders, with every head",
            "jina_embeddings_v3": "Jina Embeddings 3, without its adapters",
            "esm": "ESM-2 protein encoders, with every head",
            "new": "GTE encoders in the older file format",
        },
        gguf={"nomic_bert": "nomic-bert"},
    ),
    Family(
        TEXTS, "deberta", "as `bert_kinds`",
        {
            "deberta": "DeBERTa v1 encoders, often classifiers, with every head",
            "deberta-v2": "DeBERTa v2 and v3 encoders, often classifiers, with every head",
        },
    ),
    Family(
        WORDS, "gpt2", "`causal_lm`; by the head `text_classifier`, `token_classifier`",
        {
            "gpt2": "GPT-2 and models of its shape",
        },
        {"gpt2": _NEAR_GPT2},
        gguf={"gpt2": "gpt2"},
        turned=True,
    ),
    Family(
        WORDS, "llama_tasks", "`causal_lm`; by the head `text_classifier`, `token_classifier`",
        {
            "llama": "Llama 2 and 3 and models of their shape, such as SmolLM",
            "mistral": "Mistral, with a sliding window",
            "qwen2": "Qwen2 and Qwen2.5, dense",
            "qwen3": "Qwen3, dense",
            "gemma": "Gemma",
            "gemma2": "Gemma 2",
            "gemma3_text": "the text models of Gemma 3, and EmbeddingGemma",
            "phi": "Phi 1 to 2",
            "phi3": "Phi 3 and 4, with LongRoPE",
            "smollm3": "SmolLM3",
            "olmo2": "OLMo 2",
            "olmo3": "OLMo 3",
            "granite": "Granite, dense",
            "starcoder2": "StarCoder2",
            "stablelm": "StableLM",
            "cohere": "Command R",
            "cohere2": "Command R7B and Command A",
            "exaone4": "EXAONE 4",
            "exaone": "EXAONE 3 and 3.5",
            "glm4": "GLM-4-0414",
            "seed_oss": "Seed-OSS",
            "internlm3": "InternLM3",
            "arcee": "AFM",
            "helium": "Helium",
            "ernie4_5": "ERNIE 4.5, dense",
            "hunyuan_v1_dense": "Hunyuan, dense",
            "gpt_neox": "GPT-NeoX and Pythia",
            "gpt_neo": "GPT-Neo",
            "opt": "OPT",
            "bloom": "BLOOM, with linear biases",
            "falcon": "Falcon, with rotary embeddings or linear biases",
            "gptj": "GPT-J",
            "codegen": "CodeGen",
            "xglm": "XGLM",
            "biogpt": "BioGPT",
            "lfm2": "LFM2: short convolutions, and attention in some layers",
            "qwen3_next": "Qwen3-Next: delta nets, gated attention, mixtures of experts",
            "deepseek_v3": "DeepSeek-V3 and R1: latent attention, mixtures of experts",
            "apertus": "Apertus",
            "hyperclovax": "HyperCLOVA X",
            "ministral": "Ministral, with a sliding window in some layers",
            "ministral3": "the text model of Ministral 3",
            "olmo": "OLMo",
            "glm": "GLM-4, dense",
            "nemotron": "Nemotron 3 and 4, Minitron",
            "gpt_bigcode": "StarCoder and SantaCoder",
            "mpt": "MPT, with linear biases",
            "persimmon": "Persimmon",
            "RefinedWeb": "Falcon 40B in the older file format",
            "RefinedWebModel": "Falcon 7B and Falcon RW in the older file format",
            "qwen3_5_text": "the language model of Qwen3.5",
            "cwm": "Code World Model",
            "iquestcoder": "IQuest-Coder",
            "jais2": "Jais 2",
            "vaultgemma": "VaultGemma",
            "youtu": "Youtu-LLM, with latent attention",
        },
        {"llama": _NEAR_LLAMA},
        gguf={
            **{name: name for name in (
                *("llama", "jais2", "gemma", "gemma2", "phi3", "smollm3", "olmo2"),
                *("granite", "starcoder2", "stablelm", "cohere2", "glm4", "arcee", "ernie4_5"),
                *("bloom", "falcon", "olmo", "nemotron", "exaone4", "seed_oss"),
            )},
            "qwen2": ("qwen2", "qwen2vl"), "qwen3": ("qwen3", "qwen3vl"), "olmo3": "olmo2",
            "lfm2": "lfm2", "deepseek_v3": "deepseek2", "youtu": "deepseek2",
            "hunyuan_v1_dense": "hunyuan-dense", "qwen3_5_text": "qwen35",
            "ministral3": "mistral3", "exaone": "exaone",
            "qwen3_next": "qwen3next",
            "mistral": "llama", "gemma3_text": ("gemma3", "gemma-embedding"), "phi": "phi2",
            "cohere": "command-r", "gpt_neox": "gptneox", "gpt_bigcode": "starcoder",
        },
    ),
    Family(
        WORDS, "gemma4", "`causal_lm`",
        {
            "gemma4_text": "the text models of Gemma 4, dense and with experts",
        },
        gguf={"gemma4_text": "gemma4"},
    ),
    Family(
        WORDS, "mamba", "`causal_lm`",
        {
            "mamba": "Mamba: state spaces in all layers, no attention",
            "falcon_mamba": "Falcon Mamba: Mamba with norms of its coefficients",
        },
        gguf={"mamba": "mamba", "falcon_mamba": "mamba"},
    ),
    Family(
        WORDS, "mamba2", "`causal_lm`",
        {
            "mamba2": "Mamba 2: state spaces of heads in all layers, no attention",
        },
        gguf={"mamba2": "mamba2"},
    ),
    Family(
        MIXTURES, "llama_tasks", "`causal_lm`; by the head `text_classifier`, `token_classifier`",
        {
            "mixtral": "Mixtral, a mixture of experts",
            "qwen2_moe": "Qwen1.5 and Qwen2, mixtures of experts",
            "qwen3_moe": "Qwen3, mixtures of experts",
            "olmoe": "OLMoE, a mixture of experts",
            "flex_olmo": "FlexOlmo, a mixture of experts",
            "exaone_moe": "K-EXAONE, with experts",
            "mellum": "Mellum 2, with experts",
            "gpt_oss": "gpt-oss, mixtures of experts in MXFP4 or wider",
            "glm4_moe": "GLM-4.5 and its successors, with experts",
            "glm4_moe_lite": "GLM-4.7 Flash, with experts and latent attention",
            "dots1": "dots.llm1, with experts",
            "ernie4_5_moe": "ERNIE 4.5 with experts",
            "hunyuan_v1_moe": "Hunyuan with experts",
            "granitemoe": "Granite 3 with experts",
            "granitemoeshared": "Granite with experts and a shared MLP",
            "granitemoehybrid": "Granite 4, with or without Mamba 2 layers",
            "phimoe": "Phi 3.5 with experts",
            "lfm2_moe": "LFM2 with experts",
            "minimax_m2": "MiniMax-M2, with experts",
            "deepseek_v2": "DeepSeek-V2: latent attention, mixtures of experts",
            "qwen3_5_moe_text": "the language model of Qwen3.5 with experts",
            "solar_open": "Solar Open, with experts",
        },
        gguf={
            "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": ("qwen3moe", "qwen3vlmoe"),
            "gpt_oss": "gpt-oss", "olmoe": "olmoe", "glm4_moe": "glm4moe", "dots1": "dots1",
            "ernie4_5_moe": "ernie4_5-moe", "granitemoe": "granitemoe",
            "granitemoeshared": "granitemoe", "granitemoehybrid": "granitehybrid",
            "minimax_m2": "minimax-m2",
            "hunyuan_v1_moe": "hunyuan-moe", "lfm2_moe": "lfm2moe",
            "deepseek_v2": "deepseek2", "qwen3_5_moe_text": "qwen35moe",
        },
        mlx=("mixtral", "phimoe", "minimax_m2"),
    ),
    Family(
        IMAGES, "resnet", "`image_classifier`",
        {
            "resnet": "ResNet image classifiers, as transformers and torchvision save them",
        },
        {"resnet": _NEAR_RESNET},
        timm={"resnet": ("resnet*",)},
    ),
    Family(
        IMAGES, "mobilenet_v1", "`image_classifier`",
        {
            "mobilenet_v1": "MobileNetV1 image classifiers",
        },
    ),
    Family(
        IMAGES, "mobilenet_v2", "`image_classifier`",
        {
            "mobilenet_v2": "MobileNetV2 classifiers, as transformers and torchvision save them",
        },
        {"mobilenet_v2": _NEAR_MOBILENET_V2},
    ),
    Family(
        IMAGES, "mobilenet_v3", "`image_classifier`",
        {
            "mobilenet_v3": "MobileNetV3 classifiers, as torchvision and timm save them",
        },
        timm={"mobilenet_v3": ("mobilenetv3_*", "tf_mobilenetv3_*")},
    ),
    Family(
        IMAGES, "convnext", "`image_classifier`",
        {
            "convnext": "ConvNeXt image classifiers",
            "convnextv2": "ConvNeXt V2 image classifiers",
        },
        timm={"convnext": ("convnext_*",), "convnextv2": ("convnextv2_*",)},
    ),
    Family(
        IMAGES, "efficientnet", "`image_classifier`",
        {
            "efficientnet": "EfficientNet image classifiers",
        },
        timm={"efficientnet": ("efficientnet*", "tf_efficientnet*")},
    ),
    Family(
        IMAGES, "regnet", "`image_classifier`",
        {
            "regnet": "RegNet image classifiers",
        },
        timm={"regnet": ("regnetx_*", "regnety_*")},
    ),
    Family(
        IMAGES, "bit", "`image_classifier`",
        {
            "bit": "BiT image classifiers, ResNets of Big Transfer",
        },
    ),
    Family(
        IMAGES, "swin", "`image_classifier`, `image_embedder`",
        {
            "swin": "Swin transformers: classes and vectors of images",
        },
        timm={"swin": ("swin_*_patch*_window*",)},
    ),
    Family(
        IMAGES, "vit", "`image_embedder`, and with a head `image_classifier`",
        {
            "vit": "ViT, image classifiers and embedders",
            "deit": "DeiT image classifiers, also distilled ones",
            "dinov2": "DINOv2, image classifiers and embedders",
            "dinov2_with_registers": "DINOv2 with registers, image classifiers and embedders",
        },
        {"vit": _NEAR_VIT},
        timm={"vit": ("vit_*_patch*", "deit_*_patch*"), "deit": ("deit_*_distilled_patch*",)},
    ),
    Family(
        IMAGES, "dinov3", "`image_embedder`",
        {
            "dinov3_vit": "DINOv3 image encoders",
        },
    ),
    Family(
        IMAGES, "beit", "`image_embedder`, and with a head `image_classifier`",
        {
            "beit": "BEiT image classifiers and embedders",
            "data2vec-vision": "data2vec image classifiers and embedders",
        },
    ),
    Family(
        IMAGES, "clip", "`image_embedder`, and with texts `image_text`",
        {
            "clip": "CLIP, images and texts in one space",
            "siglip": "SigLIP, images and texts in one space",
            "clip_vision_model": "the image encoder of CLIP",
            "siglip_vision_model": "the image encoder of SigLIP",
            "siglip2": "SigLIP 2 for images of any aspect, and texts",
            "siglip2_vision_model": "the image encoder of SigLIP 2",
        },
    ),
    Family(
        SOURCES, "t5", "`seq2seq`; the encoder alone `text_embedder`",
        {
            "t5": "T5 and Flan-T5, text to text",
            "mt5": "mT5, text to text in many languages",
            "umt5": "UMT5, text to text in many languages",
        },
    ),
    Family(
        SOURCES, "bart", "`seq2seq`; by the head `text_classifier`",
        {
            "bart": "BART, for summaries and text classification",
            "marian": "Marian and OPUS-MT, for translation",
            "plbart": "PLBART, for programs",
            "mbart": "mBART, for translation",
            "pegasus": "Pegasus, for summaries",
            "m2m_100": "M2M100 and NLLB, for translation",
            "blenderbot": "Blenderbot, for conversation",
        },
    ),
    Family(
        SOURCES, "whisper", "`transcriber`",
        {
            "whisper": "Whisper, speech to text",
        },
    ),
    Family(
        SOURCES, "moonshine", "`sound_transcriber`",
        {
            "moonshine": "Moonshine, speech to text",
        },
    ),
    Family(
        SOURCES, "wav2vec2", "`ctc`",
        {
            "wav2vec2": "wav2vec 2.0 with CTC, speech to text",
            "hubert": "HuBERT with CTC, speech to text",
            "unispeech": "UniSpeech with CTC, speech to text",
            "unispeech-sat": "UniSpeech-SAT with CTC, speech to text",
        },
        {"wav2vec2": _NEAR_WAV2VEC2},
    ),
    Family(
        SOURCES, "idefics3", "`causal_lm` and `image_lm`: texts about images",
        {
            "idefics3": "Idefics3, language models that read images",
            "smolvlm": "SmolVLM, small language models that read images",
        },
    ),
    Family(
        PARTS, "text_parts", "as `llama_tasks`",
        {
            "gemma3": "Gemma 3",
            "mistral3": "Mistral Small 3 and Ministral 3",
            "qwen2_vl": "Qwen2-VL",
            "qwen2_5_vl": "Qwen2.5-VL",
            "qwen3_vl": "Qwen3-VL",
            "llava": "LLaVA",
            "llava_next": "LLaVA-NeXT",
            "llava_onevision": "LLaVA-OneVision",
            "internvl": "InternVL 3",
            "idefics2": "Idefics2",
            "lfm2_vl": "LFM2-VL",
            "aya_vision": "Aya Vision",
            "cohere2_vision": "Command A Vision",
            "deepseek_vl": "DeepSeek-VL",
            "qwen2_audio": "Qwen2-Audio",
            "voxtral": "Voxtral",
            "qwen3_5": "Qwen3.5",
            "qwen3_5_moe": "Qwen3.5 with experts",
            "qwen3_vl_moe": "Qwen3-VL with experts",
        },
        summary="the language model of {}, without images and sounds",
    ),
    Family(
        PARTS, "gemma4", "as `gemma4`",
        {
            "gemma4": "Gemma 4",
        },
        summary="the language model of {}, without images and sounds",
    ),
)  # fmt: skip
"""The kinds, most used first; a `model_type` is in one family only."""

DEMO = DemoModelPlugin(
    name="demo",
    summary="a small GPT-2 trained on Python source, for trying things out",
    path="gptrs_models:demo",
    api="0.1",
)
"""A model that is ready to run."""


def plugins() -> list[ModelPlugin]:
    """Return the descriptions of all kinds."""
    return [plugin for family in KINDS for plugin in family.plugins()]
