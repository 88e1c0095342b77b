"""Numbered arrays in a directory, through orbax: written and read bit for bit, with nothing else from orbax used.

Orbax neither verifies nor commits here: `record` writes into a temporary directory, keeps digests of the files and
publishes the whole by a rename.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .transient import os_error_number

if TYPE_CHECKING:
    import numpy as np

__all__ = ["read_arrays", "write_arrays"]

_T = TypeVar("_T")
_THREAD_SECONDS = 30.0
_PLAIN = re.compile(r"[\w ./=,+@-]*")
_DESCRIPTORS = "/proc/self/fd"


def write_arrays(directory: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays into a new directory, durably, and open each again.

    Args:
        directory: created here; must not exist.
        arrays: at least one; keys are plain digits; sizes are not zero; the dtypes are TensorStore's.

    Raises:
        OSError: the disk is full, read-only or failing.
        ValueError: anything else that orbax refuses; an array that was written does not open as what it was.
    """
    directory.mkdir()

    def write(place: str) -> None:
        import orbax.checkpoint as ocp
        from etils import epath  # type: ignore[import-untyped]

        failures: list[Exception] = []
        handler = _handler(failures)
        try:
            handler.save(epath.Path(place), args=ocp.args.PyTreeSave(dict(arrays)))
            if failures:
                raise failures[0]
            handler.finalize(epath.Path(place))
            _check_opens(place, arrays)
        finally:
            handler.close()

    with _quiet(), _plainly_named(directory) as place:
        _without_event_loop(lambda: write(place))


def _check_opens(place: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Compare what the store says of each array, read from the disk, with what was to be written.

    Orbax's own `metadata` would do, and leaves ten objects of each array behind for good.
    """
    import tensorstore

    opened = {key: tensorstore.open(_read_spec(place, key), open=True, read=True) for key in arrays}
    for key, array in arrays.items():
        written = f"array {key}, written as {array.dtype}{list(array.shape)},"
        try:
            held = opened[key].result()
        except ValueError as error:
            raise ValueError(f"{written} is not there: {str(error).split('[', 1)[0].strip()}") from error
        dtype = held.dtype.numpy_dtype
        if tuple(held.shape) != array.shape or dtype != array.dtype:
            raise ValueError(f"{written} opens as {dtype}{list(held.shape)}")


def _read_spec(place: str, key: str) -> dict[str, Any]:
    base = {"driver": "file", "path": f"{place.rstrip('/')}/"}
    return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{key}/"}}


def read_arrays(directory: Path, keys: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of these keys as numpy arrays of the stored dtype and shape.

    Raises:
        OSError, ValueError, KeyError: what orbax and TensorStore raise on a damaged store.
    """
    wanted = list(keys)
    if not wanted:
        return {}

    def read(place: str) -> dict[str, np.ndarray[Any, Any]]:
        import numpy as np
        import orbax.checkpoint as ocp
        from etils import epath

        handler = _handler([])
        try:
            args = ocp.args.PyTreeRestore(
                item=dict.fromkeys(wanted, 0),
                restore_args={key: ocp.RestoreArgs(restore_type=np.ndarray) for key in wanted},
                partial_restore=True,
            )
            return dict(handler.restore(epath.Path(place), args=args))
        finally:
            handler.close()

    with _quiet(), _plainly_named(directory) as place:
        return _without_event_loop(lambda: read(place))


@contextmanager
def _plainly_named(directory: Path) -> Iterator[str]:
    """A path of the directory in which no character has a meaning for orbax or TensorStore.

    Orbax looks for its files by a glob pattern, in which `[v2]` is a set of characters, and TensorStore reads paths as
    those of a URL, in which a backslash separates. The directory is reached by its
    descriptor where the system has paths for those, and by a link below such a name where it has none.
    """
    path = os.path.abspath(directory)
    if os.path.isdir(_DESCRIPTORS):
        # The directory itself, wherever it is moved: TensorStore would make the folders of a path anew.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield f"{_DESCRIPTORS}/{descriptor}"
        finally:
            os.close(descriptor)
        return
    if _PLAIN.fullmatch(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="nitro-") as holder:
        link = os.path.join(holder, "store")
        os.symlink(path, link)
        yield link


def _handler(failures: list[Exception]) -> Any:
    import asyncio

    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from orbax.checkpoint import type_handlers

    class PatientNumpyHandler(type_handlers.NumpyHandler):
        """Lets every array of a save finish before the first failure is reported.

        Orbax gives up at the first, while TensorStore's threads still write into the directory and then complain
        to a closed event loop.
        """

        async def _open_and_write(self, value: Any, tspec: Any, ts_context: Any) -> None:
            try:
                await super()._open_and_write(value, tspec, ts_context)
            except Exception as error:
                failures.append(error)

        async def _background_serialize(self, values: Any, infos: Any, args: Any = None) -> None:
            if jax.process_index() == 0:
                return await super()._background_serialize(values, infos, args)
            # Orbax takes numpy arrays for copies of what process 0 writes, and would write none of them here.
            specs = [_write_spec(value, info, arg) for value, info, arg in zip(values, infos, args, strict=True)]
            writes = zip(values, specs, infos, strict=True)
            await asyncio.gather(*(self._open_and_write(value, spec, info.ts_context) for value, spec, info in writes))

    # The caller's arrays are host copies already: orbax's own deep copy would double the memory of a save.
    registry = type_handlers.create_type_handler_registry(
        (np.ndarray, PatientNumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, type_handlers.ArrayHandler()),
    )
    # Trained weights do not compress; the handler itself, unlike a Checkpointer, waits at no barrier of processes. To
    # every process its store is one of its own.
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=True,
        use_zarr3=False,
        use_compression=False,
        multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=None),
        type_handler_registry=registry,
    )


def _write_spec(value: Any, info: Any, arg: Any) -> dict[str, Any]:
    """Where and how TensorStore writes an array, as orbax's own handler has it in process 0."""
    from orbax.checkpoint._src.serialization import tensorstore_utils

    spec = tensorstore_utils.build_array_write_spec(
        info=info,
        arg=arg,
        global_shape=value.shape,
        local_shape=value.shape,
        dtype=value.dtype,
        use_ocdbt=True,
        process_index=0,
    )
    return dict(spec.json)


def _without_event_loop(function: Callable[[], _T]) -> _T:
    """Call `function` where no event loop runs: under one (a notebook), orbax would patch asyncio globally."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, name="nitro-checkpoint-arrays")
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


@contextmanager
def _quiet() -> Iterator[None]:
    """Wait for the threads that orbax leaves running when it raises, and keep their tracebacks from stderr.

    The error that orbax raises is reported once, by the caller; its threads must not write into a directory that the
    caller is deleting.
    """
    # absl must make its own logger class before anything asks for the logger by name.
    from absl import logging as absl_logging

    logger = absl_logging.get_absl_logger()
    logger.addFilter(_not_from_orbax)
    before = set(threading.enumerate())
    try:
        yield
    except Exception as error:
        for thread in set(threading.enumerate()) - before:
            if type(thread).__module__.startswith("orbax."):
                # The class's own `join` raises the thread's exception again.
                threading.Thread.join(thread, _THREAD_SECONDS)
        number = os_error_number(error)
        if number is None:
            raise
        raise OSError(number, str(error).split("[tensorstore_spec=")[0]) from error
    finally:
        logger.removeFilter(_not_from_orbax)
