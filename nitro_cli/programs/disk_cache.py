"""The directory of compiled programs on disk, read and cleared without JAX."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nitro_cli.errors import StorageError, warn
from nitro_cli.text import user_path

__all__ = ["CacheInfo", "EntryFiles", "cache_clear", "cache_dir", "cache_info"]

SUFFIX = "-nitro"
_MAGIC = b"nitro-xla-1\n"
_OTHER_SUFFIXES = ("-cache", "-atime")  # JAX's own entries, where it wrote into the directory without nitro
OFF = "off"


@dataclass(frozen=True)
class CacheInfo:
    """What the directory of compiled programs holds.

    Attributes:
        path: the directory, or None when the cache is off.
        entries: number of compiled programs.
        bytes: their size on disk.
        writable: whether new ones can be added; False where there is no directory and none can be made.
    """

    path: Path | None
    entries: int
    bytes: int
    writable: bool


def cache_dir(path: str | Path | None = None) -> Path | None:
    """The directory to use: `path`, else `NITRO_CACHE_DIR`, else `xla` in the user's cache directory of nitro.

    Returns:
        The directory, made or not, or None where the word `off` stands in place of a path.
    """
    chosen = str(path) if path is not None else os.environ.get("NITRO_CACHE_DIR", "")
    if chosen.strip().casefold() == OFF:
        return None
    if chosen.strip():
        return user_path(chosen).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("nitro")) / "xla"


def cache_info(path: str | Path | None = None) -> CacheInfo:
    """Count the compiled programs in a cache directory (the default one for None). Loads no JAX."""
    directory = cache_dir(path)
    if directory is None:
        return CacheInfo(None, 0, 0, False)
    sizes = [size for name, size in _entries(directory) if not name.endswith("-atime")]
    return CacheInfo(directory, len(sizes), sum(sizes), _writable(directory))


def cache_clear(path: str | Path | None = None) -> CacheInfo:
    """Remove the compiled programs of a cache directory, and nothing else in it. Loads no JAX.

    Returns:
        What was removed.

    Raises:
        StorageError: an entry could not be removed.
    """
    directory = cache_dir(path)
    if directory is None:
        return CacheInfo(None, 0, 0, False)
    removed = size = 0
    for name, entry_size in _entries(directory):
        try:
            (directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                "a compiled program could not be removed", where=str(directory / name), why=str(error)
            ) from error
        removed, size = removed + (not name.endswith("-atime")), size + entry_size
    return CacheInfo(directory, removed, size, _writable(directory))


class EntryFiles:
    """Compiled programs as files that are whole or absent: written under another name, read with their digest checked.

    JAX's own files are neither: two processes that compile at once read each other's halves, and a damaged file stays
    forever. Programs for the CPU are kept apart per kind of CPU, since they hold its instructions.

    Args:
        directory: where the files are; it exists.
        writable: whether to write and repair.
    """

    def __init__(self, directory: Path, writable: bool = True) -> None:
        self.directory = directory
        self.writable = writable
        self._machine = _machine()
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The program under `key`, or None; a damaged file is warned about once, and the next `put` replaces it."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"the program cache cannot be read ({error}); compiling instead")
            return None
        head = len(_MAGIC) + hashlib.sha256().digest_size
        value = content[head:]
        if content[:head] == _MAGIC + hashlib.sha256(value).digest():
            return value
        self._warn(f"a damaged entry of the program cache is replaced ({path}); compiling instead")
        return None

    def put(self, key: str, value: bytes) -> None:
        """Store a program; where it cannot be written this is said once and nothing more is written."""
        if not self.writable:
            return
        content = _MAGIC + hashlib.sha256(value).digest() + value
        temporary = None
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self.directory, prefix=".writing-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, self._path(key))
        except OSError as error:
            self.writable = False
            self._warn(f"the program cache cannot be written ({error}); the next process compiles again")
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}-{self._machine}{SUFFIX}"

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warn(what)


def _entries(directory: Path) -> list[tuple[str, int]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as files:
        for file in files:
            if file.name.endswith((SUFFIX, *_OTHER_SUFFIXES)):
                with contextlib.suppress(OSError):
                    found.append((file.name, file.stat().st_size))
    return sorted(found)


def _writable(directory: Path) -> bool:
    nearest = next((d for d in (directory, *directory.parents) if d.exists()), directory)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _machine() -> str:
    """A digest of the processor's kind and instruction sets."""
    lines = [platform.machine(), platform.system()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.split(":")[0].strip() in ("flags", "Features", "model name"):
                lines.append(line.strip())
            if not line.strip():
                break
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
