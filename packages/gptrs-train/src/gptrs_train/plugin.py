"""Describe the commands of training; their code is imported when they run."""

from gptrs.api import CommandPlugin

FINETUNE = CommandPlugin(
    name="finetune",
    summary="Fine-tune a language model or an encoder on your own data.",
    factory="gptrs_train.commands:finetune",
    api="0.1",
)
TRAIN = CommandPlugin(
    name="train",
    summary="Train a language model from scratch.",
    factory="gptrs_train.commands:train",
    api="0.1",
)
