"""`nitro train --dry-run`: what training would do, told and not done."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.configuration import configuration_document, configuration_lines
from nitro_cli.cli.options import use_program_cache
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.reporter import progress_shown
from nitro_cli.cli.render.tables import number, size, table
from nitro_cli.errors import ExitCode

if TYPE_CHECKING:
    from nitro_cli.registry import Resolved
    from nitro_cli.run import DiskNeed, DryRun, ProgramUse

__all__ = ["dry_run_resolved"]


def dry_run_resolved(output: Output, resolved: Resolved, *, cache_dir: str | None = None, **words: Any) -> ExitCode:
    """Build and compile what a training would, and show what it comes to; arguments as for `train_resolved`."""
    with progress_shown(output):
        use_program_cache(cache_dir)
        from nitro_cli.run import dry_run

        found = dry_run(resolved, **words)
    resolved = found.resolved
    if output.json:
        output.document(**configuration_document(resolved), **found.as_json())
        return ExitCode.OK
    width = shutil.get_terminal_size((80, 24)).columns
    head = f"{resolved.name}, preset {resolved.preset or 'none'}"
    lines = configuration_lines(resolved, every_origin=True, documented=False, width=width)
    output.text("\n".join([head, *lines]))
    output.text(f"\nsetup report\n{found.report}\n")
    output.show(table(["what it comes to", ""], _facts(found), fold=(1,)))
    output.text("")
    columns = ["program", "comes from", "FLOPs", "peak memory"]
    output.show(table(columns, [_program(use) for use in found.programs], right=(2, 3), fold=(1,)))
    output.note("a dry run: nothing was trained, and no run was made")
    return ExitCode.OK


def _facts(found: DryRun) -> list[list[str]]:
    steps = f"{found.total_steps:,}, {found.steps_per_epoch:,} an epoch"
    flops = f"{number(found.flops_per_step)} per step" if found.flops_per_step is not None else "not known here"
    peak = size(found.peak_bytes) if found.peak_bytes is not None else "not known here"
    return [
        ["parameters", f"{found.parameters:,}, {size(found.parameter_bytes)}"],
        ["train state", size(found.state_bytes)],
        ["steps", steps + (f"; {found.step:,} taken already" if found.step else "")],
        ["FLOPs", flops],
        ["peak memory", f"{peak} on the device, predicted"],
        ["checkpoints", _disk(found.disk)],
    ]


def _disk(disk: DiskNeed | None) -> str:
    if disk is None:
        return "none are written"
    each = f"{size(disk.bytes_per_checkpoint)} each"
    free = f"{size(disk.free)} are free at {disk.place}"
    if disk.bytes is None:
        return f"{each}, of a number that has no bound; {free}"
    return f"{size(disk.bytes)} for at most {disk.checkpoints} of {each}; {free}"


def _program(use: ProgramUse) -> list[str | None]:
    counts = ((use.compiled, "compiled now"), (use.from_disk, "from the cache"), (use.from_memory, "in this process"))
    held = [(count, text) for count, text in counts if count]
    several = sum(count for count, _ in held) > 1
    said = ", ".join(f"{text} ({count})" if several else text for count, text in held)
    if use.compiled:
        said += f", {use.seconds:.1f} s"
    if use.callback:
        said += "; calls back into Python, never cached"
    flops = None if use.flops is None else number(use.flops)
    return [use.name, said, flops, None if use.peak_bytes is None else size(use.peak_bytes)]
