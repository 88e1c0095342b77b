"""What the manifest says is checked against the records, and what it lists against the disk."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import (
    RecordMeta,
    RunStore,
    prune,
    read_manifest,
    rescan,
    resolve_resume,
    resolve_source,
    runs,
    verify,
)
from nitro_cli.checkpoints.json_text import BLANK_DIGEST, seal
from nitro_cli.errors import ExitCode, IntegrityError, NitroWarning
from nitro_cli.experiment import Best, Checkpointer, Every, Last

SCORES = [0.6, 0.4074, 0.5]
ALL = (Every(1),)
RULE: dict[str, Any] = {"checkpointer": Checkpointer(keep=ALL), "metric": "loss", "mode": "min"}


@pytest.fixture
def root(tmp_path: Path, make_run: Any) -> Path:
    """A run of three checkpoints whose best is the second."""
    make_run(tmp_path / "runs", SCORES, keep=ALL, metric="loss", mode="min")
    return tmp_path / "runs"


def change(root: Path, before: str, after: str, *, sealed: bool) -> None:
    """Change the text of a manifest; with `sealed`, as somebody who also writes the digest anew."""
    file = root / "manifest.json"
    text = file.read_text()
    assert text.count(before) == 1
    text = text.replace(before, after)
    if sealed:
        document = json.loads(text)
        file.write_bytes(seal(json.dumps({**document, "sha256": BLANK_DIGEST})))
    else:
        file.write_text(text)


def test_one_changed_digit_of_the_manifest_is_believed_by_nobody_and_undone_by_a_rescan(root: Path) -> None:
    change(root, "0.4074", "0.9074", sealed=False)
    for read in (runs, read_manifest, lambda path: resolve_source("latest:best", path), lambda path: prune(path)):
        with pytest.raises(IntegrityError, match="does not match the digest") as caught:
            read(root)
        assert caught.value.where == str(root / "manifest.json")
        assert "--rescan" in (caught.value.fix or "")
    (wrong,) = [outcome for outcome in verify(root) if not outcome.ok]
    assert wrong.path == root / "manifest.json"
    with pytest.warns(NitroWarning, match=r"kept as manifest\.json\.corrupt-1"):
        rescan(root)
    (summary,) = runs(root)
    assert [entry.score for entry in summary.checkpoints] == SCORES
    assert summary.best is not None
    assert summary.best.score == 0.4074
    assert all(outcome.ok for outcome in verify(root))


def test_a_changed_score_under_a_new_digest_is_told_by_verify_and_undone_by_a_resume_and_a_rescan(root: Path) -> None:
    change(root, "0.4074", "0.9074", sealed=True)
    (wrong,) = [outcome for outcome in verify(root) if not outcome.ok]
    assert wrong.path == root / "manifest.json"
    assert wrong.error is not None
    assert "score 0.9074 here, 0.4074 in the record" in (wrong.error.why or "")
    with pytest.warns(NitroWarning, match="score 0.9074 here, 0.4074 in the record"):
        ref = resolve_resume(("latest", "best"), root)
    assert ref is not None
    assert (ref.epoch, ref.score) == (2, 0.4074)
    with pytest.warns(NitroWarning, match="the records are right"):
        rescan(root)
    assert [entry.score for entry in read_manifest(root).entries] == SCORES


def test_a_run_taken_over_is_listed_as_its_records_say(root: Path) -> None:
    (summary,) = runs(root)
    change(root, '"step": 20', '"step": 25', sealed=True)
    with pytest.warns(NitroWarning, match="step 25 here, 20 in the record"):
        RunStore.reopen(root, summary.id, **RULE).close()
    assert [entry.step for entry in read_manifest(root).entries] == [10, 20, 30]


def older(root: Path) -> None:
    """Make the manifest one of a version that had no digest and did not count."""
    file = root / "manifest.json"
    document = json.loads(file.read_text())
    del document["sha256"], document["sequence"]
    document["format"] = 1
    for item in (*document["entries"], *document["runs"].values()):
        del item["sequence"]
    file.write_text(json.dumps(document))


def test_a_manifest_of_an_older_version_loads_and_is_checked_where_its_word_would_choose(root: Path) -> None:
    older(root)
    assert [entry.score for entry in runs(root)[0].checkpoints] == SCORES
    change(root, "0.4074", "0.9074", sealed=False)
    with pytest.warns(NitroWarning, match="score 0.9074 here, 0.4074 in the record"):
        ref = resolve_source("latest:best", root)
    assert "epoch-0002" in str(ref)


def test_a_manifest_of_an_older_version_is_sealed_at_its_next_write(root: Path, make_run: Any) -> None:
    older(root)
    make_run(root, [1.0])
    assert json.loads((root / "manifest.json").read_text())["format"] == 2
    change(root, "0.4074", "0.9074", sealed=False)
    with pytest.raises(IntegrityError):
        runs(root)


def test_verify_names_listed_checkpoints_and_whole_runs_that_are_gone(root: Path, make_run: Any) -> None:
    (first,) = runs(root)
    second = make_run(root, [1.0])
    shutil.rmtree(root / first.checkpoints[0].path)
    shutil.rmtree(root / second)
    bad = [outcome for outcome in verify(root) if not outcome.ok]
    assert all(outcome.gone for outcome in bad)
    assert {outcome.path for outcome in bad} == {root / second, root / first.checkpoints[0].path}
    assert {outcome.error.exit_code for outcome in bad if outcome.error} == {ExitCode.INTEGRITY}
    assert all("gone from the disk" in str(outcome.error) for outcome in bad)
    (one,) = [outcome for outcome in verify(root / first.id) if not outcome.ok]
    assert one.path == root / first.checkpoints[0].path


def test_a_rescan_says_what_it_drops(root: Path, make_run: Any) -> None:
    (first,) = runs(root)
    second = make_run(root, [1.0])
    shutil.rmtree(root / first.checkpoints[0].path)
    shutil.rmtree(root / second)
    with pytest.warns(NitroWarning, match="lists it no longer") as told:
        rescan(root)
    text = " ".join(str(warning.message) for warning in told)
    assert f"the run {second}" in text
    assert first.checkpoints[0].path in text
    assert [outcome.ok for outcome in verify(root)] == [True, True]


class RaisesLater(Every):
    """A selector of one's own with a mistake: it works twice."""

    calls: int = 0

    def select(self, entries: Any, mode: Any = None) -> Any:
        type(self).calls += 1
        if type(self).calls > 2:
            raise ZeroDivisionError("a mistake")
        return super().select(entries, mode)


