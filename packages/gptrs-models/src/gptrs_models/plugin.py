"""The plugins of this package, as the entry points name them."""

from gptrs.api import DemoModelPlugin, ModelPlugin
from gptrs_models import relatives

GPT2 = ModelPlugin(
    name="gpt2",
    summary="GPT-2 and models of its shape",
    factory="gptrs_models.gpt2:load",
    api="0.1",
    relatives=relatives.GPT2,
)
LLAMA = ModelPlugin(
    name="llama",
    summary="Llama 2 and 3 and models of their shape, such as SmolLM",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
    relatives=relatives.LLAMA,
)
MISTRAL = ModelPlugin(
    name="mistral",
    summary="Mistral, with a sliding window",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
MINISTRAL = ModelPlugin(
    name="ministral",
    summary="Ministral, with a sliding window in some layers",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
MINISTRAL3 = ModelPlugin(
    name="ministral3",
    summary="the text model of Ministral 3",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
QWEN2 = ModelPlugin(
    name="qwen2",
    summary="Qwen2 and Qwen2.5, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
QWEN3 = ModelPlugin(
    name="qwen3",
    summary="Qwen3, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GEMMA = ModelPlugin(
    name="gemma",
    summary="Gemma",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GEMMA2 = ModelPlugin(
    name="gemma2",
    summary="Gemma 2",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GEMMA3 = ModelPlugin(
    name="gemma3_text",
    summary="the text models of Gemma 3, and EmbeddingGemma",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
PHI = ModelPlugin(
    name="phi",
    summary="Phi 1 to 2",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
PHI3 = ModelPlugin(
    name="phi3",
    summary="Phi 3 and 4, with LongRoPE",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
SMOLLM3 = ModelPlugin(
    name="smollm3",
    summary="SmolLM3",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
OLMO = ModelPlugin(
    name="olmo",
    summary="OLMo",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
OLMO2 = ModelPlugin(
    name="olmo2",
    summary="OLMo 2",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
OLMO3 = ModelPlugin(
    name="olmo3",
    summary="OLMo 3",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GRANITE = ModelPlugin(
    name="granite",
    summary="Granite, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
STARCODER2 = ModelPlugin(
    name="starcoder2",
    summary="StarCoder2",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
STABLELM = ModelPlugin(
    name="stablelm",
    summary="StableLM",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
COHERE = ModelPlugin(
    name="cohere",
    summary="Command R",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
COHERE2 = ModelPlugin(
    name="cohere2",
    summary="Command R7B and Command A",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
EXAONE4 = ModelPlugin(
    name="exaone4",
    summary="EXAONE 4",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GLM = ModelPlugin(
    name="glm",
    summary="GLM-4, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GLM4 = ModelPlugin(
    name="glm4",
    summary="GLM-4-0414",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
SEED_OSS = ModelPlugin(
    name="seed_oss",
    summary="Seed-OSS",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
ARCEE = ModelPlugin(
    name="arcee",
    summary="AFM",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
HELIUM = ModelPlugin(
    name="helium",
    summary="Helium",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
ERNIE4_5 = ModelPlugin(
    name="ernie4_5",
    summary="ERNIE 4.5, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
NEMOTRON = ModelPlugin(
    name="nemotron",
    summary="Nemotron 3 and 4, Minitron",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
HUNYUAN = ModelPlugin(
    name="hunyuan_v1_dense",
    summary="Hunyuan, dense",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
INTERNLM3 = ModelPlugin(
    name="internlm3",
    summary="InternLM3",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GPT_NEOX = ModelPlugin(
    name="gpt_neox",
    summary="GPT-NeoX and Pythia",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GPTJ = ModelPlugin(
    name="gptj",
    summary="GPT-J",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
FALCON = ModelPlugin(
    name="falcon",
    summary="Falcon without ALiBi",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
OPT = ModelPlugin(
    name="opt",
    summary="OPT",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GPT_BIGCODE = ModelPlugin(
    name="gpt_bigcode",
    summary="StarCoder and SantaCoder",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GPT_NEO = ModelPlugin(
    name="gpt_neo",
    summary="GPT-Neo",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
BLOOM = ModelPlugin(
    name="bloom",
    summary="BLOOM, with linear biases",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
MPT = ModelPlugin(
    name="mpt",
    summary="MPT, with linear biases",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
PERSIMMON = ModelPlugin(
    name="persimmon",
    summary="Persimmon",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
MIXTRAL = ModelPlugin(
    name="mixtral",
    summary="Mixtral, a mixture of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
QWEN2_MOE = ModelPlugin(
    name="qwen2_moe",
    summary="Qwen1.5 and Qwen2, mixtures of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
QWEN3_MOE = ModelPlugin(
    name="qwen3_moe",
    summary="Qwen3, mixtures of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
QWEN3_NEXT = ModelPlugin(
    name="qwen3_next",
    summary="Qwen3-Next: delta nets, gated attention, mixtures of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
GPT_OSS = ModelPlugin(
    name="gpt_oss",
    summary="gpt-oss, mixtures of experts in MXFP4 or wider",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
DEEPSEEK_V2 = ModelPlugin(
    name="deepseek_v2",
    summary="DeepSeek-V2: latent attention, mixtures of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
DEEPSEEK_V3 = ModelPlugin(
    name="deepseek_v3",
    summary="DeepSeek-V3 and R1: latent attention, mixtures of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
LFM2 = ModelPlugin(
    name="lfm2",
    summary="LFM2: short convolutions, and attention in some layers",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
MAMBA = ModelPlugin(
    name="mamba",
    summary="Mamba: state spaces in all layers, no attention",
    factory="gptrs_models.mamba:load",
    api="0.1",
)
MAMBA2 = ModelPlugin(
    name="mamba2",
    summary="Mamba 2: state spaces of heads in all layers, no attention",
    factory="gptrs_models.mamba2:load",
    api="0.1",
)
OLMOE = ModelPlugin(
    name="olmoe",
    summary="OLMoE, a mixture of experts",
    factory="gptrs_models.llama_tasks:load",
    api="0.1",
)
RESNET = ModelPlugin(
    name="resnet",
    summary="ResNet image classifiers, as transformers and torchvision save them",
    factory="gptrs_models.resnet:load",
    api="0.1",
    relatives=relatives.RESNET,
)
MOBILENET_V2 = ModelPlugin(
    name="mobilenet_v2",
    summary="MobileNetV2 image classifiers, as transformers and torchvision save them",
    factory="gptrs_models.mobilenet_v2:load",
    api="0.1",
    relatives=relatives.MOBILENET_V2,
)
CONVNEXT = ModelPlugin(
    name="convnext",
    summary="ConvNeXt image classifiers",
    factory="gptrs_models.convnext:load",
    api="0.1",
)
CONVNEXTV2 = ModelPlugin(
    name="convnextv2",
    summary="ConvNeXt V2 image classifiers",
    factory="gptrs_models.convnext:load",
    api="0.1",
)
VIT = ModelPlugin(
    name="vit",
    summary="ViT, image classifiers and embedders",
    factory="gptrs_models.vit:load",
    api="0.1",
    relatives=relatives.VIT,
)
DEIT = ModelPlugin(
    name="deit",
    summary="DeiT image classifiers, with a teacher too",
    factory="gptrs_models.vit:load",
    api="0.1",
)
DINOV2 = ModelPlugin(
    name="dinov2",
    summary="DINOv2, image classifiers and embedders",
    factory="gptrs_models.vit:load",
    api="0.1",
)
CLIP = ModelPlugin(
    name="clip",
    summary="CLIP, images and texts in one space",
    factory="gptrs_models.clip:load",
    api="0.1",
)
CLIP_VISION = ModelPlugin(
    name="clip_vision_model",
    summary="the half of CLIP for images",
    factory="gptrs_models.clip:load",
    api="0.1",
)
SIGLIP = ModelPlugin(
    name="siglip",
    summary="SigLIP, images and texts in one space",
    factory="gptrs_models.clip:load",
    api="0.1",
)
SIGLIP_VISION = ModelPlugin(
    name="siglip_vision_model",
    summary="the half of SigLIP for images",
    factory="gptrs_models.clip:load",
    api="0.1",
)
BERT = ModelPlugin(
    name="bert",
    summary="BERT encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
    relatives=relatives.BERT,
)
ROBERTA = ModelPlugin(
    name="roberta",
    summary="RoBERTa encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
XLM_ROBERTA = ModelPlugin(
    name="xlm-roberta",
    summary="XLM-RoBERTa encoders, such as E5 and BGE-M3, with every head",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
CAMEMBERT = ModelPlugin(
    name="camembert",
    summary="CamemBERT encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
DISTILBERT = ModelPlugin(
    name="distilbert",
    summary="DistilBERT encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
MPNET = ModelPlugin(
    name="mpnet",
    summary="MPNet encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
ELECTRA = ModelPlugin(
    name="electra",
    summary="ELECTRA encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
ALBERT = ModelPlugin(
    name="albert",
    summary="ALBERT encoders: vectors, classes, tags, masked words",
    factory="gptrs_models.bert_tasks:load",
    api="0.1",
)
MODERNBERT = ModelPlugin(
    name="modernbert",
    summary="ModernBERT encoders, of long texts, with every head",
    factory="gptrs_models.rotary_encoder:load",
    api="0.1",
)
NOMIC_BERT = ModelPlugin(
    name="nomic_bert",
    summary="NomicBERT encoders, such as nomic-embed-text, with every head",
    factory="gptrs_models.rotary_encoder:load",
    api="0.1",
)
GTE = ModelPlugin(
    name="gte",
    summary="GTE encoders, such as gte-multilingual, with every head",
    factory="gptrs_models.rotary_encoder:load",
    api="0.1",
)
NEW = ModelPlugin(
    name="new",
    summary="GTE encoders in their older files",
    factory="gptrs_models.rotary_encoder:load",
    api="0.1",
)
EUROBERT = ModelPlugin(
    name="eurobert",
    summary="EuroBERT encoders, with every head",
    factory="gptrs_models.rotary_encoder:load",
    api="0.1",
)
DEBERTA_V2 = ModelPlugin(
    name="deberta-v2",
    summary="DeBERTa v2 and v3 encoders, often classifiers, with every head",
    factory="gptrs_models.deberta:load",
    api="0.1",
)
REGNET = ModelPlugin(
    name="regnet",
    summary="RegNet image classifiers",
    factory="gptrs_models.regnet:load",
    api="0.1",
)
MOBILENET_V1 = ModelPlugin(
    name="mobilenet_v1",
    summary="MobileNetV1 image classifiers",
    factory="gptrs_models.mobilenet_v1:load",
    api="0.1",
)
EFFICIENTNET = ModelPlugin(
    name="efficientnet",
    summary="EfficientNet image classifiers",
    factory="gptrs_models.efficientnet:load",
    api="0.1",
)
DEMO = DemoModelPlugin(
    name="demo",
    summary="a small GPT-2 trained on Python source, for trying things out",
    path="gptrs_models:demo",
    api="0.1",
)
