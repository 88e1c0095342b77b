"""Where an artefact comes from, merged weakest first: framework, repository, model, call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import has_hook
from nitro_cli.run import fields_by_kind, versions

if TYPE_CHECKING:
    from nitro_cli.run import Nitro

__all__ = ["merged_provenance"]

_KINDS = {"weights": "checkpoint", "resume": "resumed checkpoint", "handle": "live handle"}


def merged_provenance(nitro: Nitro, repository: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
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
    if has_hook(e, "export_provenance_extra"):
        own = e.export_provenance_extra(checkpoint=nitro.checkpoint_source)
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"`export_provenance_extra` returned {type(own).__name__}",
                fix="return a mapping of names to values",
            )
    return {**_framework(nitro), **repository, **own, **call}


def _framework(nitro: Nitro) -> dict[str, Any]:
    parts = nitro.parts
    facts: dict[str, Any] = {
        "framework": "nitro",
        "versions": versions(),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "experiment": nitro.import_path,
        "config": fields_by_kind(nitro.experiment),
        "preset": parts.preset,
        "seed": parts.seed,
        "weights": "ema" if nitro.carry.ema is not None and parts.experiment.eval_weights != "raw" else "raw",
        "run": nitro.run_id,
        "checkpoint": nitro.checkpoint_source,
    }
    source = parts.source
    if source is None:
        facts["weights_from"] = "trained by this handle" if nitro.run_id is not None else "fresh initialisation"
        return facts
    meta = source.record.meta
    facts["weights_from"] = {"weights": "checkpoint", "resume": "resumed checkpoint", "handle": "live handle"}[
        source.kind
    ]
    if source.averaged_from is not None:
        facts["weights_from"] = "average of checkpoints"
        facts["averaged_from"] = dict(source.averaged_from)
    facts["trained"] = {"epoch": meta.get("epoch"), "step": meta.get("step"), "metrics": meta.get("metrics")}
    if source.ref is not None:
        facts["run"] = source.ref.run
    logger = meta.get("logger") or {}
    facts["trained_run_id"], facts["trained_run_url"] = logger.get("run_id"), logger.get("run_url")
    return facts
