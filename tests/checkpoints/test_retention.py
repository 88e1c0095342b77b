from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.checkpoints import ManifestEntry, Retention
from nitro_cli.checkpoints.retention import warn_about_others
from nitro_cli.errors import NitroWarning
from nitro_cli.experiment import Best, Epochs, Every, Last, Selector

NAN = math.nan


def entry(
    epoch: int,
    score: float | None = None,
    run: str = "aaaaaaaa",
    metric: str | None = "loss",
    mode: str | None = "min",
    resume_point: bool = False,
    step: int | None = None,
) -> ManifestEntry:
    return ManifestEntry(
        path=f"{run}/checkpoints/epoch-{epoch}{'-resume' if resume_point else ''}-{step}",
        run=run,
        epoch=epoch,
        step=epoch * 10 if step is None else step,
        score=score,
        metric=None if resume_point else metric,
        mode=None if resume_point else mode,
        written=float(epoch),
        resume_point=resume_point,
    )


def rule(*keep: Selector, metric: str | None = "loss", mode: str | None = "min", scope: str = "run") -> Retention:
    return Retention(keep, metric, mode, scope)


def train(retention: Retention, scores: Sequence[float | None], run: str = "aaaaaaaa") -> list[ManifestEntry]:
    """What a directory holds after epochs with these scores."""
    held: list[ManifestEntry] = []
    for epoch, score in enumerate(scores, start=1):
        new = entry(epoch, score, run)
        if retention.admits(held, new):
            held.append(new)
            gone = {e.path for e in retention.displaced(held, run)}
            held = [e for e in held if e.path not in gone]
    return held


def epochs(entries: Sequence[ManifestEntry]) -> list[int]:
    return [e.epoch for e in entries]


@pytest.mark.parametrize(
    ("keep", "scores", "expected"),
    [
        ((Best(3), Last(1)), [5, 4, 3, 2, 1, 6, 7], [3, 4, 5, 7]),
        ((Best(1),), [3, 1, 2, 4], [2]),
        ((Last(2),), [1, 2, 3, 4], [3, 4]),
        ((Every(2),), [1, 2, 3, 4, 5], [2, 4]),
        ((Epochs(1, 3), Last(1)), [9, 9, 9, 9], [1, 3, 4]),
        ((Best(2), Every(3)), [1, 2, 3, 4, 5, 6], [1, 2, 3, 6]),
        ((Last(1),), [None, None, None], [3]),
    ],
)
def test_the_union_of_the_selectors_is_kept(
    keep: tuple[Selector, ...], scores: list[float | None], expected: list[int]
) -> None:
    assert epochs(train(rule(*keep), scores)) == expected


def test_max_mode_keeps_the_highest() -> None:
    held = []
    retention = rule(Best(2), metric="acc", mode="max")
    for epoch, score in enumerate([0.1, 0.9, 0.5, 0.7], start=1):
        held.append(entry(epoch, score, metric="acc", mode="max"))
        gone = {e.path for e in retention.displaced(held, "aaaaaaaa")}
        held = [e for e in held if e.path not in gone]
    assert epochs(held) == [2, 4]


def test_a_nan_never_deletes_the_true_best() -> None:
    assert epochs(train(rule(Best(1), Last(1)), [3, 1, NAN, NAN])) == [2, 4]
    assert epochs(train(rule(Best(3), Last(1)), [3, 1, NAN, 2, NAN])) == [1, 2, 4, 5]


def test_a_nan_is_not_written_once_the_places_of_best_are_taken() -> None:
    assert epochs(train(rule(Best(2)), [3, 1, NAN, math.inf])) == [1, 2]


def test_the_last_finite_checkpoint_outlives_every_nan_after_it() -> None:
    assert epochs(train(rule(Last(1)), [1, 2, NAN, NAN, NAN])) == [2, 5]
    assert epochs(train(rule(Last(2)), [1, NAN, NAN, NAN, 2, 3])) == [5, 6]


def test_an_epoch_that_no_selector_admits_is_not_written() -> None:
    held = [entry(1, 1.0), entry(2, 2.0)]
    assert not rule(Best(2)).admits(held, entry(3, 3.0))
    assert rule(Best(2)).admits(held, entry(3, 1.5))
    assert not rule(Every(10)).admits(held, entry(3, 0.0))
    assert not rule().admits(held, entry(3, 0.0))


def test_entries_scored_under_another_metric_or_mode_are_neither_ranked_nor_deleted() -> None:
    held = [entry(1, 0.1, metric="acc", mode="max"), entry(2, 0.2, mode="max"), entry(3, 5.0), entry(4, 4.0)]
    assert epochs(rule(Best(1)).displaced(held, "aaaaaaaa")) == [3]


def test_an_entry_without_a_metric_counts_as_comparable() -> None:
    held = [entry(1, 9.0, metric=None, mode=None), entry(2, 1.0)]
    assert epochs(rule(Best(1)).displaced(held, "aaaaaaaa")) == [1]


def test_another_runs_checkpoints_are_never_touched_under_scope_run() -> None:
    held = [entry(1, 9.0, run="bbbbbbbb"), entry(2, 1.0)]
    assert rule(Best(1), Last(1)).displaced(held, "aaaaaaaa") == []


