"""Split plans: which rows go where, whatever the order of the rows, and what is refused."""

import json
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedShuffleSplit

from nitro_cli import Experiment
from nitro_cli.data.splits import ChronologicalSplit, GroupSplit, SavedSplit, SplitPlan, StratifiedSplit
from nitro_cli.errors import ConfigError, ExitCode, IntegrityError, NotFoundError, SplitError

HALVES = (0.5, 0.25, 0.25)


def sizes(applied):
    return {name: len(rows) for name, rows in applied.items()}


def members(applied, ids):
    """The ids of each split."""
    return {name: {ids[row] for row in rows} for name, rows in applied.items()}


def test_rows_come_in_the_order_of_a_digest_of_seed_and_id():
    # 0..9 under seed 7 are 3 1 0 4 5 9 2 7 6 8: the first five train, and so on.
    applied = StratifiedSplit(proportions=(0.5, 0.3, 0.2), seed=7).apply(ids=list(range(10)))
    assert {name: list(rows) for name, rows in applied.items()} == {
        "train": [0, 1, 3, 4, 5],
        "val": [2, 7, 9],
        "test": [6, 8],
    }


@pytest.mark.parametrize(
    ("rows", "proportions", "counts"),
    [(50, (0.7, 0.15, 0.15), (35, 8, 7)), (3, (0.8, 0.1, 0.1), (1, 1, 1)), (10, (0.75, 0.25, 0), (8, 2, 0))],
)
def test_a_class_is_divided_by_largest_remainder_and_no_active_split_stays_empty(rows, proportions, counts):
    applied = StratifiedSplit(proportions=proportions, seed=0).apply(labels=["a"] * rows, source="made")
    assert tuple(len(applied.rows[name]) for name in ("train", "val", "test")) == counts
    assert applied.active == tuple(n for n, count in zip(("train", "val", "test"), counts, strict=True) if count)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits])
def test_class_counts_are_within_one_row_of_scikit_learns(load):
    labels = load().target
    applied = StratifiedSplit(proportions=(0.7, 0.3, 0), seed=1).apply(labels=labels, source=load.__name__)
    train, rest = next(StratifiedShuffleSplit(1, train_size=0.7, random_state=0).split(labels, labels))
    for ours, theirs in ((applied["train"], train), (applied["val"], rest)):
        assert np.abs(np.bincount(labels[ours]) - np.bincount(labels[theirs])).max() <= 1
    assert sorted(np.concatenate(list(applied.values()))) == list(range(len(labels)))


