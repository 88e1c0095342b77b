"""Which rows of a long history are shown."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.metrics import thin_rows


def test_all_rows_are_shown_when_they_fit():
    assert thin_rows(5, 2, 5) == [0, 1, 2, 3, 4]
    assert thin_rows(0, None, 5) == []


def test_windows_grow_around_first_best_and_last():
    # The figure of the reference: 25 epochs, the best the 20th, in 15 lines.
    shown = [row if row is None else row + 1 for row in thin_rows(25, 19, 15)]
    assert shown == [1, 2, 3, 4, 5, None, *range(17, 26)]


@given(st.integers(1, 300), st.integers(0, 299), st.integers(5, 60))
def test_first_best_and_last_are_shown_within_the_budget(n, best, budget):
    best = best % n
    lines = thin_rows(n, best, budget)
    rows = [row for row in lines if row is not None]
    assert len(lines) <= max(budget, 1)
    assert {0, best, n - 1} <= set(rows)
    assert rows == sorted(set(rows))
    for before, after in itertools.pairwise(lines):
        assert None in (before, after) or after == before + 1
    # A gap stands for two rows or more: one alone would fit into its line.
    for before, gap, after in zip(lines, lines[1:], lines[2:], strict=False):
        if gap is None:
            assert after - before > 2


@given(st.integers(2, 50), st.integers(0, 49), st.integers(-5, 4))
def test_a_tiny_budget_keeps_the_best_row(n, best, budget):
    assert best % n in thin_rows(n, best % n, budget)


def test_without_a_best_row_the_ends_share_the_lines():
    assert thin_rows(100, None, 7) == [0, 1, 2, None, 97, 98, 99]
