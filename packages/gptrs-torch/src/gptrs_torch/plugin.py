"""The description of the importer; torch itself is imported when a file is read."""

from gptrs.api import ImporterPlugin

PLUGIN = ImporterPlugin(
    name="torch",
    summary="Programs that torch.export wrote.",
    factory="gptrs_torch.model:load",
    suffixes=(".pt2",),
    api="0.1",
)
