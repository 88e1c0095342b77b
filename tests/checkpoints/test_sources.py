from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nitro_cli.checkpoints import (
    AverageRef,
    CheckpointRef,
    RecordMeta,
    RunStore,
    rescan,
    resolve_resume,
    resolve_source,
    write_record,
)
from nitro_cli.checkpoints import store as store_module
from nitro_cli.errors import (
    CheckpointNotFoundError,
    ConfigError,
    IntegrityError,
    NitroWarning,
    RunNotFoundError,
)
from nitro_cli.experiment import Average, Best, Checkpointer, Every, Last

ALL = (Every(1),)


@pytest.fixture
def two_runs(tmp_path: Path, make_run: Any) -> tuple[Path, str, str]:
    """A directory with an older run (best 0.1 at epoch 2) and a newer one (best 0.3 at epoch 1, newest 3)."""
    root = tmp_path / "runs"
    return root, make_run(root, [0.5, 0.1, 0.4], keep=ALL), make_run(root, [0.3, 0.6, 0.9], keep=ALL)


def found(spec: Any, root: Path, **keywords: Any) -> tuple[str, int]:
    ref = resolve_source(spec, root, **keywords)
    assert isinstance(ref, CheckpointRef)
    assert ref.path.is_dir()
    assert ref.run is not None
    return ref.run, ref.epoch


def test_each_way_to_name_a_checkpoint_finds_it(two_runs: tuple[Path, str, str]) -> None:
    root, old, new = two_runs
    expected = {
        "latest:latest": (new, 3),
        "latest:best": (new, 1),
        "all:best": (old, 2),
        f"{old}:latest": (old, 3),
        f"{old[:5]}:best": (old, 2),
        f"{old.upper()}:best": (old, 2),
        "latest:last(1)": (new, 3),
        "latest:best(1)": (new, 1),
    }
    assert {spec: found(spec, root) for spec in expected} == expected
    assert found(("latest", "best"), root) == (new, 1)
    assert found(("latest", Last(1)), root) == found(["latest", "latest"], root) == (new, 3)
    assert found((old, Best(1)), root) == (old, 2)


def test_a_checkpoint_is_named_by_itself_or_its_beginning(two_runs: tuple[Path, str, str]) -> None:
    root, old, new = two_runs
    assert found("latest:epoch-0002", root) == found(("latest", "epoch-0002"), root) == (new, 2)
    assert found(f"{old}:epoch-0003", root) == (old, 3)
    with pytest.raises(CheckpointNotFoundError, match="3 checkpoints begin with epoch"):
        resolve_source("latest:epoch", root)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint bst") as caught:
        resolve_source("latest:bst", root)
    assert "best" in caught.value.nearest


def test_a_directory_before_the_colon_is_where_the_run_lies(two_runs: tuple[Path, str, str]) -> None:
    root, old, new = two_runs
    elsewhere = root / "elsewhere"
    expected = {
        f"{root}:latest:best": (new, 1),
        f"{root}:{old[:5]}:best": (old, 2),
        f"{root}:all:best": (old, 2),
        f"{root}:best": (new, 1),
        f"{root}:epoch-0002": (new, 2),
        f"{root / old}:latest": (old, 3),
    }
    assert {spec: found(spec, elsewhere) for spec in expected} == expected
    ref = resolve_source(f"{root}:{old}:average(epochs(1:2))", elsewhere)
    assert isinstance(ref, AverageRef)
    assert [r.epoch for r in ref.refs] == [1, 2]
    resumed = resolve_resume(f"{root}:latest:latest", elsewhere)
    assert resumed is not None
    assert (resumed.run, resumed.epoch) == (new, 3)
    assert resumed.continues(root)
    assert not resumed.continues(elsewhere)


def test_a_directory_of_a_name_with_a_colon_is_taken_whole(two_runs: tuple[Path, str, str], tmp_path: Path) -> None:
    root, _, new = two_runs
    odd = root.rename(tmp_path / "a:b")
    assert found(f"{odd}:best", tmp_path) == found(f"{odd}:latest:best", tmp_path) == (new, 1)


