"""The plugins of kinds for images that came after those in `plugin`."""

from gptrs.api import ModelPlugin

BIT = ModelPlugin(
    name="bit",
    summary="BiT image classifiers, ResNets of Big Transfer",
    factory="gptrs_models.bit:load",
    api="0.1",
)
IDEFICS3 = ModelPlugin(
    name="idefics3",
    summary="Idefics3, language models that read images",
    factory="gptrs_models.idefics3:load",
    api="0.1",
)
SMOLVLM = ModelPlugin(
    name="smolvlm",
    summary="SmolVLM, small language models that read images",
    factory="gptrs_models.idefics3:load",
    api="0.1",
)
DINOV3 = ModelPlugin(
    name="dinov3_vit",
    summary="DINOv3 encoders of images",
    factory="gptrs_models.dinov3:load",
    api="0.1",
)
SIGLIP2 = ModelPlugin(
    name="siglip2",
    summary="SigLIP 2 for images of any aspect, and texts",
    factory="gptrs_models.clip:load",
    api="0.1",
)
SIGLIP2_VISION = ModelPlugin(
    name="siglip2_vision_model",
    summary="the half of SigLIP 2 for images",
    factory="gptrs_models.clip:load",
    api="0.1",
)
SWIN = ModelPlugin(
    name="swin",
    summary="Swin transformers: classes and vectors of images",
    factory="gptrs_models.swin:load",
    api="0.1",
)
