"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines are shared and noisy: how long an example takes says nothing about the code.
settings.register_profile("nitro", deadline=None, print_blob=True)
settings.load_profile("nitro")