def test_scope_dir_ranks_all_runs_and_spares_the_one_at_work() -> None:
    held = [entry(1, 9.0, run="bbbbbbbb"), entry(1, 8.0, run="cccccccc"), entry(2, 1.0)]
    retention = rule(Best(1), scope="dir")
    gone = retention.displaced(held, "aaaaaaaa", live=lambda run: run == "cccccccc")
    assert [e.run for e in gone] == ["bbbbbbbb"]


def test_scope_dir_never_deletes_what_another_run_has_unscored() -> None:
    other = [entry(1, None, run="bbbbbbbb"), entry(1, resume_point=True, run="bbbbbbbb")]
    assert rule(Best(1), scope="dir").displaced([*other, entry(2, 1.0)], "aaaaaaaa") == []


def test_a_resume_point_is_always_admitted_and_never_ranked() -> None:
    point = entry(3, resume_point=True)
    retention = rule(Best(1), Last(1))
    assert retention.admits([entry(1, 1.0)], point)
    held = [entry(1, 1.0), entry(2, 2.0), point]
    assert retention.displaced(held, "aaaaaaaa") == []


def test_only_the_newest_resume_point_is_kept_and_only_until_a_later_commit() -> None:
    retention = rule(Last(1))
    first, second = entry(1, resume_point=True, step=3), entry(1, resume_point=True, step=6)
    assert retention.displaced([first, second], "aaaaaaaa") == [first]
    assert retention.displaced([second, entry(1, 1.0, step=10)], "aaaaaaaa") == [second]


def test_another_runs_resume_point_stays() -> None:
    point = entry(1, resume_point=True, run="bbbbbbbb")
    assert rule(Last(1)).displaced([point, entry(9, 1.0)], "aaaaaaaa") == []


class Even(Selector):
    def select(self, entries: Sequence[ManifestEntry], mode: str | None = None) -> list[ManifestEntry]:  # type: ignore[override]
        return [e for e in entries if e.epoch % 2 == 0]


def test_a_users_selector_decides_with_select_alone() -> None:
    assert epochs(train(rule(Even()), [5, 4, 3, 2])) == [2, 4]


scores = st.one_of(st.none(), st.floats(), st.just(NAN))
selectors = st.lists(
    st.one_of(
        st.integers(1, 4).map(Best),
        st.integers(1, 4).map(Last),
        st.integers(1, 4).map(Every),
        st.integers(1, 8).map(Epochs),
    ),
    min_size=1,
    max_size=3,
)


@given(selectors, st.lists(scores, min_size=1, max_size=15))
def test_what_is_kept_is_what_the_selectors_pick_of_the_whole_history(
    keep: list[Selector], series: list[float | None]
) -> None:
    """Deciding epoch by epoch loses nothing that a look at all epochs at once would have kept."""
    held = train(rule(*keep), series)
    whole = [entry(i, score) for i, score in enumerate(series, start=1)]
    wanted = {e.epoch for selector in keep for e in selector.select(whole, "min")}
    written = {e.epoch for e in held}
    # An unbounded selector misses nothing; Best may leave out a score that is not finite or missing.
    finite = {e.epoch for e in whole if e.finite}
    assert wanted & finite <= written
    extra = written - wanted
    assert len(extra) <= 1, "only the newest finite one may be kept beyond what is picked"


@given(selectors, st.lists(st.floats(), min_size=1, max_size=15))
def test_some_finite_checkpoint_is_kept_once_one_was_written(keep: list[Selector], series: list[float]) -> None:
    retention = rule(*keep)
    held: list[ManifestEntry] = []
    had_finite = False
    for epoch, score in enumerate(series, start=1):
        new = entry(epoch, score)
        if retention.admits(held, new):
            held.append(new)
            had_finite |= new.finite
            gone = {e.path for e in retention.displaced(held, new.run)}
            held = [e for e in held if e.path not in gone]
        assert not had_finite or any(e.finite for e in held)


@pytest.mark.parametrize(
    ("keep", "max_epochs", "expected"),
    [
        ((Best(3), Last(1)), 100, 6),
        ((Best(3), Last(1)), 2, 4),
        ((Every(10),), 100, 12),
        ((Epochs(range(1, 6)),), 100, 7),
        ((Best(3), Every(10)), None, None),
    ],
)
def test_capacity_counts_what_is_kept_one_in_flight_and_one_resume_point(
    keep: tuple[Selector, ...], max_epochs: int | None, expected: int | None
) -> None:
    assert rule(*keep).capacity(max_epochs) == expected


def test_setup_warns_of_what_scope_dir_may_delete_and_of_other_metrics() -> None:
    held = [entry(1, 9.0, run="bbbbbbbb"), entry(1, 0.5, run="cccccccc", metric="acc", mode="max")]
    with pytest.warns(NitroWarning) as caught:
        warn_about_others(held, rule(Best(1), scope="dir"), "aaaaaaaa", "runs/Toy")
    texts = [str(warning.message) for warning in caught]
    assert "1 checkpoint(s) of bbbbbbbb may be deleted" in texts[0]
    assert "1 under acc (max)" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_others(held, rule(Best(1)), "aaaaaaaa", "runs/Toy")
