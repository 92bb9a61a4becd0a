"""The plugins of this package, as the entry points name them."""

from gptrs.api import DemoModelPlugin, ModelPlugin

GPT2 = ModelPlugin(
    name="gpt2",
    summary="GPT-2 and models of its shape",
    factory="gptrs_models.gpt2:load",
    api="0.1",
)
LLAMA = ModelPlugin(
    name="llama",
    summary="Llama 2 and 3 and models of their shape, such as SmolLM",
    factory="gptrs_models.llama:load",
    api="0.1",
)
MISTRAL = ModelPlugin(
    name="mistral",
    summary="Mistral, with a sliding window",
    factory="gptrs_models.llama:load",
    api="0.1",
)
MINISTRAL = ModelPlugin(
    name="ministral",
    summary="Ministral, with a sliding window in some layers",
    factory="gptrs_models.llama:load",
    api="0.1",
)
MINISTRAL3 = ModelPlugin(
    name="ministral3",
    summary="the text model of Ministral 3",
    factory="gptrs_models.llama:load",
    api="0.1",
)
QWEN2 = ModelPlugin(
    name="qwen2",
    summary="Qwen2 and Qwen2.5, dense",
    factory="gptrs_models.llama:load",
    api="0.1",
)
QWEN3 = ModelPlugin(
    name="qwen3",
    summary="Qwen3, dense",
    factory="gptrs_models.llama:load",
    api="0.1",
)
RESNET = ModelPlugin(
    name="resnet",
    summary="ResNet image classifiers, as transformers and torchvision save them",
    factory="gptrs_models.resnet:load",
    api="0.1",
)
MOBILENET_V2 = ModelPlugin(
    name="mobilenet_v2",
    summary="MobileNetV2 image classifiers, as transformers and torchvision save them",
    factory="gptrs_models.mobilenet_v2:load",
    api="0.1",
)
BERT = ModelPlugin(
    name="bert",
    summary="BERT encoders, for sentence embeddings",
    factory="gptrs_models.bert:load",
    api="0.1",
)
DEMO = DemoModelPlugin(
    name="demo",
    summary="a small GPT-2 trained on Python source, for trying things out",
    path="gptrs_models:demo",
    api="0.1",
)
