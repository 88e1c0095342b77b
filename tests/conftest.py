"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and noisy: how long an example takes, or takes to be made, says nothing about the code.
settings.register_profile("nitro", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nitro")

# In memory where there is room: a run syncs its records to the disk, which in thousands of runs takes minutes.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="module", autouse=True)
def _light_heap() -> Iterator[None]:
    """Traces and programs of earlier modules stay in memory: looking for garbage among them took seconds each time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def compiled() -> Callable[[], int]:
    """How many programs were compiled or loaded since the test began."""
    from nitro_cli import cache_stats

    before = cache_stats()

    def count() -> int:
        now = cache_stats()
        return now.misses + now.disk_hits - before.misses - before.disk_hits

    return count
