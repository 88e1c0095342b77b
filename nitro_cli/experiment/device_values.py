"""How a Python or numpy value becomes the array that a Device field holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment.narrowing import first_lost, narrowed_dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["device_array"]


def device_array(value: Any) -> np.ndarray[Any, Any]:
    """The host array that a Device value is placed on the device as.

    Python floats become float32, ints int32, bools bool; lists and tuples of those likewise. An array keeps its
    dtype, except that 64-bit ones take the 32-bit dtype of the same kind, as everywhere in JAX with 64-bit mode
    off: float64 rounds to float32, an integer must fit. With that mode on nothing is narrowed.

    Args:
        value: a number, a numpy or JAX array, or a (nested) list or tuple of numbers.

    Returns:
        A numpy array of any shape; a scalar gives shape `()`.

    Raises:
        ConfigError: the value is not numeric, is ragged, or does not fit the 32-bit dtype.
    """
    import numpy as np

    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if not is_array and not isinstance(value, bool | int | float | complex | list | tuple):
        raise _refused(value, "it is neither a number nor an array")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(value, str(error).splitlines()[0]) from None
    # Kind "V" with a name other than void is how the extended floats (bfloat16, float8) look to numpy.
    if array.dtype.kind not in "biufc" and not (array.dtype.kind == "V" and not array.dtype.name.startswith("void")):
        raise _refused(value, f"its elements have dtype {array.dtype}, which no device holds")
    if array.dtype.kind in "fc" and array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        raise _refused(value, f"its elements have dtype {array.dtype}, which no device holds")
    narrow = narrowed_dtype(array.dtype)
    if narrow is None:
        return array
    if first_lost(array, narrow) is not None:
        raise _refused(value, f"it does not fit {narrow}" if narrow.kind in "iu" else f"it overflows {narrow}")
    return array.astype(narrow)


def _refused(value: Any, why: str) -> ConfigError:
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return ConfigError(
        f"a Device field holds numbers or arrays; {text} ({type(value).__name__}) cannot be an array: {why}",
        fix="use a number or an array, or mark the field GraphConst (baked) or Host (not seen by traced code)",
    )
