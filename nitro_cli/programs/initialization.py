"""The initial parameters as one compiled program, so that they cost one cache hit and not a compile per operation."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from nitro_cli.errors import ConfigError, warn
from nitro_cli.experiment import first_lost, narrowed_dtype
from nitro_cli.programs.cache import Program, TracedProgram, compile_traced, trace_program
from nitro_cli.programs.held_tracer import held_tracer
from nitro_cli.programs.models import AdaptedModel, adapt_returned
from nitro_cli.programs.models.adapted import PyTree
from nitro_cli.text import path_text

__all__ = ["Initialized", "TracedModel", "trace_model"]

Build = Callable[[Mapping[str, jax.Array], jax.Array], Any]

LARGE_CONSTANT_BYTES = 4096
STEP_STREAM = 0x6E6974
"""Folded into the seed's key for training steps, apart from what `build_model` draws from the key itself."""

_MOST_BYTES = 2**63 - 1

_READS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_SCALARS = ((bool, np.bool_), (int, np.int32), (float, np.float32), (complex, np.complex64))


@dataclass(frozen=True)
class Initialized:
    """A model with its initial arrays.

    Attributes:
        adapted: the model, holding no arrays.
        params, state: its arrays, beside the Device values or on the default device; nobody else holds their buffers.
        mode: `program` (one compiled program) or `op by op`.
        reason: why op by op; None for a program.
        program: the program; None op by op.
        key: the typed key of the steps to come.
    """

    adapted: AdaptedModel
    params: PyTree
    state: PyTree
    mode: Literal["program", "op by op"]
    reason: str | None
    program: Program | None
    key: jax.Array


@dataclass(frozen=True)
class TracedModel:
    """A model whose initial arrays were not computed yet: whoever has others for it never computes them.

    Attributes:
        adapted: the model, holding no arrays.
        params, state: the shapes and dtypes of its arrays.
        compute: builds them; called more than once it builds them anew, unless `mode` is `op by op`.
        mode, reason: as of `Initialized`.
        seed: of the keys.
    """

    adapted: AdaptedModel
    params: PyTree
    state: PyTree
    compute: Callable[[], Initialized]
    mode: Literal["program", "op by op"]
    reason: str | None
    seed: int

    def key(self) -> jax.Array:
        """The typed key of the steps to come, as `Initialized` has it."""
        low, high = _halves(self.seed)
        made: jax.Array = jax.jit(lambda low: jax.random.fold_in(_key(low, high), STEP_STREAM))(low)
        return made


@dataclass
class _CarriedOut:
    """What leaves the trace beside its arrays."""

    adapted: AdaptedModel | None = None
    structure: Any = None
    concrete: list[Any] = field(default_factory=list)
    shapes: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    held: str | None = None


def trace_model(
    build: Build,
    seed: int,
    device_values: Mapping[str, jax.Array] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    on_compile: Callable[[str], object] | None = None,
    place: Callable[[jax.Array], jax.Array] | None = None,
) -> TracedModel:
    """Build a model up to its initial arrays.

    `build` is traced as one program of the seed and the Device values: another seed or value compiles nothing. Arrays
    that it returns as they are (pretrained weights) do not pass through the program, and large ones that it computes
    with are arguments of the program. Where `build` reads values on the host it runs again, operation by operation,
    and the arrays are there at once.

    Args:
        build: `build(device_values, key)`, returning what `build_model` returns: `(model, params, state)`, or less for
            libraries whose models carry their arrays. `key` is a typed key, `jax.random.key(seed)`.
        seed: a non-negative integer.
        device_values: values of Device fields by name.
        options: XLA compile options.
        on_compile: see `compile_program`.
        place: inside the program, says where a computed parameter is to lie; None leaves them on one device.

    Raises:
        HookError: `build` returned no model.
        ConfigError: an array is larger than any memory. Exceptions of `build` itself pass unchanged.
    """
    low, high = _halves(seed)
    values = dict(device_values or {})
    out = _CarriedOut()

    def init(low: jax.Array, values: Mapping[str, jax.Array]) -> list[jax.Array]:
        key = _key(low, high)
        return [*_traced_leaves(build(values, key), out, place), jax.random.fold_in(key, STEP_STREAM)]

    try:
        traced = trace_program("init", init, (low, values))
    except _reads_values() as error:
        return _at_once(_op_by_op(build, values, low, high, _reason(error)), seed)
    adapted = out.adapted
    assert adapted is not None
    if out.held is not None:
        return _at_once(_op_by_op(build, values, low, high, out.held), seed)
    _warn_of_narrowing(out.concrete)

    def compute() -> Initialized:
        program, constants = _constants_as_arguments(traced)
        compiled = compile_traced(program, options=options, on_compile=on_compile)
        *arrays, step_key = compiled(*constants, low, values)
        computed = iter(arrays)
        leaves = [next(computed) if leaf is None else _own(leaf) for leaf in out.concrete]
        params, state = jax.tree.unflatten(out.structure, leaves)
        return Initialized(adapted, params, state, "program", None, compiled, step_key)

    params, state = jax.tree.unflatten(out.structure, out.shapes)
    return TracedModel(adapted, params, state, compute, "program", None, seed)


def _at_once(made: Initialized, seed: int) -> TracedModel:
    params, state = jax.tree.map(_shape, (made.params, made.state))
    return TracedModel(made.adapted, params, state, lambda: made, made.mode, made.reason, seed)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype))


