"""The descriptions of the commands; what they run is imported when they do."""

from gptrs.api import CommandPlugin

FINETUNE = CommandPlugin(
    name="finetune",
    summary="Train a language model on with files of your own.",
    factory="gptrs_train.commands:finetune",
    api="0.1",
)
TRAIN = CommandPlugin(
    name="train",
    summary="Train a language model from nothing.",
    factory="gptrs_train.commands:train",
    api="0.1",
)
