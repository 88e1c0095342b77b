"""Compiling programs ahead of their first call, each distinct one once per process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax

from nitro_cli.programs.cost import Cost, cost_of
from nitro_cli.programs.persistent_cache import DiskHits
from nitro_cli.programs.program_key import Identity, identify
from nitro_cli.programs.tracing import fresh_trace

__all__ = [
    "CacheStats",
    "NameStats",
    "Program",
    "cache_reset",
    "cache_stats",
    "compile_program",
    "compile_traced",
    "trace_program",
]

ProgramSource = Literal["memory", "disk", "compiled"]


@dataclass(frozen=True)
class NameStats:
    """Counts for one program name; see `CacheStats`."""

    hits: int = 0
    misses: int = 0
    disk_hits: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class CacheStats:
    """What compiling cost in this process.

    Attributes:
        hits: programs that were already compiled in this process.
        misses: programs that XLA compiled.
        entries: compiled programs held in memory.
        disk_hits: programs taken from the persistent cache.
        seconds: time spent compiling and loading, without tracing.
        by_name: the same counts by program name (`train`, `eval`, ...).
    """

    hits: int = 0
    misses: int = 0
    entries: int = 0
    disk_hits: int = 0
    seconds: float = 0.0
    by_name: Mapping[str, NameStats] = field(default_factory=dict)


class Program:
    """A compiled program; call it with the arrays it was compiled for.

    Calling it with other shapes, dtypes or trees raises `TypeError`. Donated arguments are gone after the call.

    Attributes:
        name: what it is called in phases, reports and counts.
        identity: what it was recognised by.
        source: `memory` (already compiled in this process), `disk` (the persistent cache) or `compiled`.
        seconds: compiling or loading, 0.0 from memory.
        trace_seconds: tracing and lowering.
        compiled: JAX's own object.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        compiled: jax.stages.Compiled,
        source: ProgramSource,
        seconds: float,
        trace_seconds: float,
    ) -> None:
        self.name = name
        self.identity = identity
        self.compiled = compiled
        self.source: ProgramSource = source
        self.seconds = seconds
        self.trace_seconds = trace_seconds
        self._call: Callable[..., Any] = compiled

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    @property
    def key(self) -> str:
        """Hexadecimal sha256 of the program's identity."""
        return self.identity.key

    @property
    def has_callback(self) -> bool:
        """Whether it calls back into Python, and so is compiled anew for each handle."""
        return self.identity.has_callback

    @cached_property
    def cost(self) -> Cost:
        """The compiler's cost and memory figures."""
        return cost_of(self.compiled)

    def __repr__(self) -> str:
        return f"Program({self.name}, {self.source}, {self.key[:12]})"


@dataclass(frozen=True)
class TracedProgram:
    """A function traced for its arguments, not yet compiled."""

    name: str
    traced: jax.stages.Traced
    args: tuple[Any, ...]
    seconds: float


class _Memory:
    """Compiled programs of this process by key, and the counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.programs: dict[str, list[Program]] = {}
        self.counts: dict[str, NameStats] = {}

    def find(self, identity: Identity) -> Program | None:
        with self.lock:
            for program in self.programs.get(identity.key, ()):
                # Equal texts of trees may hide unequal classes.
                known = program.identity
                if known.in_tree == identity.in_tree and known.out_tree == identity.out_tree:
                    return program
        return None

    def add(self, program: Program) -> None:
        with self.lock:
            self.programs.setdefault(program.key, []).append(program)

    def count(self, name: str, *, hits: int = 0, misses: int = 0, disk_hits: int = 0, seconds: float = 0.0) -> None:
        with self.lock:
            old = self.counts.get(name, NameStats())
            self.counts[name] = NameStats(
                old.hits + hits, old.misses + misses, old.disk_hits + disk_hits, old.seconds + seconds
            )

    def stats(self) -> CacheStats:
        with self.lock:
            by_name, entries = dict(self.counts), sum(len(found) for found in self.programs.values())
        counts = by_name.values()
        return CacheStats(
            hits=sum(c.hits for c in counts),
            misses=sum(c.misses for c in counts),
            entries=entries,
            disk_hits=sum(c.disk_hits for c in counts),
            seconds=sum(c.seconds for c in counts),
            by_name=by_name,
        )

    def reset(self) -> None:
        with self.lock:
            self.programs.clear()
            self.counts.clear()


_memory = _Memory()


def compile_program(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    donate_argnums: tuple[int, ...] = (),
    static: str = "",
    options: Mapping[str, Any] | None = None,
    on_compile: Callable[[str], object] | None = None,
) -> Program:
    """Trace `fn` afresh and give its program: out of memory, out of the persistent cache, or compiled now.

    Args:
        name: what the program is called; it is part of its text.
        fn: a function of arrays only.
        args: what it will be called with: arrays (host or device) or `jax.ShapeDtypeStruct`s.
        donate_argnums: positions of the arguments whose buffers the results may take.
        static: further text that is part of the program's identity.
        options: XLA compile options, as `check_compile_options` passed them.
        on_compile: called with `name` before the compiler or the persistent cache is asked; not for a hit in memory.

    Returns:
        The program. An exception of `fn` passes unchanged.
    """
    traced = trace_program(name, fn, args, donate_argnums=donate_argnums)
    return compile_traced(traced, static=static, options=options, on_compile=on_compile)


def trace_program(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], *, donate_argnums: tuple[int, ...] = ()
) -> TracedProgram:
    """Trace `fn` afresh, whatever was traced of it before; arguments as for `compile_program`."""
    start = time.perf_counter()

    # A new function object, since JAX keeps traces by it.
    def program(*args: Any) -> Any:
        return fn(*args)

    program.__name__ = program.__qualname__ = name
    program.__wrapped__ = fn  # type: ignore[attr-defined]
    # Arguments left out of the text would make programs that use different ones look alike.
    jitted = jax.jit(program, donate_argnums=donate_argnums, keep_unused=True)
    with fresh_trace():
        traced = jitted.trace(*args)
    return TracedProgram(name, traced, args, time.perf_counter() - start)


def compile_traced(
    program: TracedProgram,
    *,
    static: str = "",
    options: Mapping[str, Any] | None = None,
    on_compile: Callable[[str], object] | None = None,
) -> Program:
    """The second half of `compile_program`."""
    options = dict(options or {})
    start = time.perf_counter()
    with fresh_trace():
        lowered = program.traced.lower()
    identity = identify(program.traced, lowered, program.args, options, static)
    trace_seconds = program.seconds + time.perf_counter() - start
    if not identity.has_callback:
        known = _memory.find(identity)
        if known is not None:
            _memory.count(program.name, hits=1)
            return Program(program.name, known.identity, known.compiled, "memory", 0.0, trace_seconds)
    if on_compile is not None:
        on_compile(program.name)
    start = time.perf_counter()
    with DiskHits() as disk:
        compiled = lowered.compile(compiler_options=options or None)
    seconds = time.perf_counter() - start
    source: ProgramSource = "disk" if disk.count else "compiled"
    _memory.count(program.name, misses=source == "compiled", disk_hits=source == "disk", seconds=seconds)
    made = Program(program.name, identity, compiled, source, seconds, trace_seconds)
    if not identity.has_callback:
        _memory.add(made)
    return made


def cache_stats() -> CacheStats:
    """Counts of compiled, reused and loaded programs since the process began or `cache_reset()`."""
    return _memory.stats()


def cache_reset() -> None:
    """Forget all compiled programs of this process and set the counts to zero; files on disk and live handles stay."""
    _memory.reset()
