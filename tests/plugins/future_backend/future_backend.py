"""A plugin that was written for a later version of the plugin API."""

from gptrs.api import BackendPlugin

PLUGIN = BackendPlugin(
    name="future",
    summary="a backend from the future",
    priority=1000,
    factory="future_backend:create",
    api="9.0",
)
