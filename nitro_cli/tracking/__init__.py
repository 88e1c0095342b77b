"""Where numbers are written: JSON Lines and trackers. Nothing here imports JAX."""

from nitro_cli.tracking.json_logger import JsonLogger
from nitro_cli.tracking.jsonlines import JsonLinesWriter, check_own_file, read_jsonl, truncate_to
from nitro_cli.tracking.opening import open_logger
from nitro_cli.tracking.tee import TeeLogger, files_outside
from nitro_cli.tracking.verbs import (
    REQUIRED_VERBS,
    LiveLogger,
    UserLogger,
    check_logger,
    logger_identity,
    reattach_logger,
)

__all__ = [
    "REQUIRED_VERBS",
    "JsonLinesWriter",
    "JsonLogger",
    "LiveLogger",
    "TeeLogger",
    "UserLogger",
    "check_logger",
    "check_own_file",
    "files_outside",
    "logger_identity",
    "open_logger",
    "read_jsonl",
    "reattach_logger",
    "truncate_to",
]