@given(st.permutations(list(range(24))), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_no_order_of_rows_changes_what_goes_where(order, seed):
    ids, labels = [f"row {n}" for n in range(24)], [n % 3 for n in range(24)]
    groups, times = [f"g{n // 3}" for n in range(24)], list(range(24))
    for plan, words in (
        (StratifiedSplit(proportions=HALVES, seed=seed), {"labels": labels}),
        (GroupSplit(proportions=HALVES, seed=seed), {"groups": groups}),
        (ChronologicalSplit(cutoffs=(9, 15), gap=2), {"times": times}),
    ):
        first = plan.apply(ids=ids, **words)
        moved = {name: [values[n] for n in order] for name, values in words.items()}
        second = plan.apply(ids=[ids[n] for n in order], **moved)
        assert first.manifest == second.manifest
        assert members(first, ids) == members(second, [ids[n] for n in order])


def test_groups_stay_whole_and_go_to_the_split_farthest_below_its_share():
    groups = ["a"] * 6 + ["b"] * 3 + ["c"] * 2 + ["d"]
    applied = GroupSplit(proportions=HALVES, seed=3).apply(groups=groups, source="made")
    found = {name: {groups[row] for row in rows} for name, rows in applied.items()}
    assert sum(map(len, found.values())) == 4
    assert set().union(*found.values()) == set("abcd")
    assert sizes(GroupSplit(proportions=HALVES, seed=3).apply(ids=list(range(8)))) == {"train": 4, "val": 2, "test": 2}


def test_a_split_without_a_group_takes_the_last_of_the_one_with_most():
    # By share test stays empty until there is none left: 0.01 of 4 rows is below one row.
    applied = GroupSplit(proportions=(0.98, 0.01, 0.01), seed=0).apply(groups=list("aabc"), source="made")
    assert set(applied) == {"train", "val", "test"}


def test_times_are_cut_at_the_starts_of_val_and_test_and_the_gap_before_is_left_out():
    applied = ChronologicalSplit(cutoffs=(5, 8), gap=1).apply(times=range(10), source="made")
    assert {name: list(rows) for name, rows in applied.items()} == {
        "train": [0, 1, 2, 3],
        "val": [5, 6],
        "test": [8, 9],
    }
    assert list(applied.excluded) == [4, 7]
    days = [date(2024, 1, n) for n in range(1, 11)]
    by_day = ChronologicalSplit(cutoffs=("", "2024-01-08"), gap=2).apply(times=days, source="made")
    assert {name: list(rows) for name, rows in by_day.items()} == {"train": [0, 1, 2, 3, 4], "test": [7, 8, 9]}
    stamps = np.array(days, "datetime64[ns]")
    assert (
        by_day.rows.keys()
        == ChronologicalSplit(cutoffs=(None, "2024-01-08")).apply(times=stamps, source="x").rows.keys()
    )


def test_a_saved_split_says_itself_again_for_rows_in_another_order(tmp_path):
    ids, labels = list("abcdefghij"), [0, 1] * 5
    plan = StratifiedSplit(proportions=(0.6, 0.2, 0.2), seed=4).apply(ids=ids, labels=labels)
    plan.save(tmp_path / "split.json")
    held = json.loads((tmp_path / "split.json").read_text())
    assert held == json.loads(json.dumps(plan.manifest))
    assert held["strategy"]["seed"] == 4
    again = SavedSplit(tmp_path / "split.json").apply(ids=ids[::-1], labels=labels[::-1])
    assert again.digest == plan.digest
    assert members(again, ids[::-1]) == members(plan, ids)


def test_a_seed_that_is_not_given_is_drawn_and_in_the_manifest():
    first, second = (StratifiedSplit().apply(labels=[0] * 40, source="made") for _ in range(2))
    assert first.manifest["strategy"]["seed"] != second.manifest["strategy"]["seed"]
    seed = first.manifest["strategy"]["seed"]
    assert StratifiedSplit(seed=seed).apply(labels=[0] * 40, source="made").digest == first.digest


def saved(tmp_path, **words):
    path = tmp_path / "split.json"
    ChronologicalSplit(cutoffs=(None, 6), gap=2).apply(**words, times=range(8)).save(path)
    return SavedSplit(path)


def test_a_saved_split_is_refused_for_other_rows(tmp_path):
    by_id = saved(tmp_path, ids=list("abcdefgh"), source="one")
    for words, told in [
        ({"ids": list("abcdefgh"), "source": "two"}, "source: one, and the rows have two"),
        ({"ids": list("abcdefgh")}, "source: one, and the rows have none"),
        ({"ids": list(range(8)), "source": "one"}, "id type: text"),
        ({"ids": list("abcdefg"), "source": "one"}, "missing: 'h'"),
        ({"ids": list("abcdefghij"), "source": "one"}, "unexpected: 'i', 'j'"),
        ({"ids": list("aacdefgh"), "source": "one"}, "more than once: 'a'"),
    ]:
        with pytest.raises(SplitError, match=told) as caught:
            by_id.apply(**words)
        assert caught.value.exit_code == ExitCode.USAGE
    # An excluded id may be gone, e and f are in the gap; a position may not.
    assert sizes(by_id.apply(ids=list("abcdgh"), source="one")) == {"train": 4, "test": 2}
    by_position = saved(tmp_path, source="one")
    with pytest.raises(SplitError, match="missing: 7"):
        by_position.apply(labels=[0] * 7, source="one")


def test_a_split_file_that_is_not_what_was_written_is_refused(tmp_path):
    plan = saved(tmp_path, ids=list("abcdefgh"))
    text = plan.file.read_text()
    plan.file.write_text(text.replace('"a"', '"z"'))
    with pytest.raises(IntegrityError, match="digest"):
        plan.apply(ids=list("abcdefgh"))
    for other in ("[]", "{}", "no json"):
        plan.file.write_text(other)
        with pytest.raises(IntegrityError):
            plan.apply(ids=list("abcdefgh"))
    with pytest.raises(NotFoundError):
        SavedSplit(tmp_path / "none.json").apply(ids=["a"])


@pytest.mark.parametrize(
    ("plan", "words", "told"),
    [
        (StratifiedSplit(seed=0), {"labels": [0, 0, 1, 1, 1], "ids": list("abcde")}, "class 0 has 2 rows for 3 splits"),
        (StratifiedSplit(seed=0), {"labels": [0] * 9, "times": range(9), "source": "x"}, "does not go by times"),
        (StratifiedSplit(seed=0), {"labels": [0] * 9}, "`source` does not say"),
        (StratifiedSplit(seed=0), {"labels": [0] * 9, "ids": list("abc")}, "3 ids, 9 labels"),
        (StratifiedSplit(seed=0), {"ids": ["a", 1]}, "all of one type"),
        (StratifiedSplit(seed=0), {"ids": [1.5, 2.5]}, "all of one type"),
        (StratifiedSplit(seed=0), {"ids": [True, False]}, "all of one type"),
        (StratifiedSplit(seed=0), {"source": "x"}, "how many rows"),
        (GroupSplit(seed=0), {"groups": ["a", "a", "b", "b"], "source": "x"}, "2 groups for 3 splits: 'a', 'b'"),
        (GroupSplit(seed=0), {"groups": [1.5, None, 2], "source": "x"}, "is 1.5, float"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"labels": range(9), "source": "x"}, "does not go by labels"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"ids": range(9)}, "goes by times"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"times": range(5, 12), "source": "x"}, "no row is left to train on"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"times": range(7), "source": "x"}, "no row is left for test"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"times": [1, 6, 9, float("nan")], "source": "x"}, "time of id 3 is nan"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"times": ["2024-01-01"], "source": "x"}, "cutoffs are"),
        (ChronologicalSplit(cutoffs=(5, 8)), {"times": [1, "2024-01-01"], "source": "x"}, "several types, from id 1"),
    ],
)
def test_rows_that_cannot_be_split_so_are_refused(plan, words, told):
    with pytest.raises(SplitError, match=told):
        plan.apply(**words)


