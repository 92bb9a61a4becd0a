"""The backend that settings ask for: of one process, or of several that lead or follow."""

from __future__ import annotations

from importlib.metadata import version

from gptrs.api.backends import BackendSettings
from gptrs_backend_jax.backend import JaxBackend
from gptrs_backend_jax.devices import chosen_device, join, require_alike
from gptrs_backend_jax.kept_programs import keep_compiled_programs
from gptrs_backend_jax.leading.channel import follow, lead
from gptrs_backend_jax.leading.follower import FollowingBackend
from gptrs_backend_jax.leading.leader import LeadingBackend

_VERSIONS = ("gptrs-core", "gptrs-runtime", "gptrs-backend-jax", "jax", "jaxlib")


def create(settings: BackendSettings) -> JaxBackend | LeadingBackend | FollowingBackend:
    """Return the backend on the device of `settings`, of `GPTRS_JAX_PLATFORM`, or JAX's own.

    Of processes that are led, the first one leads and the others follow.
    """
    keep_compiled_programs(whole=settings.mesh is None)
    join(settings)
    device, group = chosen_device(settings), settings.processes
    if group is not None:
        require_alike(_facts(settings))
    backend = JaxBackend(device, settings)
    if group is None or not group.led:
        return backend
    if group.number == 0:
        return LeadingBackend(backend, lead(group))
    return FollowingBackend(backend, follow())


def _facts(settings: BackendSettings) -> dict[str, str]:
    """Return what processes must have in common to compile the same programs."""
    return {
        **{f"version of {name}": version(name) for name in _VERSIONS},
        "`--mesh`": str(settings.mesh),
        "list of backend options": str(sorted(settings.options)),
    }
