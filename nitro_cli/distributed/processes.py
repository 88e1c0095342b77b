"""What the processes of one run tell each other between steps. In a run of one process nothing here communicates."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from nitro_cli.errors import IncompatibleError

__all__ = [
    "agree",
    "barrier",
    "gather_bytes",
    "host_array",
    "in_pieces",
    "is_main",
    "main_first",
    "main_says",
    "process_count",
]

_SMALLEST = 1024


def process_count() -> int:
    """How many processes train this run together."""
    return jax.process_count()


def is_main() -> bool:
    """Whether this is the process that writes and draws."""
    return jax.process_index() == 0


def gather_bytes(message: bytes) -> list[bytes]:
    """The messages of all processes, by process index. Every process must call it."""
    if process_count() == 1:
        return [message]
    from jax.experimental.multihost_utils import process_allgather

    sizes = np.asarray(process_allgather(np.int32(len(message)))).reshape(-1)
    # Sizes in powers of two, so that few different programs are compiled.
    room = max(_SMALLEST, 1 << (int(sizes.max()) - 1).bit_length()) if sizes.max() else _SMALLEST
    padded = np.zeros(room, np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    rows = np.asarray(process_allgather(padded)).reshape(len(sizes), room)
    return [rows[index, :size].tobytes() for index, size in enumerate(sizes)]


def barrier() -> None:
    """Wait until every process is here."""
    gather_bytes(b"")


def main_says(value: Any) -> Any:
    """The main process's JSON value, in every process."""
    if process_count() == 1:
        return value
    return json.loads(gather_bytes(json.dumps(value).encode() if is_main() else b"")[0])


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """Let the main process do what is inside before the others do: what it sets right on disk, they find so."""
    if not is_main():
        barrier()
    yield
    if is_main():
        barrier()


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse to go on where the processes hold different values.

    Args:
        facts: name to JSON value, or to arrays in a list, which are compared by digest.

    Raises:
        IncompatibleError: the names that differ are given, with what each process holds.
    """
    if process_count() == 1:
        return
    told = [json.loads(text) for text in gather_bytes(json.dumps(_plain(facts)).encode())]
    differ = [name for name in told[0] if any(other.get(name) != told[0][name] for other in told)]
    if differ:
        raise IncompatibleError(
            f"the processes of the run do not agree on {', '.join(differ)}",
            why="; ".join(
                f"{name}: " + ", ".join(f"{facts.get(name)} in process {i}" for i, facts in enumerate(told))
                for name in differ[:3]
            ),
            fix="start every process with the same command on the same code and data",
        )


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: digest(value) if isinstance(value, list) else value for name, value in facts.items()}


def digest(arrays: list[Any]) -> str:
    """A short digest of arrays' contents."""
    total = hashlib.sha256()
    for array in arrays:
        array = np.asarray(array)
        total.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def in_pieces(leaf: Any) -> bool:
    """Whether an array is spread over processes, so that no one of them holds the whole of it."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def host_array(leaf: Any) -> np.ndarray:
    """A device array whole on the host. Every process must call it where the array is spread over processes."""
    if in_pieces(leaf):
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(leaf, tiled=True))
    return np.asarray(leaf)
