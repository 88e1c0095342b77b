"""`nitro devices`: what JAX sees."""

from __future__ import annotations

from typing import Any

from nitro_cli.cli.output import Output
from nitro_cli.errors import ExitCode

__all__ = ["run"]


def run(output: Output) -> int:
    """The devices JAX sees: backend, kind, memory, and how many a run will use."""
    import jax

    from nitro_cli.run import setup_devices

    report = setup_devices()
    rows = [_described(device) for device in jax.local_devices()]
    if output.json:
        output.document(backend=report.backend, n_devs=report.n_devs, devices=rows)
        return ExitCode.OK
    from nitro_cli.cli.render.tables import table

    shown = [[row["name"], row["kind"], _gib(row["memory_bytes"]), _gib(row["memory_in_use"])] for row in rows]
    output.show(table(["device", "kind", "memory", "in use"], shown, right=(2, 3)))
    output.note(f"backend {report.backend}; a run uses {report.n_devs} of {len(rows)}")
    return ExitCode.OK


def _described(device: Any) -> dict[str, Any]:
    stats = device.memory_stats() or {}
    return {
        "name": str(device),
        "id": device.id,
        "kind": device.device_kind,
        "memory_bytes": stats.get("bytes_limit"),
        "memory_in_use": stats.get("bytes_in_use"),
    }


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f} GiB"