def test_scarce_classes_train_where_that_is_said():
    plan = StratifiedSplit(proportions=HALVES, seed=0, insufficient="train")
    applied = plan.apply(labels=[0, 0] + [1] * 8, source="made")
    assert {0, 1} <= set(applied["train"])
    assert sizes(applied) == {"train": 6, "val": 2, "test": 2}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: StratifiedSplit(proportions=(0.5, 0.2, 0.2)), "sum to 1"),
        (lambda: StratifiedSplit(proportions=(0, 0.5, 0.5)), "train has the share 0"),
        (lambda: StratifiedSplit(proportions=(1.5, -0.5, 0)), "shares from 0 to 1"),
        (lambda: StratifiedSplit(seed=-1), "seed"),
        (lambda: ChronologicalSplit(cutoffs=(None, "")), "both are absent"),
        (lambda: ChronologicalSplit(cutoffs=(8, 5)), "not before test"),
        (lambda: ChronologicalSplit(cutoffs=(8, "2024-01-01")), "numbers or dates"),
        (lambda: ChronologicalSplit(cutoffs=("soon", None)), "ISO dates"),
        (lambda: ChronologicalSplit(cutoffs=(5, 8), gap=-1), "gap"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_where_it_is_written(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


def test_a_field_of_an_experiment_reads_plans_from_tables():
    class Any_(Experiment):
        split: SplitPlan | None = None

    assert Any_(split="stratified").split == StratifiedSplit()
    assert Any_(split={"strategy": "group", "by": "customer", "proportions": [0.8, 0.1, 0.1]}).split.by == "customer"
    assert isinstance(Any_(split={"file": "iris.json"}).split, SavedSplit)
    with pytest.raises(ConfigError, match=r"stratified|strategy"):
        Any_(split={"strategy": "stratifed"})
