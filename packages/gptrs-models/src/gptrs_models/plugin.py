"""The plugins of this package, as the entry points name them."""

from gptrs.api import DemoModelPlugin, ModelPlugin

GPT2 = ModelPlugin(
    name="gpt2",
    summary="GPT-2 and models of its shape",
    factory="gptrs_models.gpt2:load",
    api="0.1",
)
DEMO = DemoModelPlugin(
    name="demo",
    summary="a small GPT-2 trained on Python source, for trying things out",
    path="gptrs_models:demo",
    api="0.1",
)
