"""Devices of JAX by name, options for XLA, and what is said to be ignored."""

from __future__ import annotations

import pytest

import gptrs
from gptrs.api import BackendSettings
from gptrs.backend.protocol import Backend
from gptrs.backend.settings import devices_of
from gptrs.errors import UsageError


def test_devices_are_named(jax_backend: Backend) -> None:
    (first, *_) = devices_of(jax_backend)
    assert first.name == "cpu:0"
    assert first.used
    assert gptrs.get_backend("jax", device="cpu:0") is gptrs.get_backend("jax", device="cpu:0")


def test_what_is_not_there(jax_backend: Backend) -> None:
    with pytest.raises(UsageError, match="no device `cpu:99`") as caught:
        gptrs.get_backend("jax", device="cpu:99")
    assert "cpu:0" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no option `fast`"):
        gptrs.get_backend("jax", device="cpu", options={"fast": "1"})


def test_threads_that_come_too_late_are_said(jax_backend: Backend) -> None:
    from gptrs_backend_jax.devices import chosen_device, ignored_settings

    device = chosen_device(BackendSettings(device="cpu"))
    (text,) = ignored_settings(BackendSettings(threads=97), device)
    assert "97 are not used" in text
    assert ignored_settings(BackendSettings(), device) == []


def test_a_loaded_backend_takes_no_threads(jax_backend: Backend) -> None:
    with pytest.raises(UsageError, match="has its threads"):
        gptrs.load_model("demo", backend=jax_backend, threads=2)