def _traced_leaves(returned: Any, out: _CarriedOut, place: Callable[[jax.Array], jax.Array] | None) -> list[jax.Array]:
    adapted = adapt_returned(returned)
    leaves, out.structure = jax.tree.flatten((adapted.params, adapted.state))
    _refuse_huge(adapted)
    _refuse_lost(adapted)
    out.concrete = [None if isinstance(leaf, jax.core.Tracer) else leaf for leaf in leaves]
    out.shapes = [_shape(leaf if isinstance(leaf, jax.core.Tracer) else _as_array(leaf)) for leaf in leaves]
    out.adapted = adapted.without_arrays()
    out.held = held_tracer(out.adapted.module)
    strong = [_strong(leaf) for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    return strong if place is None else [place(leaf) for leaf in strong]


def _refuse_huge(adapted: AdaptedModel) -> None:
    """No compiler takes an array whose bytes a 64-bit integer does not count, and none says so."""
    for path, leaf in jax.tree_util.tree_flatten_with_path((adapted.params, adapted.state))[0]:
        shape = tuple(getattr(leaf, "shape", ()))
        if 8 * math.prod(shape) > _MOST_BYTES or max(shape, default=0) > _MOST_BYTES:
            name = path_text(path[1:])
            raise ConfigError(
                f"build_model makes an array of shape {shape}, more than any memory holds",
                where=f"build_model: {name}",
                fix="a smaller size in the field it comes from",
            )


def _refuse_lost(adapted: AdaptedModel) -> None:
    """A host array may become narrower on the device, but no number of it another."""
    for path, leaf in jax.tree_util.tree_flatten_with_path((adapted.params, adapted.state))[0]:
        if not isinstance(leaf, (np.ndarray, np.generic, int, float, complex)):
            continue
        array = np.asarray(leaf)
        narrow = narrowed_dtype(array.dtype)
        at = None if narrow is None else first_lost(array, narrow)
        if at is not None:
            raise ConfigError(
                f"build_model returned {array[at]}, which does not fit the device's {narrow}",
                where=f"build_model: {path_text(path[1:])}",
                why=f"JAX's 64-bit mode is off, so {array.dtype} becomes {narrow}",
                fix=f"keep its values in the range of {narrow}, or set JAX_ENABLE_X64=1",
            )


def _op_by_op(build: Build, values: Mapping[str, Any], low: Any, high: int, reason: str) -> Initialized:
    warn(f"build_model runs op by op: {reason}")
    key = _key(low, high)
    adapted = adapt_returned(build(values, key))
    _refuse_lost(adapted)
    leaves, structure = jax.tree.flatten((adapted.params, adapted.state))
    _warn_of_narrowing(leaves)
    params, state = jax.tree.unflatten(structure, [_own(leaf) for leaf in leaves])
    step_key = jax.random.fold_in(key, STEP_STREAM)
    return Initialized(adapted.without_arrays(), params, state, "op by op", reason, None, step_key)


def _halves(seed: int) -> tuple[np.uint32, int]:
    return np.uint32(seed & 0xFFFFFFFF), seed >> 32


def _key(low: Any, high: int) -> jax.Array:
    key = jax.random.key(low)
    return jax.random.fold_in(key, high) if high else key


def _constants_as_arguments(program: TracedProgram) -> tuple[TracedProgram, tuple[Any, ...]]:
    """Turn the large arrays that the program closes over into arguments before its own."""
    closed = program.traced.jaxpr
    large = [index for index, constant in enumerate(closed.consts) if constant.nbytes >= LARGE_CONSTANT_BYTES]
    if not large:
        return program, ()
    constants = tuple(closed.consts[index] for index in large)
    constants = tuple(c if isinstance(c, jax.Array) else np.asarray(c) for c in constants)

    def init(*args: Any) -> list[jax.Array]:
        given, own = args[: len(large)], args[len(large) :]
        consts = list(closed.consts)
        for index, value in zip(large, given, strict=True):
            consts[index] = value
        return jax.core.eval_jaxpr(closed.jaxpr, consts, *jax.tree.leaves(own))

    return trace_program("init", init, (*constants, *program.args)), constants


def _own(leaf: Any) -> jax.Array:
    """A device array with a buffer of its own: the train step takes it, and `build_model` may keep its array."""
    return _strong(jax.device_put(_as_array(leaf), may_alias=False))


def _as_array(leaf: Any) -> Any:
    """A number as the array that JAX makes of it; arrays as they are."""
    for kind, dtype in _SCALARS:
        if isinstance(leaf, kind) and not isinstance(leaf, np.generic):
            return np.asarray(leaf, dtype)
    return leaf


def _strong(leaf: jax.Array) -> jax.Array:
    """The same values with a strong type: a weak one would make the second step another program than the first."""
    return jax.lax.convert_element_type(leaf, leaf.dtype) if leaf.aval.weak_type else leaf


def _warn_of_narrowing(leaves: list[Any]) -> None:
    def narrowed(leaf: Any) -> bool:
        return hasattr(leaf, "dtype") and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype

    wide = [leaf for leaf in leaves if isinstance(leaf, (np.ndarray, np.generic)) and narrowed(leaf)]
    if wide:
        kinds = sorted({f"{leaf.dtype} to {jax.dtypes.canonicalize_dtype(leaf.dtype)}" for leaf in wide})
        warn(f"{len(wide)} of the arrays that build_model returned become narrower on the device: {', '.join(kinds)}")


def _reads_values() -> tuple[type[Exception], ...]:
    """Exceptions that say: this code needs values, or live objects, that a trace does not have."""
    flax_errors = sys.modules.get("flax.errors")
    if flax_errors is None:
        return _READS_VALUES
    return (*_READS_VALUES, flax_errors.TraceContextError)


def _reason(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = str(error).strip().splitlines()
    return f"it reads values on the host{where} ({type(error).__name__}: {message[0] if message else ''})"
