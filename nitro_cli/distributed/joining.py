"""Training by several processes: how they find each other, and how they part."""

from __future__ import annotations

import atexit
import socket

import jax

from nitro_cli.distributed.peers import join_peers, leave_now, peers
from nitro_cli.errors import ConfigError

__all__ = ["setup_distributed"]

SHUTDOWN_SECONDS = 3600
"""How long JAX waits at the end for the others: the watch over them notices earlier if one is gone."""


def setup_distributed(
    coordinator: str | None = None,
    processes: int | None = None,
    process_index: int | None = None,
    *,
    timeout: int = 300,
) -> None:
    """Join the other processes of a run; every process calls it, before its first array.

    In an environment that JAX knows (SLURM, Open MPI, Kubernetes, Cloud TPU) no argument is needed. Process 0 writes
    the run; a process that dies ends all others with an error that names it.

    Args:
        coordinator: `host:port` of process 0, a free port there.
        processes: how many there are.
        process_index: which of them this one is, from 0.
        timeout: seconds to wait for the others.

    Raises:
        ConfigError: some of the arguments are missing and the environment does not say them, an argument is wrong, JAX
            has already made an array, or the others did not come in time.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-index": process_index}
    missing = [flag for flag, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise ConfigError(
            f"{', '.join(missing)} is missing" if len(missing) == 1 else f"{', '.join(missing)} are missing",
            why=f"given was {', '.join(flag for flag in given if flag not in missing)}: the three belong together",
            fix="give all three, or none where a scheduler started the processes",
        )
    if not missing:
        _check(coordinator, processes, process_index)
    # Its handler would take SIGTERM, which stops a run with its state saved.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process_index,
            initialization_timeout=timeout,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            cluster_detection_method=None if missing else "deactivate",
        )
    except (ValueError, RuntimeError) as error:
        raise _refused(error, bool(missing)) from error
    atexit.register(_part)
    if jax.process_count() > 1:
        join_peers(jax.process_index(), jax.process_count(), _main_host(coordinator))


def _check(coordinator: str | None, processes: int | None, process_index: int | None) -> None:
    assert coordinator is not None
    assert processes is not None
    assert process_index is not None
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--coordinator {coordinator} is no host:port", fix="such as --coordinator node1:29500")
    if not 0 <= process_index < processes:
        raise ConfigError(
            f"process {process_index} of {processes} does not exist",
            fix="--process-index counts from 0 to --processes - 1",
        )


def _refused(error: Exception, detecting: bool) -> ConfigError:
    text = str(error).splitlines()[0]
    if detecting and ("should be defined" in text or "must be defined" in text):
        return ConfigError(
            "the environment does not say who the other processes are",
            why="no SLURM, Open MPI, Kubernetes or Cloud TPU job was found",
            fix="give --coordinator HOST:PORT --processes N --process-index I in each process",
        )
    if "before any JAX" in text:
        return ConfigError(
            "JAX was already in use when the processes were to be joined",
            why=text,
            fix="call setup_distributed before any other work with JAX; make no array while a module is imported",
        )
    return ConfigError("the processes could not be joined", why=text, fix="check the coordinator's address and port")


def _main_host(coordinator: str | None) -> str:
    """Where process 0 is: JAX keeps the address that the environment gave."""
    if coordinator is None:
        from jax._src.distributed import global_state

        coordinator = global_state.coordinator_address
    return coordinator.rpartition(":")[0].strip("[]") if coordinator else socket.gethostname()


def _part() -> None:
    """At the end of the interpreter: leave at once after a failure, else when all are done."""
    leave_now()
    found = peers()
    if found is not None:
        found.close()
    jax.distributed.shutdown()
