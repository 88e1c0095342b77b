"""From a handle to an artefact: everything is checked before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nitro_cli.errors import ConfigError, IncompatibleError
from nitro_cli.export.agreement import check_outputs
from nitro_cli.export.backends import ExportJob, find_backend
from nitro_cli.export.contract import WireContract, wire_contract
from nitro_cli.export.program import Served, named_leaves, serve
from nitro_cli.export.provenance import merged_provenance
from nitro_cli.export.repository import repository_facts
from nitro_cli.export.spec import ExportSpec
from nitro_cli.export.writing import check_target
from nitro_cli.registry import config_text, resolved_of
from nitro_cli.run import Phase, PhaseName

if TYPE_CHECKING:
    from nitro_cli.run import Nitro

__all__ = ["export"]

CHECKED_SIZES = (1, 3)


def export(
    nitro: Nitro,
    backend: Any = "bundle",
    *,
    dir: Path | str | None = None,
    name: str | None = None,
    batch_sizes: Iterable[int] = (1,),
    provenance_root: Path | str | None = None,
    provenance: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Write a servable artefact of a handle and return its path. Nothing is trained and no data is needed.

    Args:
        nitro: the handle; its evaluation weights and current Device values are exported.
        backend: a backend's name, or an object with `write(job)`.
        dir: the folder to write into; `<run_dir>/export` when None.
        name: the artefact's name; the experiment's when None.
        batch_sizes: fixed batch sizes to write programs for, beside the one for any size.
        provenance_root: a folder of the git work tree that the experiment lives in.
        provenance: further entries, stronger than all others.
        force: replace an existing artefact.

    Raises:
        ConfigError, HookError: the export hooks do not fit together, or not the program.
        IncompatibleError: the target exists, or the handle spreads over several devices.
        IntegrityError: the artefact, run by itself, does not give what `predict` gives.
        StorageError: it could not be written; nothing is left behind.
    """
    writer = find_backend(backend)
    sizes = _sizes(batch_sizes)
    if nitro.parts.placement.count > 1:
        raise IncompatibleError(
            f"the handle is spread over {nitro.parts.placement.count} devices",
            fix="export from a handle on one: Nitro(e, weights=..., data={}, n_devs=1)",
        )
    e = nitro.experiment
    contract = wire_contract(e)
    title = name or type(e).__name__
    if "/" in title or title.startswith("."):
        raise ConfigError(f"an artefact cannot be named {title!r}", fix="give a plain name, and the folder as dir")
    folder = Path(dir) if dir is not None else nitro.run_dir / "export"
    target = folder / f"{title}{writer.suffix}"
    check_target(target, force=force)
    served = serve(nitro, contract)
    served = replace(served, contract=_completed(contract, served))
    expected = _expected(nitro, served, {*CHECKED_SIZES, *sizes})
    repository, patch = repository_facts(provenance_root)
    merged = merged_provenance(nitro, repository, provenance or {})
    job = ExportJob(
        served=served,
        target=target,
        force=force,
        batch_sizes=sizes,
        provenance=_plain_json(merged),
        patch=patch,
        config=config_text(resolved_of(nitro.configured, preset=nitro.parts.preset, schedules=nitro.schedules_table)),
        expected=expected,
    )
    before = nitro.phase
    nitro.set_phase(Phase(PhaseName.COMPILING, "export"))
    try:
        return writer.write(job)
    finally:
        nitro.set_phase(before)


def _sizes(batch_sizes: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(dict.fromkeys(batch_sizes))
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"batch size {size!r}", why="batch sizes are whole numbers from 1 up")
    return sizes or (1,)


def _completed(contract: WireContract, served: Served) -> WireContract:
    """The outputs with dtypes and shapes from the trace, after checking those that were declared."""
    two, three = (_traced(served, batch) for batch in (2, 3))
    outputs = []
    for spec in contract.outputs:
        small, large = two[spec.name], three[spec.name]
        if not small.shape or small.shape[0] != 2 or large.shape[0] != 3 or small.shape[1:] != large.shape[1:]:
            raise ConfigError(
                f"output {spec.name!r} has shape {small.shape} for two samples and {large.shape} for three",
                why="the first axis of an output is the batch",
            )
        if spec.dtype is not None and spec.dtype != small.dtype:
            raise ConfigError(f"output {spec.name!r} is declared {spec.dtype}, the program gives {small.dtype}")
        if spec.shape is not None and spec.shape[1:] != small.shape[1:]:
            raise ConfigError(
                f"output {spec.name!r} is declared {('batch', *spec.shape[1:])}, the program gives "
                f"{('batch', *small.shape[1:])}"
            )
        outputs.append(ExportSpec(spec.name, small.dtype, (1, *small.shape[1:]), spec.source))
    return replace(contract, outputs=tuple(outputs))


def _traced(served: Served, batch: int) -> dict[str, Any]:
    wire = [jax.ShapeDtypeStruct(spec.sized(batch), spec.dtype) for spec in served.contract.inputs]
    weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in served.weights.items()}
    return dict(jax.eval_shape(served.function, weights, *wire))


def _expected(
    nitro: Nitro, served: Served, sizes: Iterable[int]
) -> dict[int, tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]]:
    """Wire inputs and outputs per batch size, run once by hand and compared with the handle's own prediction."""
    expected = {}
    for size in sorted(sizes):
        wire = served.example(size)
        found = {name: np.asarray(value) for name, value in served.function(served.weights, *wire).items()}
        expected[size] = (wire, found)
    size = min(expected)
    wire, found = expected[size]
    batch = {name: np.asarray(value) for name, value in served.prepare(*wire).items()}
    own = _predicted(nitro, batch)
    sources = {spec.name: spec for spec in served.contract.outputs}
    predicted = _by_source(own, sources, dict(zip([s.name for s in served.contract.inputs], wire, strict=True)))
    check_outputs(found, predicted, "the exported function, run by hand, against predict")
    return expected


def _predicted(nitro: Nitro, batch: Mapping[str, np.ndarray]) -> Any:
    """What `predict` gives, without fixing the batch size that the handle will predict in."""
    width = nitro.parts.width
    try:
        return nitro.predict(batch)
    finally:
        nitro.parts.width = width


def _by_source(outputs: Any, specs: Mapping[str, ExportSpec], sent: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    leaves = named_leaves(outputs, tuple(specs.values()))
    return {
        name: np.asarray(leaves[spec.leaf] if spec.leaf in leaves else sent[spec.leaf]) for name, spec in specs.items()
    }


def _plain_json(value: Any) -> Any:
    """The entries as JSON gives them back, so that what is written is what is verified."""
    return json.loads(json.dumps(value, default=str))
