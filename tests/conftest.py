"""Settings for all tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and noisy: how long an example takes, or takes to be made, says nothing about the code.
settings.register_profile("nitro", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nitro")


@pytest.fixture(scope="module", autouse=True)
def _light_heap() -> Iterator[None]:
    """Traces and programs of earlier modules stay in memory: looking for garbage among them took seconds each time."""
    yield
    gc.collect()
    gc.freeze()
