"""Descriptions of the plugins; JAX is imported only when a file is read or written."""

from gptrs.api import ExporterPlugin, ImporterPlugin

PLUGIN = ImporterPlugin(
    name="stablehlo",
    summary="StableHLO modules, and files of jax.export.",
    factory="gptrs_backend_jax.stablehlo.model:load",
    suffixes=(".stablehlo", ".mlir", ".mlirbc", ".jaxexport"),
    api="0.1",
)

EXPORTER = ExporterPlugin(
    name="stablehlo",
    summary="Models and programs as StableHLO.",
    factory="gptrs_backend_jax.stablehlo.exporting:export",
    suffixes=(".stablehlo", ".mlir", ".mlirbc", ".jaxexport"),
    api="0.1",
)
