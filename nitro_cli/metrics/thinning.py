"""Which rows of a long table to show."""

from __future__ import annotations

__all__ = ["thin_rows"]


def thin_rows(n: int, best: int | None, budget: int) -> list[int | None]:
    """Choose which of `n` rows to show in `budget` lines.

    Windows around the first, the best and the last row grow by one row in turn until the budget is
    spent; the best one grows in both directions.

    Args:
        n: number of rows.
        best: index of the best row, None when there is none.
        budget: lines there are; a gap takes one.

    Returns:
        Row indices in ascending order with None for each gap. At least one row when there is one,
        even if the budget is smaller.
    """
    if n <= max(budget, 0):
        return list(range(n))
    shown = _seed(n, best, budget)
    for reach in range(1, n):
        around = [reach, n - 1 - reach] if best is None else [reach, best - reach, best + reach, n - 1 - reach]
        wanted = [row for row in around if 0 <= row < n and row not in shown]
        grown = False
        for row in wanted:
            if _lines(shown | {row}, n) <= budget:
                shown.add(row)
                grown = True
        if wanted and not grown:
            break
    return _with_gaps(shown, n)


def _seed(n: int, best: int | None, budget: int) -> set[int]:
    main = n - 1 if best is None else best
    for rows in ({0, main, n - 1}, {main, n - 1}):
        if _lines(rows, n) <= budget:
            return rows
    return {main}


def _with_gaps(shown: set[int], n: int) -> list[int | None]:
    out: list[int | None] = []
    before = -1
    for row in [*sorted(shown), n]:
        if row - before == 2:
            # One hidden row takes the line its gap would take.
            out.append(row - 1)
        elif row - before > 2:
            out.append(None)
        if row < n:
            out.append(row)
        before = row
    return out


def _lines(shown: set[int], n: int) -> int:
    return len(_with_gaps(shown, n))
