"""Where a command keeps compiled programs: said once, before the first array exists."""

from __future__ import annotations

import os

__all__ = ["use_program_cache"]


def use_program_cache(directory: str | None) -> None:
    """Turn the persistent program cache on, in `directory` or where the environment says; `off` switches it off."""
    if directory is not None:
        os.environ["NITRO_CACHE_DIR"] = directory
    from nitro_cli.programs import setup_cache

    setup_cache()
