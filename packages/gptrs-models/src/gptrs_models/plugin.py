"""The kinds of models in this package, as its entry points name them."""

from gptrs.api import DemoModelPlugin
from gptrs_models import relatives
from gptrs_models.description import kind

# Language models.
GPT2 = kind("gpt2", "GPT-2 and models of its shape", "gpt2", relatives.GPT2)
LLAMA = kind(
    "llama",
    "Llama 2 and 3 and models of their shape, such as SmolLM",
    "llama_tasks",
    relatives.LLAMA,
)
MISTRAL = kind("mistral", "Mistral, with a sliding window", "llama_tasks")
MINISTRAL = kind("ministral", "Ministral, with a sliding window in some layers", "llama_tasks")
MINISTRAL3 = kind("ministral3", "the text model of Ministral 3", "llama_tasks")
QWEN2 = kind("qwen2", "Qwen2 and Qwen2.5, dense", "llama_tasks")
QWEN3 = kind("qwen3", "Qwen3, dense", "llama_tasks")
GEMMA = kind("gemma", "Gemma", "llama_tasks")
GEMMA2 = kind("gemma2", "Gemma 2", "llama_tasks")
GEMMA3 = kind("gemma3_text", "the text models of Gemma 3, and EmbeddingGemma", "llama_tasks")
PHI = kind("phi", "Phi 1 to 2", "llama_tasks")
PHI3 = kind("phi3", "Phi 3 and 4, with LongRoPE", "llama_tasks")
SMOLLM3 = kind("smollm3", "SmolLM3", "llama_tasks")
OLMO = kind("olmo", "OLMo", "llama_tasks")
OLMO2 = kind("olmo2", "OLMo 2", "llama_tasks")
OLMO3 = kind("olmo3", "OLMo 3", "llama_tasks")
GRANITE = kind("granite", "Granite, dense", "llama_tasks")
STARCODER2 = kind("starcoder2", "StarCoder2", "llama_tasks")
STABLELM = kind("stablelm", "StableLM", "llama_tasks")
COHERE = kind("cohere", "Command R", "llama_tasks")
COHERE2 = kind("cohere2", "Command R7B and Command A", "llama_tasks")
EXAONE4 = kind("exaone4", "EXAONE 4", "llama_tasks")
GLM = kind("glm", "GLM-4, dense", "llama_tasks")
GLM4 = kind("glm4", "GLM-4-0414", "llama_tasks")
SEED_OSS = kind("seed_oss", "Seed-OSS", "llama_tasks")
ARCEE = kind("arcee", "AFM", "llama_tasks")
HELIUM = kind("helium", "Helium", "llama_tasks")
ERNIE4_5 = kind("ernie4_5", "ERNIE 4.5, dense", "llama_tasks")
NEMOTRON = kind("nemotron", "Nemotron 3 and 4, Minitron", "llama_tasks")
HUNYUAN = kind("hunyuan_v1_dense", "Hunyuan, dense", "llama_tasks")
INTERNLM3 = kind("internlm3", "InternLM3", "llama_tasks")
GPT_NEOX = kind("gpt_neox", "GPT-NeoX and Pythia", "llama_tasks")
GPTJ = kind("gptj", "GPT-J", "llama_tasks")
CODEGEN = kind("codegen", "CodeGen", "llama_tasks")
FALCON = kind("falcon", "Falcon, with rotary embeddings or linear biases", "llama_tasks")
OPT = kind("opt", "OPT", "llama_tasks")
XGLM = kind("xglm", "XGLM", "llama_tasks")
BIOGPT = kind("biogpt", "BioGPT", "llama_tasks")
GPT_BIGCODE = kind("gpt_bigcode", "StarCoder and SantaCoder", "llama_tasks")
GPT_NEO = kind("gpt_neo", "GPT-Neo", "llama_tasks")
BLOOM = kind("bloom", "BLOOM, with linear biases", "llama_tasks")
MPT = kind("mpt", "MPT, with linear biases", "llama_tasks")
PERSIMMON = kind("persimmon", "Persimmon", "llama_tasks")
MIXTRAL = kind("mixtral", "Mixtral, a mixture of experts", "llama_tasks")
OLMOE = kind("olmoe", "OLMoE, a mixture of experts", "llama_tasks")
QWEN2_MOE = kind("qwen2_moe", "Qwen1.5 and Qwen2, mixtures of experts", "llama_tasks")
QWEN3_MOE = kind("qwen3_moe", "Qwen3, mixtures of experts", "llama_tasks")
QWEN3_NEXT = kind(
    "qwen3_next", "Qwen3-Next: delta nets, gated attention, mixtures of experts", "llama_tasks"
)
GPT_OSS = kind("gpt_oss", "gpt-oss, mixtures of experts in MXFP4 or wider", "llama_tasks")
DEEPSEEK_V2 = kind(
    "deepseek_v2", "DeepSeek-V2: latent attention, mixtures of experts", "llama_tasks"
)
DEEPSEEK_V3 = kind(
    "deepseek_v3", "DeepSeek-V3 and R1: latent attention, mixtures of experts", "llama_tasks"
)
LFM2 = kind("lfm2", "LFM2: short convolutions, and attention in some layers", "llama_tasks")
MAMBA = kind("mamba", "Mamba: state spaces in all layers, no attention", "mamba")
MAMBA2 = kind("mamba2", "Mamba 2: state spaces of heads in all layers, no attention", "mamba2")

