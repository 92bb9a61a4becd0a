"""The description of the backend: imported to list plugins, so it imports no kernels."""

from gptrs.api import BackendPlugin

PLUGIN = BackendPlugin(
    name="hello",
    summary="an example: six ops of f32",
    priority=1,
    factory="hello_backend.backend:create",
    api="0.1",
)
