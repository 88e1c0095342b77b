"""Turning on JAX's persistent cache of compiled programs, so that a second process compiles nothing."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax

from nitro_cli.errors import warn
from nitro_cli.programs.disk_cache import OFF, EntryFiles, cache_dir

__all__ = ["DiskHits", "setup_cache"]

_HIT = "/jax/compilation_cache/cache_hits"
_in_use: str | None = None  # what `setup_cache` last chose: a directory, or off
_said: set[str] = set()


def setup_cache(path: str | Path | None = None) -> Path | None:
    """Set where compiled programs are kept between processes. To be called before the first array exists.

    A directory that cannot be made turns the cache off, one that cannot be written is only read; either is said in
    one warning. Entries that are damaged or of another machine are misses.

    Args:
        path: the directory; None for `NITRO_CACHE_DIR`, else the directory JAX was already given, else the user's
            cache directory; `"off"` for no cache.

    Returns:
        The directory in use, or None.
    """
    global _in_use
    given = _jax_directory()
    # A directory that JAX was given by someone else is theirs to choose.
    if path is None and not os.environ.get("NITRO_CACHE_DIR") and given and given != _in_use and "://" not in given:
        path = given
    directory = cache_dir(path)
    writable = directory is not None and _prepare(directory)
    if directory is not None and not directory.is_dir():
        directory = None
    wanted = None if directory is None else str(directory)
    if _in_use == (wanted or OFF) and _jax_directory() == wanted:
        return directory
    _configure(wanted)
    if directory is not None:
        _install(directory, writable)
    _in_use = wanted or OFF
    return directory


class DiskHits:
    """Counts, on this thread and while entered, how many programs JAX took from its persistent cache."""

    _local = threading.local()
    _registered = False
    _lock = threading.Lock()

    def __enter__(self) -> DiskHits:
        with DiskHits._lock:
            if not DiskHits._registered:
                jax.monitoring.register_event_listener(_note_event)
                DiskHits._registered = True
        self._before = getattr(DiskHits._local, "count", 0)
        self.count = 0
        return self

    def __exit__(self, *exc: object) -> None:
        self.count = getattr(DiskHits._local, "count", 0) - self._before


def _jax_directory() -> str | None:
    return getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 - not in JAX's type stubs


def _note_event(event: str, **_: Any) -> None:
    if event == _HIT:
        DiskHits._local.count = getattr(DiskHits._local, "count", 0) + 1


def _prepare(directory: Path) -> bool:
    """Make the directory; whether it can be written. Warn once where it cannot be made or written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn_once(f"the program cache is off: {directory} cannot be made ({error.strerror})")
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".writing-"):
            return True
    except OSError as error:
        _warn_once(f"the program cache {directory} cannot be written ({error.strerror}); it is only read")
        return False


def _warn_once(what: str) -> None:
    if what not in _said:
        _said.add(what)
        warn(what)


def _configure(directory: str | None) -> None:
    from jax.experimental.compilation_cache import compilation_cache

    # JAX decides once, at the first compile, whether and where it caches; only a reset makes it look again.
    compilation_cache.reset_cache()
    jax.config.update("jax_enable_compilation_cache", directory is not None)
    jax.config.update("jax_compilation_cache_dir", directory)
    # JAX by default keeps nothing that compiled in under a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # XLA's side caches write their directory into the compile options, and so into every key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _install(directory: Path, writable: bool) -> None:
    """Put checked, atomically written files behind JAX's cache where this JAX lets us; else JAX's own files serve."""
    try:
        from jax._src import compilation_cache
        from jax._src.compilation_cache_interface import CacheInterface

        class CheckedFiles(CacheInterface):
            def __init__(self) -> None:
                self._path = directory
                self._files = EntryFiles(directory, writable)

            def get(self, key: str) -> bytes | None:
                return self._files.get(key)

            def put(self, key: str, value: bytes) -> None:
                self._files.put(key, value)

        with compilation_cache._cache_initialized_mutex:
            if compilation_cache._cache is not None or compilation_cache._cache_initialized:
                return
            compilation_cache._cache = CheckedFiles()
            compilation_cache._cache_initialized = True
    except (ImportError, AttributeError, TypeError):
        if not writable:
            # Never reached by a compile time: nothing is written, so nothing fails at every program.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
