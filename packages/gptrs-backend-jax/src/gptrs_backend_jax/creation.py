"""The backend that settings ask for: of one process, or of several that lead or follow."""

from __future__ import annotations

from gptrs.api.backends import BackendSettings
from gptrs_backend_jax.backend import JaxBackend
from gptrs_backend_jax.devices import chosen_device, join
from gptrs_backend_jax.kept_programs import keep_compiled_programs
from gptrs_backend_jax.leading.channel import follow, lead
from gptrs_backend_jax.leading.follower import FollowingBackend
from gptrs_backend_jax.leading.leader import LeadingBackend


def create(settings: BackendSettings) -> JaxBackend | LeadingBackend | FollowingBackend:
    """Return the backend on the device of `settings`, of `GPTRS_JAX_PLATFORM`, or JAX's own.

    Of processes that are led, the first one leads and the others follow.
    """
    keep_compiled_programs(whole=settings.mesh is None)
    join(settings)
    backend, group = JaxBackend(chosen_device(settings), settings), settings.processes
    if group is None or not group.led:
        return backend
    if group.number == 0:
        return LeadingBackend(backend, lead(group))
    return FollowingBackend(backend, follow())
