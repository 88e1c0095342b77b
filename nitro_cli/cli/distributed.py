"""One command run by several processes: they join, and all but the main one keep silent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nitro_cli.cli.output import Output
from nitro_cli.errors import ConfigError

__all__ = ["joined_processes"]


@contextlib.contextmanager
def joined_processes(
    output: Output, distributed: bool, coordinator: str | None, processes: int | None, process_index: int | None
) -> Iterator[None]:
    """Join the other processes; inside, what goes wrong here ends the others too.

    Args:
        output: the streams; quiet from here on in every process but the main one.
        distributed: whether `--distributed` was given.
        coordinator, processes, process_index: the flags that stand for a scheduler's environment.

    Raises:
        ConfigError: the flags do not go together, or the processes cannot be joined.
    """
    if not distributed:
        raise ConfigError(
            "--coordinator, --processes and --process-index go with --distributed", fix="add --distributed"
        )
    from nitro_cli.distributed import is_main, setup_distributed, watched

    setup_distributed(coordinator, processes, process_index)
    output.silent = not is_main()
    with watched():
        yield
