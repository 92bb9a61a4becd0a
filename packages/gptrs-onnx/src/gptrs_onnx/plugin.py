"""The descriptions of the plugins; ONNX itself is imported when a file is read or written."""

from gptrs.api import ExporterPlugin, ImporterPlugin

PLUGIN = ImporterPlugin(
    name="onnx",
    summary="Models in ONNX files.",
    factory="gptrs_onnx.model:load",
    contents="gptrs_onnx.contents:contents_of",
    reference="gptrs_onnx.reference:runtime",
    language_model="gptrs_onnx.language.causal_lm:open_file",
    suffixes=(".onnx",),
    api="0.1",
)

EXPORTER = ExporterPlugin(
    name="onnx",
    summary="Models and programs as ONNX files.",
    factory="gptrs_onnx.exporting:export",
    suffixes=(".onnx",),
    api="0.1",
)
