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
    heads = [0, n - 1] if best is None else [0, best, best, n - 1]
    moves = [1, -1] if best is None else [1, -1, 1, -1]
    grown = True
    while grown:
        grown = False
        for i, move in enumerate(moves):
            row = heads[i]
            while 0 <= row < n and row in shown:
                row += move
            if not 0 <= row < n:
                continue
            if _lines(shown | {row}, n) <= budget:
                shown.add(row)
                heads[i] = row
                grown = True
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
