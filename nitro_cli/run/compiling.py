"""Compiling the programs of a run, in the phase `Compiling`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nitro_cli.programs import Program, check_compile_options, compile_program
from nitro_cli.run.phases import Phase, PhaseName, PhaseState
from nitro_cli.run.progress import Progress

__all__ = ["Compiler"]


class Compiler:
    """Compiles the programs of one run through the cache.

    Args:
        phases: of the run, which is `Compiling` meanwhile.
        options: XLA options for every program.

    Attributes:
        programs: the first program of each purpose (`train`, `eval`, `metrics`, ...).

    Raises:
        ConfigError: an option is none of XLA's, or has no value that it can have.
    """

    def __init__(self, phases: PhaseState, options: Mapping[str, Any] | None) -> None:
        self.options = check_compile_options(options)
        self.programs: dict[str, Program] = {}
        self._phases = phases

    def compile(
        self, purpose: str, function: Any, args: tuple[Any, ...], *, donate_argnums: tuple[int, ...] = ()
    ) -> Program:
        """The program of a function for such arguments."""
        before = self._phases.current
        with Progress.phase(f"compiling {purpose}"):
            program = compile_program(
                purpose,
                function,
                args,
                donate_argnums=donate_argnums,
                options=self.options,
                on_compile=self.announce,
            )
        if self._phases.current.name is PhaseName.COMPILING:
            self._phases.set(before)
        self.programs.setdefault(purpose, program)
        return program

    def announce(self, purpose: str) -> None:
        """Say that a program is about to be compiled."""
        self._phases.set(Phase(PhaseName.COMPILING, purpose))
