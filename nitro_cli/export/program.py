"""The function that leaves: weights and wire inputs in, named outputs out, everything else baked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.errors import ConfigError, HookError, nearest
from nitro_cli.experiment import Experiment, HookTable, compile_view, resolve_routing
from nitro_cli.export.contract import WireContract, inputs_named
from nitro_cli.export.default_contract import default_outputs
from nitro_cli.export.judged_head import JudgedHead
from nitro_cli.export.spec import ExportSpec
from nitro_cli.programs import BoundModel, forward
from nitro_cli.run import flatten, unflatten
from nitro_cli.text import path_text

if TYPE_CHECKING:
    from nitro_cli.run import Handle

__all__ = ["PLATFORMS", "Served", "exported_view", "output_leaves", "serve", "without_source_paths"]

PLATFORMS = ("cpu", "cuda", "tpu")
"""What a program is exported for."""

Weights = dict[str, np.ndarray]


def _as_it_is(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True)
class Served:
    """What is exported.

    Attributes:
        function: `function(weights, *wire) -> {output name: array}`, traceable, any batch size.
        weights: flat dotted name to host array: `params.encoder.kernel`, `state....`.
        contract: the wire contract, outputs with their dtypes and shapes filled in.
        prepare: wire arrays to the batch that `forward` takes, on the host.
        device: the values that Device fields were baked at.
        head: what `forward` returned to what leaves, on arrays of JAX.
    """

    function: Callable[..., dict[str, Any]]
    weights: Weights
    contract: WireContract
    prepare: Callable[..., Mapping[str, Any]]
    device: Weights
    head: Callable[[Any], Any] = _as_it_is

    def example(self, batch: int, seed: int = 0) -> tuple[np.ndarray, ...]:
        """Made-up wire inputs of a batch size, the same for the same seed."""
        rng = np.random.default_rng(seed)
        return tuple(_made(rng, spec, batch) for spec in self.contract.inputs)


def serve(
    nitro: Handle,
    contract: WireContract,
    device: Mapping[str, np.ndarray] | None = None,
    judged: JudgedHead | None = None,
) -> Served:
    """Build the exported function of a handle: evaluation mode, its weights as arguments, Device fields baked.

    Args:
        nitro: the handle.
        contract: its wire contract.
        device: values of Device fields in the place of the handle's current ones.
        judged: a calibrator and a policy whose outputs leave too.

    Raises:
        MismatchError: these are of other weights or labels.
        ConfigError, HookError: an output names no leaf, or the preprocess does not give what `forward` takes.
    """
    e = nitro.experiment
    params, state = nitro.eval_params(), nitro.state
    arrays = {**flatten("params", params), **flatten("state", state)}
    dotted = {path: path.replace("/", ".") for path in arrays}
    if len(set(dotted.values())) != len(dotted):
        twice = sorted({name for name in dotted.values() if list(dotted.values()).count(name) > 1})
        raise ConfigError(
            f"two weights would both be named {twice[0]}", fix="use keys without dots in the parameter tree"
        )
    weights = {dotted[path]: value for path, value in arrays.items()}
    baked = {name: np.asarray(value) for name, value in nitro.run_state.device_now().items()}
    baked.update({name: value for name, value in (device or {}).items() if name in baked})
    view = exported_view(e, baked)
    hooks = HookTable(e)  # of the experiment: a view has no Host fields, which parts may ask
    prepare, head = _preprocess(hooks, view, contract), _head(hooks, view, judged)
    routing = resolve_routing(hooks, tuple(_batch_fields(prepare, contract)), traced=("forward",))
    model = nitro.plan.model.adapted

    def outputs_of(weights: Mapping[str, Any], *wire: Any) -> Any:
        held = {path: weights[name] for path, name in dotted.items()}
        p = unflatten("params", params, held, source="the exported weights", what="parameters")
        s = unflatten("state", state, held, source="the exported weights", what="layer state")
        batch = prepare(*wire)
        bound = BoundModel(model, train=False, key=None)
        outputs, _ = forward(view, bound, p, s, routing, batch)
        return head(outputs)

    if not contract.outputs:
        with inputs_named(contract):
            traced = jax.eval_shape(outputs_of, weights, *_wire_shapes(contract))
        contract = replace(contract, outputs=default_outputs(traced, contract.inputs))
    elif judged is not None:
        contract = replace(contract, outputs=(*contract.outputs, *map(ExportSpec, judged.names)))

    def function(weights: Mapping[str, Any], *wire: Any) -> dict[str, Any]:
        sent = {spec.name: value for spec, value in zip(contract.inputs, wire, strict=True)}
        return _selected(outputs_of(weights, *wire), sent, contract)

    return Served(function, weights, contract, prepare, baked, head)


def exported_view(e: Experiment, device: Mapping[str, np.ndarray]) -> Experiment:
    """The experiment as the exported function sees it: Host fields stripped, Device fields baked at host values.

    An experiment that holds much more than its outputs need writes `export_view(self, view)` and returns a smaller one.

    Args:
        e: the experiment.
        device: values of its Device fields.

    Raises:
        HookError: `export_view` returned no experiment of the class.
    """
    view, hooks = compile_view(e, device), HookTable(e)
    if not hooks.has("export_view"):
        return view
    own = hooks.call(e, "export_view", view)
    if not isinstance(own, type(e)):
        raise HookError(
            f"`export_view` returned {type(own).__name__}",
            where=type(e).__name__,
            fix="return the view, or a changed one: compile_view(self, {'table': small})",
        )
    return own


@contextlib.contextmanager
def without_source_paths() -> Iterator[None]:
    """While inside, lowered programs hold no path of the Python files that they were traced from."""
    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name)
    jax.config.update(name, ".*")
    try:
        yield
    finally:
        jax.config.update(name, before)


def _preprocess(hooks: HookTable, view: Experiment, contract: WireContract) -> Callable[..., Mapping[str, Any]]:
    names = [spec.name for spec in contract.inputs]
    if not hooks.has("export_preprocess"):
        return lambda *wire: dict(zip(names, wire, strict=True))

    def prepare(*wire: Any) -> Mapping[str, Any]:
        batch = hooks.call(view, "export_preprocess", *wire)
        if not isinstance(batch, Mapping):
            raise HookError(
                f"`export_preprocess` returned {type(batch).__name__}",
                fix="return the batch that forward takes: {'image': ...}",
            )
        return batch

    return prepare


def _head(hooks: HookTable, view: Experiment, judged: JudgedHead | None) -> Callable[[Any], Any]:
    own = _own_head(hooks, view)
    return own if judged is None else lambda outputs: judged.added(outputs, own(outputs))


def _own_head(hooks: HookTable, view: Experiment) -> Callable[[Any], Any]:
    if not hooks.has("export_head"):
        return _as_it_is

    def head(outputs: Any) -> Any:
        made = hooks.call(view, "export_head", outputs)
        if not isinstance(made, Mapping) or not made:
            raise HookError(
                f"`export_head` returned {type(made).__name__}",
                why="it names what leaves",
                fix="return a mapping of names to arrays: {'outputs': outputs, ...}",
            )
        return made

    return head


def _batch_fields(prepare: Callable[..., Mapping[str, Any]], contract: WireContract) -> Mapping[str, Any]:
    with inputs_named(contract):
        return dict(jax.eval_shape(lambda *wire: dict(prepare(*wire)), *_wire_shapes(contract)))


def _wire_shapes(contract: WireContract) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(spec.sized(2), spec.dtype) for spec in contract.inputs]


def _selected(outputs: Any, sent: Mapping[str, Any], contract: WireContract) -> dict[str, Any]:
    leaves = output_leaves(outputs, contract.outputs)
    found: dict[str, Any] = {}
    for spec in contract.outputs:
        if spec.leaf in leaves:
            found[spec.name] = jnp.asarray(leaves[spec.leaf])
        elif spec.source is not None and spec.source in sent:
            found[spec.name] = jnp.asarray(sent[spec.source])
        else:
            known = [*leaves, *sent]
            raise ConfigError(
                f"output {spec.name!r} comes from {spec.leaf!r}, which forward does not return",
                why=f"there are the outputs {', '.join(leaves)} and the inputs {', '.join(sent)}",
                nearest=nearest(spec.leaf, known),
            )
    return found


def output_leaves(outputs: Any, specs: Sequence[ExportSpec]) -> dict[str, Any]:
    """The leaves of what `forward` returned, by the names that export specs use."""
    if isinstance(outputs, Mapping):
        return _flat_leaves(outputs)
    leaves = jax.tree_util.tree_leaves(outputs)
    if len(leaves) == 1:
        plain = [spec for spec in specs if spec.source is None]
        if len(plain) != 1:
            raise ConfigError(
                f"forward returns one array, export_outputs names {len(plain)}",
                fix="name it once; an input that is sent back has a source",
            )
        return {plain[0].leaf: leaves[0]}
    return _flat_leaves(outputs)


def _flat_leaves(outputs: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
    return {path_text(path): leaf for path, leaf in leaves}


def _made(rng: np.random.Generator, spec: ExportSpec, batch: int) -> np.ndarray:
    shape = spec.sized(batch)
    assert spec.dtype is not None
    if spec.dtype.kind == "u":
        return rng.integers(0, min(256, int(np.iinfo(spec.dtype).max) + 1), shape).astype(spec.dtype)
    if spec.dtype.kind == "i":
        return rng.integers(0, 2, shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.normal(size=shape).astype(spec.dtype)