def test_a_directory_before_the_colon_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    for spec in (f"{tmp_path}/none:latest:best", f"{tmp_path}/none:best", "none:latest:best"):
        with pytest.raises(RunNotFoundError, match="there is no directory"):
            resolve_source(spec, tmp_path)


def test_a_path_is_itself_wherever_it_lies(two_runs: tuple[Path, str, str], tmp_path: Path) -> None:
    root, old, _ = two_runs
    record = root / old / "checkpoints" / "epoch-0002"
    for spec in (record, str(record), record / "record.json"):
        assert found(spec, tmp_path / "nowhere") == (old, 2)
    alone = shutil.copytree(record, tmp_path / "copied")
    ref = resolve_source(alone, root)
    assert isinstance(ref, CheckpointRef)
    assert (ref.run, ref.root, ref.epoch, ref.step, ref.score, ref.newest) == (None, None, 2, 20, 0.1, False)


def test_a_path_is_relative_to_the_working_directory(
    two_runs: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, old, _ = two_runs
    monkeypatch.chdir(root.parent)
    assert found(f"runs/{old}/checkpoints/epoch-0003", Path("elsewhere")) == (old, 3)


def test_only_a_runs_newest_in_the_same_directory_is_continued(two_runs: tuple[Path, str, str], tmp_path: Path) -> None:
    root, old, _ = two_runs

    def continues(spec: Any, directory: Path = root) -> bool:
        ref = resolve_resume(spec, root)
        assert ref is not None
        return ref.continues(directory)

    assert continues("latest:latest")
    assert continues(f"{old}:latest")
    assert continues(root / old / "checkpoints" / "epoch-0003")
    assert not continues("latest:best")
    assert not continues(root / old / "checkpoints" / "epoch-0002")
    assert not continues(f"{old}:latest", tmp_path / "another")
    (tmp_path / "link").symlink_to(root)
    assert continues(f"{old}:latest", tmp_path / "link")


def test_a_parent_is_named_relative_to_the_directory_of_the_new_run(
    two_runs: tuple[Path, str, str], tmp_path: Path
) -> None:
    root, old, _ = two_runs
    ref = resolve_resume(f"{old}:best", root)
    assert ref is not None
    assert ref.parent_of_run_in(root) == f"{old}/checkpoints/epoch-0002"
    assert ref.parent_of_run_in(tmp_path / "other") == f"../runs/{old}/checkpoints/epoch-0002"


def test_averages_hold_the_checkpoints_in_order_and_where_the_state_comes_from(
    two_runs: tuple[Path, str, str],
) -> None:
    root, old, _ = two_runs
    cases: list[tuple[Any, list[int], int]] = [
        (f"{old}:average(last(2))", [2, 3], 3),
        (f"{old}:average(best(2))", [2, 3], 2),
        (f"{old}:average(best(2, among=last(1)))", [3], 3),
        ((old, Average(Last(3), state="best")), [1, 2, 3], 2),
        ((old, Average(Best(2), state="latest")), [2, 3], 3),
        (f"{old}:average(epochs(1:2))", [1, 2], 2),
    ]
    for spec, epochs, state in cases:
        ref = resolve_source(spec, root)
        assert isinstance(ref, AverageRef)
        assert ([r.epoch for r in ref.refs], ref.state.epoch) == (epochs, state), spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("best", "latest:best"),
        ("latest", "latest:latest"),
        ("average(last(3))", "latest:average(last(3))"),
        ("a1b2", "a1b2:best"),
        ("latest:average(lst(3))", "last"),
        ("newest:best", "not `latest`, `all` or the id"),
        ("all:latest", "latest:latest"),
        ("all:average(last(2))", "one run"),
        ("latest:last(2)", "latest:average(last(2))"),
        (("latest", Last(2)), "Average(Last(n=2))"),
        (("latest", 3), "not `latest`, `best`, a name or an Average"),
        ((1, "best"), "not `latest`, `all`"),
        (("latest",), "a pair"),
        (17, "a path"),
        (True, "a path"),
    ],
)
def test_what_names_no_checkpoint_is_refused_with_the_form_to_use(tmp_path: Path, spec: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_source(spec, tmp_path)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_resume_refuses_an_average(two_runs: tuple[Path, str, str]) -> None:
    with pytest.raises(ConfigError, match="resume=") as caught:
        resolve_resume("latest:average(last(2))", two_runs[0])
    assert "no optimizer state" in str(caught.value)


def test_a_run_that_is_not_there_lists_those_that_are(two_runs: tuple[Path, str, str]) -> None:
    root, old, new = two_runs
    near = old[:-1] + ("0" if old[-1] != "0" else "1")
    with pytest.raises(RunNotFoundError, match="no run") as caught:
        resolve_source(f"{near}:best", root)
    text = str(caught.value)
    assert str(root) in text
    assert f"{old} (completed, epochs 1, 2, 3)" in text
    assert new in text
    assert old in caught.value.nearest
    assert caught.value.exit_code == 3


def test_an_ambiguous_prefix_lists_the_runs_it_begins(tmp_path: Path, make_run: Any, monkeypatch: Any) -> None:
    from nitro_cli.checkpoints import run_directory

    ids = iter(["aa000001", "aa000002"])
    monkeypatch.setattr(run_directory, "secrets", SimpleNamespace(token_hex=lambda count: next(ids)))
    for _ in range(2):
        make_run(tmp_path, [])
    with pytest.raises(ConfigError, match="ids of 2 runs") as caught:
        resolve_source("aa:best", tmp_path)
    assert "aa000001, aa000002" in str(caught.value)


def test_nothing_to_find_is_an_error_and_never_a_fresh_start(tmp_path: Path, make_run: Any) -> None:
    with pytest.raises(RunNotFoundError, match="no run"):
        resolve_source("latest:best", tmp_path / "nowhere")
    with pytest.raises(RunNotFoundError, match="no run has a checkpoint"):
        resolve_source("latest:best", tmp_path)
    empty = make_run(tmp_path, [])
    with pytest.raises(CheckpointNotFoundError, match="has no checkpoint"):
        resolve_source(f"{empty}:latest", tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint at this path"):
        resolve_source(str(tmp_path / "missing"), tmp_path)


@pytest.mark.parametrize("place", ["", "run"])
def test_a_directory_of_runs_or_a_run_given_as_path_says_what_to_write(
    tmp_path: Path, make_run: Any, place: str
) -> None:
    run = make_run(tmp_path, [1.0])
    path = tmp_path / run if place else tmp_path
    with pytest.raises(CheckpointNotFoundError) as caught:
        resolve_source(path, tmp_path)
    assert (f"{run}:best" if place else "latest:best") in str(caught.value)


def test_a_run_without_checkpoints_is_not_the_latest(tmp_path: Path, make_run: Any) -> None:
    run = make_run(tmp_path, [1.0])
    make_run(tmp_path, [])
    assert found("latest:latest", tmp_path) == (run, 1)


def test_the_latest_of_a_run_may_be_a_resume_point_and_the_best_never(tmp_path: Path) -> None:
    rule = Checkpointer(keep=(Best(1), Last(1)))
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=rule, metric="loss", mode="min") as run:
        run.save(RecordMeta(), {"params/w": 1}, epoch=1, step=10, score=0.5, name="e1")
        run.save(RecordMeta(), {"params/w": 2}, epoch=2, step=13, score=0.1, name="stop", resume_point=True)
    assert found("latest:latest", tmp_path) == (run.id, 2)
    assert found("latest:best", tmp_path) == (run.id, 1)
    ref = resolve_source("latest:average(last(5))", tmp_path)
    assert isinstance(ref, AverageRef)
    assert [r.epoch for r in ref.refs] == [1]


def test_best_ranks_under_the_asked_metric_and_warns_of_the_others(tmp_path: Path) -> None:
    rule = Checkpointer(keep=ALL)
    with RunStore.create(tmp_path, experiment="Toy", checkpointer=rule, metric="loss", mode="min") as run:
        run.save(RecordMeta(), {}, epoch=1, step=1, score=0.5, name="e1")
        run.save(RecordMeta(), {}, epoch=2, step=2, score=0.4, metric="acc", mode="max", name="e2")
    with pytest.warns(NitroWarning, match="1 under acc"):
        assert found("latest:best", tmp_path, metric="loss", mode="min") == (run.id, 1)
    with pytest.raises(CheckpointNotFoundError, match=r"under f1 \(max\); there are scores under acc \(max\), loss"):
        resolve_source("latest:best", tmp_path, metric="f1", mode="max")


def test_no_best_among_scores_that_are_not_finite(tmp_path: Path, make_run: Any) -> None:
    make_run(tmp_path, [float("nan"), float("inf")])
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint has a finite score"):
        resolve_source("latest:best", tmp_path)


def test_auto_resumes_the_newest_or_starts_fresh_with_a_warning(
    two_runs: tuple[Path, str, str], tmp_path: Path
) -> None:
    root, _, new = two_runs
    ref = resolve_resume("auto", root)
    assert ref is not None
    assert (ref.run, ref.epoch, ref.newest) == (new, 3, True)
    for nothing in (tmp_path / "nowhere", tmp_path):
        with pytest.warns(NitroWarning, match="starting fresh"):
            assert resolve_resume("auto", nothing) is None
    assert resolve_resume(None, root) is None
    assert resolve_resume(False, root) is None


@pytest.mark.parametrize("state", ["quarantined", "of a lost manifest", "damaged and rescanned"])
def test_auto_never_starts_fresh_beside_checkpoints(tmp_path: Path, make_run: Any, state: str) -> None:
    run = make_run(tmp_path, [0.5])
    record = tmp_path / run / "checkpoints" / "epoch-0001"
    if state == "quarantined":
        record.rename(record.with_name("epoch-0001.corrupt-1"))
    else:
        (tmp_path / "manifest.json").unlink()
    if state == "damaged and rescanned":
        (record / "record.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        if state == "damaged and rescanned":
            rescan(tmp_path)
        with pytest.raises(IntegrityError, match="none that can be resumed") as caught:
            resolve_resume("auto", tmp_path)
    assert "epoch-0001" in str(caught.value)
    assert "--rescan" in str(caught.value)


def test_a_record_published_just_before_a_kill_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunStore.create(tmp_path, experiment="Toy", checkpointer=Checkpointer())
    run.save(RecordMeta(), {}, epoch=1, step=10, name="e1", final=True)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "update_manifest", lambda *a, **k: (_ for _ in ()).throw(OSError("killed")))
        run.save(RecordMeta(), {}, epoch=2, step=20, name="e2")
        with pytest.raises(OSError, match="killed"):
            run.close()
    ref = resolve_resume("auto", tmp_path)
    assert ref is not None
    assert (ref.epoch, ref.newest) == (2, True)


def test_a_path_works_beside_a_broken_manifest_with_a_warning(two_runs: tuple[Path, str, str]) -> None:
    root, old, _ = two_runs
    (root / "manifest.json").write_text("{")
    with pytest.warns(NitroWarning, match="manifest"):
        ref = resolve_source(root / old / "checkpoints" / "epoch-0002", root)
    assert isinstance(ref, CheckpointRef)
    assert (ref.epoch, ref.newest) == (2, False)
    with pytest.raises(IntegrityError, match="damaged"):
        resolve_source("latest:best", root)


def test_an_average_record_is_a_source_by_its_path(tmp_path: Path) -> None:
    write_record(tmp_path / "average", RecordMeta(epoch=7, step=70), {"params/w": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ref = resolve_source(tmp_path / "average", tmp_path)
    assert isinstance(ref, CheckpointRef)
    assert (ref.epoch, ref.step, ref.run) == (7, 70, None)
