"""The lightweight description by which gptrs finds this backend; NumPy code loads on first use."""

from gptrs.api import BackendPlugin

PLUGIN = BackendPlugin(
    name="ref",
    summary="NumPy, op by op: defines what programs mean; complete rather than fast",
    priority=10,
    factory="gptrs_backend_ref.backend:create",
    api="0.1",
)