# Images: classes and vectors; more are in `vision_plugins`.
RESNET = kind(
    "resnet",
    "ResNet image classifiers, as transformers and torchvision save them",
    "resnet",
    relatives.RESNET,
)
MOBILENET_V2 = kind(
    "mobilenet_v2",
    "MobileNetV2 image classifiers, as transformers and torchvision save them",
    "mobilenet_v2",
    relatives.MOBILENET_V2,
)
REGNET = kind("regnet", "RegNet image classifiers", "regnet")
MOBILENET_V1 = kind("mobilenet_v1", "MobileNetV1 image classifiers", "mobilenet_v1")
EFFICIENTNET = kind("efficientnet", "EfficientNet image classifiers", "efficientnet")
CONVNEXT = kind("convnext", "ConvNeXt image classifiers", "convnext")
CONVNEXTV2 = kind("convnextv2", "ConvNeXt V2 image classifiers", "convnext")
VIT = kind("vit", "ViT, image classifiers and embedders", "vit", relatives.VIT)
DEIT = kind("deit", "DeiT image classifiers, with a teacher too", "vit")
DINOV2 = kind("dinov2", "DINOv2, image classifiers and embedders", "vit")
CLIP = kind("clip", "CLIP, images and texts in one space", "clip")
CLIP_VISION = kind("clip_vision_model", "the half of CLIP for images", "clip")
SIGLIP = kind("siglip", "SigLIP, images and texts in one space", "clip")
SIGLIP_VISION = kind("siglip_vision_model", "the half of SigLIP for images", "clip")

# Encoders of texts.
BERT = kind(
    "bert", "BERT encoders: vectors, classes, tags, masked words", "bert_tasks", relatives.BERT
)
ROBERTA = kind("roberta", "RoBERTa encoders: vectors, classes, tags, masked words", "bert_tasks")
ROBERTA_PRELAYERNORM = kind(
    "roberta-prelayernorm", "RoBERTa encoders with norms first, with every head", "bert_tasks"
)
XLM_ROBERTA = kind(
    "xlm-roberta", "XLM-RoBERTa encoders, such as E5 and BGE-M3, with every head", "bert_tasks"
)
CAMEMBERT = kind(
    "camembert", "CamemBERT encoders: vectors, classes, tags, masked words", "bert_tasks"
)
DATA2VEC_TEXT = kind("data2vec-text", "data2vec of texts, with every head", "bert_tasks")
ERNIE = kind("ernie", "ERNIE encoders: vectors, classes, tags, masked words", "bert_tasks")
DISTILBERT = kind(
    "distilbert", "DistilBERT encoders: vectors, classes, tags, masked words", "bert_tasks"
)
MPNET = kind("mpnet", "MPNet encoders: vectors, classes, tags, masked words", "bert_tasks")
ELECTRA = kind("electra", "ELECTRA encoders: vectors, classes, tags, masked words", "bert_tasks")
ALBERT = kind("albert", "ALBERT encoders: vectors, classes, tags, masked words", "bert_tasks")
MODERNBERT = kind(
    "modernbert", "ModernBERT encoders, of long texts, with every head", "rotary_encoder"
)
NOMIC_BERT = kind(
    "nomic_bert", "NomicBERT encoders, such as nomic-embed-text, with every head", "rotary_encoder"
)
GTE = kind("gte", "GTE encoders, such as gte-multilingual, with every head", "rotary_encoder")
NEW = kind("new", "GTE encoders in their older files", "rotary_encoder")
EUROBERT = kind("eurobert", "EuroBERT encoders, with every head", "rotary_encoder")
JINA_EMBEDDINGS_V3 = kind(
    "jina_embeddings_v3", "Jina Embeddings 3, without its adapters", "rotary_encoder"
)
ESM = kind("esm", "ESM-2, encoders of proteins, with every head", "rotary_encoder")
DEBERTA = kind("deberta", "DeBERTa v1 encoders, often classifiers, with every head", "deberta")
DEBERTA_V2 = kind(
    "deberta-v2", "DeBERTa v2 and v3 encoders, often classifiers, with every head", "deberta"
)

# Ready to run.
DEMO = DemoModelPlugin(
    name="demo",
    summary="a small GPT-2 trained on Python source, for trying things out",
    path="gptrs_models:demo",
    api="0.1",
)
