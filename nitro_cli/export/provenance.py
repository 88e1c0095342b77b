"""Where an artefact comes from, merged weakest first: framework, repository, model, call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import HookTable
from nitro_cli.registry import holds_machine_path, home_fields
from nitro_cli.run import fields_by_kind, versions

if TYPE_CHECKING:
    from nitro_cli.run import Handle

__all__ = ["export_provenance", "merged_provenance"]

_KINDS = {"weights": "checkpoint", "resume": "resumed checkpoint", "handle": "live handle"}


def merged_provenance(nitro: Handle, repository: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """All provenance entries of an export.

    Args:
        nitro: the handle that is exported.
        repository: of `repository_facts`.
        call: the caller's own entries, the strongest.

    Raises:
        ConfigError: the experiment's own entries are no mapping.
    """
    e = nitro.experiment
    own: Any = {}
    hooks = HookTable(e)
    if hooks.has("export_provenance_extra"):
        own = hooks.call(e, "export_provenance_extra", checkpoint=nitro.checkpoint_source)
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"`export_provenance_extra` returned {type(own).__name__}",
                fix="return a mapping of names to values",
            )
    return {**export_provenance(nitro), **repository, **own, **call}


def export_provenance(nitro: Handle) -> dict[str, Any]:
    """What nitro itself says of a handle's weights in every artefact: the weakest layer of its provenance.

    No entry holds a path of this machine: a checkpoint is named by its run, and values that stay at home are left out.

    Args:
        nitro: the handle.

    Returns:
        JSON-ready entries: `framework`, `versions`, `exported_at`, `experiment`, `config`, `preset`, `seed`, `weights`
        (`raw` or `ema`), `weights_from`, `checkpoint`, `run`, `trained`, `averaged_from`, `warm_started_from`, ...

    Raises:
        ConfigError: `nitro` is no handle.
    """
    if not hasattr(nitro, "plan"):
        raise ConfigError(f"{nitro!r:.60} is no handle", fix="give what Nitro(...) returned")
    settings = nitro.plan.settings
    facts: dict[str, Any] = {
        "framework": "nitro",
        "versions": versions(),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "experiment": settings.import_path,
        "config": {**fields_by_kind(nitro.experiment, exported=True), "at_home": list(home_fields(nitro.experiment))},
        "preset": settings.resolved.preset,
        "seed": settings.seed,
        "weights": "ema" if _reads_ema(nitro) else "raw",
        "checkpoint": None if nitro.checkpoint_source is None else _named(nitro.checkpoint_source),
    }
    return {**facts, **(_loaded(nitro) if nitro.run_id is None else _trained(nitro))}


def _named(text: str) -> str:
    """A source without the folders of this machine: a run's checkpoint as `<run>/checkpoints/<name>`."""
    path = Path(text)
    if path.parent.name == "checkpoints":
        return "/".join(path.parts[-3:])
    return path.name if holds_machine_path(text) else text


def _page(url: Any) -> Any:
    """A tracker's page; the path of a local one says nothing elsewhere."""
    return None if holds_machine_path(url) else url


def _reads_ema(nitro: Handle) -> bool:
    """Whether what is exported is an exponential moving average: the handle's, or one loaded as its weights."""
    if nitro.ema is not None and nitro.plan.experiment.eval_weights != "raw":
        return True
    return nitro.loads_ema and nitro.plan.source is not None and nitro.run_id is None


def _trained(nitro: Handle) -> dict[str, Any]:
    """The origin of weights that this handle trained itself."""
    facts: dict[str, Any] = {
        "weights_from": "trained by this handle",
        "run": nitro.run_id,
        "trained": {"epoch": nitro.epoch, "step": nitro.step, "metrics": dict(nitro.metrics)},
        "trained_run_id": getattr(nitro.logger, "run_id", None),
        "trained_run_url": _page(getattr(nitro.logger, "run_url", None)),
    }
    source = nitro.plan.source
    if source is not None:
        facts["resumed_from" if source.kind == "resume" else "warm_started_from"] = _named(source.text)
        if source.averaged_from is not None:
            facts["averaged_from"] = source.averaged_from.as_json()
    return facts


def _loaded(nitro: Handle) -> dict[str, Any]:
    """The origin of weights that came from elsewhere, or of fresh ones."""
    source = nitro.plan.source
    if source is None:
        return {"weights_from": "fresh initialisation", "run": None}
    meta = source.record.meta
    facts: dict[str, Any] = {
        "weights_from": _KINDS[source.kind],
        "run": None if source.ref is None else source.ref.run,
        "trained": {"epoch": meta.epoch, "step": meta.step, "metrics": meta.metrics},
    }
    if source.averaged_from is not None:
        facts["weights_from"] = "average of checkpoints"
        facts["averaged_from"] = source.averaged_from.as_json()
        facts["run"] = source.averaged_from.run
    logger = meta.logger
    facts["trained_run_id"] = None if logger is None else logger.run_id
    facts["trained_run_url"] = None if logger is None else _page(logger.run_url)
    return facts
