"""The description of the importer; JAX itself is imported when a file is read."""

from gptrs.api import ImporterPlugin

PLUGIN = ImporterPlugin(
    name="stablehlo",
    summary="StableHLO modules, and files of jax.export.",
    factory="gptrs_backend_jax.stablehlo.loading:load",
    suffixes=(".stablehlo", ".mlir", ".mlirbc", ".jaxexport"),
    api="0.1",
)
