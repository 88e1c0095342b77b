"""Tracing as if for the first time, and leaving nothing of it behind."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax

__all__ = ["fresh_trace"]

_trace_context = jax.make_user_context(None)

_COMPILED = "xla_primitive_callable"
"""The one of JAX's caches by context that holds compiled programs, of operations outside of any trace."""


@contextlib.contextmanager
def fresh_trace() -> Iterator[None]:
    """While it is entered JAX traces every function anew; what it keeps of these traces is dropped at the end.

    JAX keeps the traces of inner jitted functions by function object, even where a global they read has changed; a
    value of a user context that was never used before is part of what it looks them up by. Nobody can look such traces
    up again, and JAX would hold thousands of them, about two megabytes for each handle.
    """
    context = object()
    by_context = {cache: cache.cache_info().misses for cache in _caches() if _holds_small_facts(cache)}
    try:
        with _trace_context(context):
            yield
    finally:
        _forget_traces(context)
        for cache, misses in by_context.items():
            if cache.cache_info().misses != misses:
                cache.cache_clear()


def _forget_traces(context: object) -> None:
    """Drop the traces that JAX's caches of functions hold under a value of the user context."""
    for cache in _caches():
        if hasattr(cache, "evict_weakref"):
            for reference, key_context, *_ in cache.cache_keys():
                if key_context is not None and any(value is context for value in key_context):
                    held = reference()
                    if held is not None:
                        cache.evict_weakref(held)


def _holds_small_facts(cache: Any) -> bool:
    """Whether a cache looks things up by context, single entries cannot be dropped, and all are quickly found again."""
    plain = isinstance(cache, functools._lru_cache_wrapper) or not hasattr(cache, "cache_info")
    return not (plain or hasattr(cache, "evict_weakref") or getattr(cache, "__name__", "") == _COMPILED)


def _caches() -> list[Any]:
    """JAX's caches. Another version may keep them elsewhere: it holds traces until newer ones push them out."""
    try:
        from jax._src.util import _caches
    except ImportError:
        return []
    return list(_caches)
