"""More kinds that read images, as the entry points name them."""

from gptrs_models.description import kind

BIT = kind("bit", "BiT image classifiers, ResNets of Big Transfer", "bit")
IDEFICS3 = kind("idefics3", "Idefics3, language models that read images", "idefics3")
SMOLVLM = kind("smolvlm", "SmolVLM, small language models that read images", "idefics3")
DINOV2_REGISTERS = kind(
    "dinov2_with_registers", "DINOv2 with registers, image classifiers and embedders", "vit"
)
DINOV3 = kind("dinov3_vit", "DINOv3 encoders of images", "dinov3")
SIGLIP2 = kind("siglip2", "SigLIP 2 for images of any aspect, and texts", "clip")
SIGLIP2_VISION = kind("siglip2_vision_model", "the half of SigLIP 2 for images", "clip")
SWIN = kind("swin", "Swin transformers: classes and vectors of images", "swin")
MOBILENET_V3 = kind(
    "mobilenet_v3",
    "MobileNetV3 classifiers, as torchvision and timm save them",
    "mobilenet_v3",
)
BEIT = kind("beit", "BEiT image classifiers and embedders", "beit")
DATA2VEC_VISION = kind("data2vec-vision", "data2vec image classifiers and embedders", "beit")
