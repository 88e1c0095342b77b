"""`python -m nitro_cli` and the `nitro` command."""

from __future__ import annotations

from nitro_cli.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
