"""What became of smoke runs, told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nitro_cli.cli.failure import classify
from nitro_cli.cli.render.errors import error_lines, folded_traceback, full_traceback
from nitro_cli.display.progress_state import duration
from nitro_cli.errors import ExitCode

if TYPE_CHECKING:
    from nitro_cli.cli.output import Output
    from nitro_cli.smoke_run import SmokeResult

__all__ = ["tell_smoke"]


def tell_smoke(output: Output, results: Sequence[SmokeResult]) -> int:
    """Show what became of smoke runs; the exit code is 1 when one failed."""
    failed = [result for result in results if not result.ok]
    if output.json:
        output.document(results=[_as_json(result) for result in results], failed=len(failed))
        return ExitCode.FAILED if failed else ExitCode.OK
    for result in results:
        seconds = sum(spent for _, spent, _ in result.steps)
        done = ", ".join(f"{name} ({detail})" if detail else name for name, _, detail in result.steps)
        outcome = "ok" if result.ok else f"FAILED in {result.failed_in}"
        output.text(f"{outcome}  {result.name}  {duration(seconds)}" + (f": {done}" if done else ""))
    for result in failed:
        assert result.failed is not None
        failure = classify(result.failed)
        output.complain(f"\n{result.name}, {result.failed_in}:")
        if output.debug:
            output.complain(full_traceback(result.failed))
        elif failure.kind == "user":
            output.complain(folded_traceback(result.failed))
        output.complain_lines(error_lines(failure))
    return ExitCode.FAILED if failed else ExitCode.OK


def _as_json(result: SmokeResult) -> dict[str, Any]:
    steps = [{"name": name, "seconds": round(seconds, 3), "detail": detail} for name, seconds, detail in result.steps]
    error = None
    if result.failed is not None:
        failure = classify(result.failed)
        error = {**failure.error.as_json(), "error": type(result.failed).__name__, "step": result.failed_in}
    about = {"experiment": result.experiment, "preset": result.preset, "ok": result.ok}
    return {**about, "steps": steps, "error": error}
