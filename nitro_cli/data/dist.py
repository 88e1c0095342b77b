"""Which process this is, and which part of an index range is its own."""

from __future__ import annotations

from dataclasses import dataclass

from nitro_cli.errors import DataError

__all__ = ["Dist"]


@dataclass(frozen=True)
class Dist:
    """The argument of `build_data`: this process among all processes of the run.

    Args:
        process_index: number of this process, from 0.
        process_count: number of processes; 1 on one machine.

    Raises:
        DataError: the count is not positive or the index is outside of it.
    """

    process_index: int = 0
    process_count: int = 1

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in (self.process_index, self.process_count)):
            raise DataError(f"process {self.process_index!r} of {self.process_count!r}", fix="give whole numbers")
        if self.process_count < 1 or not 0 <= self.process_index < self.process_count:
            raise DataError(
                f"process {self.process_index} of {self.process_count} does not exist",
                where="Dist(process_index=, process_count=)",
                fix="use a count of at least 1 and an index from 0 to count - 1",
            )

    def range(self, n: int) -> range:
        """Return this process's contiguous part of `range(n)`.

        The parts of all processes cover `range(n)` once, in order; their sizes differ by at most
        one, the first `n % process_count` processes holding the longer ones.

        Args:
            n: how many indices there are in all.

        Raises:
            DataError: `n` is negative.
        """
        if n < 0:
            raise DataError(f"cannot cut a range of {n} indices", where="Dist.range(n)", fix="give n >= 0")
        share, rest = divmod(n, self.process_count)
        start = self.process_index * share + min(self.process_index, rest)
        return range(start, start + share + (1 if self.process_index < rest else 0))