def test_a_checkpoint_is_listed_although_the_selector_that_ranks_it_raises(tmp_path: Path) -> None:
    RaisesLater.calls = 0
    store = RunStore.create(tmp_path, experiment="Toy", checkpointer=Checkpointer(keep=(RaisesLater(1),)))
    for epoch in (1, 2, 3):
        store.save(RecordMeta(), {"params/w": epoch}, epoch=epoch, step=epoch, name=f"epoch-{epoch}")
    with pytest.raises(ZeroDivisionError):
        store.wait()
    store.set_status("error")
    store.close()
    assert [entry.epoch for entry in read_manifest(tmp_path).entries] == [1, 2, 3]


@pytest.mark.parametrize("status", ["error", "completed", "requested", "running"])
def test_a_record_that_was_published_and_not_listed_is_adopted_by_a_resume_whatever_the_status(
    root: Path, status: str
) -> None:
    (summary,) = runs(root)
    with RunStore.reopen(root, summary.id, **RULE) as store:
        before = (root / "manifest.json").read_bytes()
        store.save(RecordMeta(), {"params/w": 4}, epoch=4, step=40, name="epoch-0004", final=True)
        (root / "manifest.json").write_bytes(before)
        store.set_status(status)
    assert len(read_manifest(root).entries) == 3
    with pytest.warns(NitroWarning, match="did not list .*epoch-0004: taken in"):
        ref = resolve_resume("auto", root)
    assert ref is not None
    assert (ref.epoch, ref.newest) == (4, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunStore.reopen(root, summary.id, ref.entry, **RULE).close()
    assert [entry.epoch for entry in read_manifest(root).entries] == [1, 2, 3, 4]


def test_what_another_run_displaced_and_could_not_delete_any_more_is_not_adopted(root: Path, make_run: Any) -> None:
    (first,) = runs(root)
    other = make_run(root, [1.0])
    document = json.loads((root / "manifest.json").read_text())
    gone = document["entries"].pop(0)
    document["runs"][other]["displaced"] = [gone["path"]]
    (root / "manifest.json").write_bytes(seal(json.dumps({**document, "sha256": BLANK_DIGEST})))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_source((first.id, "best"), root).score == 0.4074
    RunStore.reopen(root, other, **RULE).close()
    assert not (root / gone["path"]).exists()


def displaced(root: Path, *paths: str) -> None:
    """A manifest that says of its run that these were displaced, sealed as nitro would."""
    document = json.loads((root / "manifest.json").read_text())
    (run,) = document["runs"].values()
    run["displaced"] = list(paths)
    document["sha256"] = BLANK_DIGEST
    (root / "manifest.json").write_bytes(seal(json.dumps(document)))


@pytest.mark.parametrize("reached", ["absolute", "upwards", "through a link", "a link itself", "a file beside"])
def test_prune_deletes_nothing_outside_the_runs(root: Path, reached: str) -> None:
    (summary,) = runs(root)
    thesis = root.parent / "thesis"
    thesis.mkdir()
    (thesis / "chapter").write_text("years")
    other = root.parent / "aaaaaaaa" / "checkpoints" / "epoch-1"
    other.mkdir(parents=True)
    (other / "x").write_text("also")
    path = {
        "absolute": str(thesis),
        "upwards": "../thesis",
        "through a link": "aaaaaaaa/checkpoints/epoch-1",
        "a link itself": f"{summary.id}/checkpoints/linked",
        "a file beside": "manifest.json",
    }[reached]
    (root / "aaaaaaaa").symlink_to(root.parent / "aaaaaaaa")
    (root / summary.id / "checkpoints" / "linked").symlink_to(thesis)
    displaced(root, path)
    for word in (False, True):
        with pytest.raises(IntegrityError):
            prune(root, delete=word)
    with pytest.raises(IntegrityError):
        RunStore.reopen(root, summary.id, **RULE)
    assert (thesis / "chapter").read_text() == "years"
    assert (other / "x").read_text() == "also"
    assert (root / "manifest.json").is_file()


def test_prune_keeps_a_listed_checkpoint_that_the_manifest_also_calls_displaced(root: Path) -> None:
    (summary,) = runs(root)
    displaced(root, summary.checkpoints[1].path)
    assert prune(root, delete=True) == []
    assert len(read_manifest(root).entries) == 3


@pytest.mark.parametrize("linked", ["run", "checkpoints"])
def test_strays_and_quarantined_ones_behind_a_link_are_left_alone(root: Path, linked: str) -> None:
    (summary,) = runs(root)
    place = root / summary.id if linked == "run" else root / summary.id / "checkpoints"
    place.rename(root.parent / "elsewhere")
    place.symlink_to(root.parent / "elsewhere")
    folder = root.parent / "elsewhere" / ("checkpoints" if linked == "run" else "")
    for name in (".tmp-12345678-x", "epoch-9.corrupt-1"):
        (folder / name).mkdir()
    for act in (
        lambda: prune(root / summary.id, delete=True),
        lambda: RunStore.reopen(root, summary.id, checkpointer=Checkpointer(keep=(Best(1), Last(1)))),
    ):
        with pytest.raises(IntegrityError, match="is a link"):
            act()
    assert (folder / ".tmp-12345678-x").is_dir()
    assert (folder / "epoch-9.corrupt-1").is_dir()
