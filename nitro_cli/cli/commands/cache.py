"""`nitro cache`: the compiled programs kept between processes."""

from __future__ import annotations

from nitro_cli.cli.options import CacheDir
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import size, table
from nitro_cli.errors import ExitCode
from nitro_cli.programs import cache_clear, cache_info

__all__ = ["clear", "info"]


def info(output: Output, cache_dir: CacheDir = None) -> int:
    """Where the program cache is and what it holds."""
    found = cache_info(cache_dir)
    if output.json:
        output.document(path=found.path, entries=found.entries, bytes=found.bytes, writable=found.writable)
        return ExitCode.OK
    rows: list[list[object]] = [
        ["directory", found.path or "off"],
        ["programs", found.entries],
        ["size", size(found.bytes)],
        ["writable", "yes" if found.writable else "no"],
    ]
    output.show(table(["program cache", ""], rows, fold=(1,)))
    return ExitCode.OK


def clear(output: Output, cache_dir: CacheDir = None) -> int:
    """Empty the program cache; the next run compiles anew."""
    removed = cache_clear(cache_dir)
    if output.json:
        output.document(path=removed.path, entries=removed.entries, bytes=removed.bytes)
    else:
        place = removed.path or "nowhere: the cache is off"
        output.text(f"removed {removed.entries} programs, {size(removed.bytes)}, from {place}")
    return ExitCode.OK
