"""`nitro resume`: rebuild a run from its own configuration and continue it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nitro_cli.cli.knob_flags import given, split_limit, with_knob_flags
from nitro_cli.cli.options import CacheDir, ExperimentCode, RunChoice, RunDir, Sets, Unsets
from nitro_cli.cli.output import Output
from nitro_cli.cli.run_places import find_run
from nitro_cli.errors import ConfigError

__all__ = ["run"]

RESUME_KNOBS = (
    "max_epochs", "learning_rate", "weight_decay", "gradient_clip_norm", "max_time", "n_devs", "accum",
    "log_every_n_steps", "checkpoint_every_n_steps", "checkpoint_every_minutes",
)  # fmt: skip


class From(StrEnum):
    """Which checkpoint to go on from."""

    LATEST = "latest"
    BEST = "best"


@with_knob_flags(RESUME_KNOBS)
def run(
    output: Output,
    run_dir: RunDir = None,
    run_id: RunChoice = None,
    from_: Annotated[From, typer.Option("--from", help="Checkpoint to go on from.")] = From.LATEST,
    sets: Sets = None,
    unsets: Unsets = None,
    experiment: ExperimentCode = None,
    cache_dir: CacheDir = None,
    **knobs: object,
) -> int:
    """Continue a run: the experiment is rebuilt from the run's own configuration, what is given here set over it.

    The values given here stay the run's, from the first checkpoint written on; --max-time is for this call alone.
    """
    from nitro_cli.cli.training import train_resolved
    from nitro_cli.registry import check_logger_stays_inside, read_config

    place = find_run(run_dir, run_id, with_checkpoints=True)
    if not place.has_config:
        raise ConfigError(
            f"the run {place.id} has no config.toml",
            where=str(place.path),
            fix=f"name the experiment: `nitro train EXP --run-dir {place.root} --resume {place.id}:{from_}`",
        )
    if not place.chosen:
        output.note(f"run {place.id} of {place.root}")
    lasting, once = split_limit(given(knobs))
    flags = {"run_dir": str(Path(place.root)), **lasting}
    resolved = read_config(place.config, sets or (), unsets or (), flags, experiment=experiment)
    check_logger_stays_inside(resolved, place.path)
    return train_resolved(output, resolved, cache_dir=cache_dir, named=experiment, resume=f"{place.id}:{from_}", **once)
