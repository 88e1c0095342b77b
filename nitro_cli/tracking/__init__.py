"""Where numbers are written: JSON Lines and trackers. Nothing here imports JAX."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.experiment import (
        JSONLogger as JSONLogger,
        MLflowLogger as MLflowLogger,
        Tee as Tee,
        TensorBoardLogger as TensorBoardLogger,
        TrackioLogger as TrackioLogger,
        WandbLogger as WandbLogger,
    )
    from nitro_cli.tracking.json_logger import JsonLogger
    from nitro_cli.tracking.jsonlines import JsonLinesWriter, check_own_file, truncate_to
    from nitro_cli.tracking.opening import open_logger
    from nitro_cli.tracking.tee import files_outside
    from nitro_cli.tracking.verbs import LiveLogger, UserLogger, check_logger, logger_identity, reattach_logger
