"""Selectors: what they pick, what they admit, and their text form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Average, Best, Epochs, Every, Last, Selector, parse_selector, rank


@dataclass(frozen=True)
class Entry:
    epoch: int
    score: float | None = None
    step: int = 0
    metric: str | None = "loss"
    mode: str | None = "min"
    written: float = 0.0
    run: str = "a"
    resume_point: bool = False
    sequence: int = 0


def entries(*scores, **common):
    return [Entry(epoch=i, score=s, step=10 * i, written=float(i), **common) for i, s in enumerate(scores, start=1)]


def epochs(picked):
    return [entry.epoch for entry in picked]


def test_best_is_the_k_lowest_or_highest_best_first():
    pool = entries(3.0, 1.0, 2.0, 5.0)
    assert epochs(Best(2).select(pool, "min")) == [2, 3]
    assert epochs(Best(2).select(entries(3.0, 1.0, 2.0, 5.0, mode="max"), "max")) == [4, 1]
    assert epochs(Best(9).select(pool, "min")) == [2, 3, 1, 4]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_ranks_last(mode, bad):
    pool = entries(bad, 1.0, 2.0, mode=mode)
    assert epochs(rank(pool, mode))[-1] == 1
    assert epochs(Best(1).select(pool, mode)) == [2 if mode == "min" else 3]


def test_unscored_entries_and_resume_points_are_never_ranked():
    pool = [*entries(1.0, None), Entry(3, 0.0, resume_point=True)]
    assert epochs(Best(5).select(pool, "min")) == [1]
    same_mode = [Entry(1, 0.1, metric="error", written=1), Entry(2, 0.9, metric="loss", written=2)]
    assert epochs(Best(5).select(same_mode, "min")) == [2]


def test_only_entries_of_the_newest_scored_metric_and_mode_are_ranked():
    pool = [
        Entry(1, 0.1, metric="loss", mode="min", written=1),
        Entry(2, 0.9, metric="acc", mode="max", written=2),
        Entry(3, 0.8, metric="acc", mode="max", written=3),
    ]
    assert epochs(Best(5).select(pool)) == [2, 3]
    assert epochs(Best(5).select(pool, "min")) == [1]
    same_mode = [Entry(1, 0.1, metric="error", written=1), Entry(2, 0.9, metric="loss", written=2)]
    assert epochs(Best(5).select(same_mode, "min")) == [2]


def test_equal_scores_keep_the_older_first():
    assert epochs(Best(2).select(entries(1.0, 1.0, 1.0), "min")) == [1, 2]


def test_best_among_ranks_only_what_the_other_selector_picks():
    pool = entries(0.0, 5.0, 3.0, 4.0)
    assert epochs(Best(1, among=Last(3)).select(pool, "min")) == [3]


def test_last_is_by_epoch_in_one_run_and_by_time_across_runs():
    shuffled = [Entry(3, written=1), Entry(1, written=9), Entry(2, written=5)]
    assert epochs(Last(2).select(shuffled)) == [3, 2]
    two_runs = [Entry(9, written=1, run="a"), Entry(2, written=2, run="b"), Entry(1, written=3, run="b")]
    assert epochs(Last(2).select(two_runs)) == [1, 2]


def test_every_and_epochs_pick_their_epochs_oldest_first():
    pool = entries(*[None] * 10)[::-1]
    assert epochs(Every(3).select(pool)) == [3, 6, 9]
    assert epochs(Epochs(range(1, 4), 8).select(pool)) == [1, 2, 3, 8]


def test_an_epoch_is_admitted_when_it_would_be_picked():
    pool = entries(3.0, 1.0, 2.0)
    assert Best(3).admits(pool, Entry(4, 2.5))
    assert not Best(3).admits(pool, Entry(4, 9.0))
    assert not Best(3).admits(pool, Entry(4, math.nan))
    assert Best(4).admits(pool, Entry(4, math.nan))
    assert not Best(9).admits(pool, Entry(4, None))
    assert Last(1).admits(pool, Entry(4))
    assert Every(2).admits(pool, Entry(4))
    assert not Every(3).admits(pool, Entry(4))
    assert Epochs(4).admits(pool, Entry(4))
    assert not Epochs(5).admits(pool, Entry(4))


def test_entries_of_another_metric_do_not_keep_an_epoch_out():
    pool = entries(0.0, 0.0, metric="old", mode="min")
    assert Best(1).admits(pool, Entry(3, 9.0, metric="loss", mode="min"))


@pytest.mark.parametrize("selector", [Best(3), Last(1), Every(2), Epochs(range(1, 9))])
def test_no_selector_admits_or_picks_a_resume_point(selector):
    point = Entry(2, 0.1, resume_point=True)
    assert not selector.admits([], point)
    assert selector.select([point], "min") == []


scores = st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=12)


@given(scores, st.integers(1, 5), st.sampled_from(["min", "max"]))
def test_best_equals_sorting_the_finite_scores_first(values, k, mode):
    pool = entries(*values, mode=mode)
    picked = Best(k).select(pool, mode)
    finite = sorted((v for v in values if v is not None and math.isfinite(v)), reverse=mode == "max")
    scored = [v for v in values if v is not None]
    assert [e.score for e in picked][: len(finite)] == finite[:k]
    assert len(picked) == min(k, len(scored))


@given(scores, st.integers(1, 4), st.sampled_from(["min", "max"]))
def test_best_admits_exactly_what_it_would_then_pick(values, k, mode):
    pool = entries(*values, mode=mode)
    new = Entry(len(values) + 1, 0.5, mode=mode, written=99.0)
    assert Best(k).admits(pool, new) == (new in Best(k).select([*pool, new], mode))


counts = st.integers(1, 10**6)
plain = st.one_of(
    counts.map(Best),
    counts.map(Last),
    counts.map(Every),
    st.lists(st.integers(1, 300), min_size=1, max_size=9).map(lambda e: Epochs(*e)),
)
selectors = st.recursive(plain, lambda inner: st.builds(Best, counts, among=inner), max_leaves=4)
sources = st.one_of(selectors, st.builds(Average, selectors, st.sampled_from([None, "best", "latest"])))


@given(sources)
def test_the_text_form_reads_back_as_the_same_selector(selector):
    assert parse_selector(str(selector)) == selector


@given(sources, st.lists(st.sampled_from(["", " ", "  "]), min_size=40, max_size=40))
def test_spaces_between_the_parts_mean_nothing(selector, spaces):
    text = str(selector)
    spaced = "".join(c + (spaces[i % 40] if c in "(),:=" else "") for i, c in enumerate(text))
    assert parse_selector(spaced) == selector


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_a_config_error(text):
    try:
        parsed = parse_selector(text)
    except ConfigError:
        return
    assert parse_selector(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("best(3)", Best(3)),
        ("best(k=3)", Best(3)),
        ("best()", Best(1)),
        ("best", Best(1)),
        ("last", Last(1)),
        ("last(n=4)", Last(4)),
        ("every(10)", Every(10)),
        ("epochs(1:5)", Epochs(1, 2, 3, 4, 5)),
        ("epochs(1, 3:4, 9)", Epochs(1, 3, 4, 9)),
        ("best(5, among=last(20))", Best(5, among=Last(20))),
        ("best(among=epochs(2:3))", Best(1, among=Epochs(2, 3))),
        ("average(last(10))", Average(Last(10))),
        ("average(last(10), state=best)", Average(Last(10), "best")),
    ],
)
def test_the_text_forms_of_the_specification(text, selector):
    assert parse_selector(text) == selector


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("bst(3)", "no selector 'bst'"),
        ("best(3", "missing at its end"),
        ("best(3))", "after its end"),
        ("best(0)", "at least 1"),
        ("best(-1)", "cannot read"),
        ("best(1.5)", "cannot read"),
        ("best(3, last(2))", "one argument without a name"),
        ("best(3, amng=last(2))", "no 'amng'"),
        ("best(3, among=3)", "no selector '3'"),
        ("best(k=3, k=3)", "twice"),
        ("best(3, k=3)", "twice"),
        ("last(1, 2)", "one argument"),
        ("epochs()", "no epoch"),
        ("epochs(5:1)", "backwards"),
        ("epochs(0)", "at least 1"),
        ("every()", "needs 'n'"),
        ("every", "missing"),
        ("average(average(last(1)))", "no selector"),
        ("average(last(1), state=newest)", "'best' or 'latest'"),
    ],
)
def test_what_is_no_selector_is_refused_with_its_text_and_the_reason(text, says):
    with pytest.raises(ConfigError, match="selector") as caught:
        parse_selector(text)
    assert says in caught.value.what
    assert repr(text) in caught.value.what


def test_a_misspelled_name_is_offered_the_nearest():
    with pytest.raises(ConfigError) as caught:
        parse_selector("epoch(3)")
    assert caught.value.nearest == ("epochs",)


def test_average_takes_its_layer_state_from_the_best_when_the_selector_ranks():
    assert Average(Best(3)).state_from == "best"
    assert Average(Last(3)).state_from == "latest"
    assert Average(Best(3), "latest").state_from == "latest"
    with pytest.raises(ConfigError):
        Average("last(3)")


def test_a_users_own_selector_writes_select_and_always_admits():
    class Odd(Selector):
        def select(self, entries, mode=None):
            return [e for e in entries if e.epoch % 2]

    assert epochs(Odd().select(entries(1.0, 2.0, 3.0))) == [1, 3]
    assert Odd().admits([], Entry(2))


@pytest.mark.parametrize("make", [lambda: Best(0), lambda: Last(True), lambda: Every(1.0), lambda: Epochs(0)])
def test_a_count_below_one_or_of_another_type_is_refused(make):
    with pytest.raises(ConfigError, match="at least 1"):
        make()
