"""The description of the importer; ONNX itself is imported when a file is read."""

from gptrs.api import ImporterPlugin

PLUGIN = ImporterPlugin(
    name="onnx",
    summary="Models in ONNX files.",
    factory="gptrs_onnx.loading:load",
    suffixes=(".onnx",),
    api="0.1",
)
