"""Files of a run that somebody changed, or made into links: the records are believed, nothing else is written to."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest

from nitro_cli import Nitro
from nitro_cli.checkpoints import read_history, resolve_resume, runs, verify
from nitro_cli.errors import IntegrityError, NitroWarning
from nitro_cli.tracking import JSONLogger
from tests.faults.subject import Subject
from tests.faults.test_kill_matrix import ROOT


@pytest.fixture
def root(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of two epochs, the first of them the better one."""
    shutil.copytree(uninterrupted / ROOT, tmp_path / ROOT)
    return tmp_path / ROOT


@pytest.fixture
def run(root: Path) -> Path:
    """The directory of its run."""
    (summary,) = runs(root)
    return summary.path


def better(text: str) -> str:
    """The second epoch becomes the better one."""
    first, second = text.splitlines()
    row = json.loads(second)
    return f"{first}\n{json.dumps({**row, 'acc': 0.9876})}\n"


def cut(text: str) -> str:
    """The line of the first epoch, which has the star, is gone."""
    return text.splitlines()[1] + "\n"


def torn(text: str) -> str:
    """The line of the first epoch lost its end."""
    first, second = text.splitlines()
    return f"{first[:20]}\n{second}\n"


def later(text: str) -> str:
    """Epochs descend."""
    first, second = text.splitlines()
    return f"{second}\n{first}\n"


@pytest.mark.parametrize("damage", [better, cut, torn, later])
def test_a_changed_history_does_not_move_the_star_is_told_by_verify_and_does_not_survive_a_resume(
    root: Path, run: Path, uninterrupted: Path, damage: object
) -> None:
    assert callable(damage)
    file = run / "history.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = read_history(root, run.name)
        assert all(outcome.ok for outcome in verify(root))
    assert whole.best is not None
    assert whole.best["epoch"] == 1
    file.write_text(damage(file.read_text()))
    with pytest.warns(NitroWarning, match=r"history\.jsonl"):
        shown = read_history(root, run.name)
    assert shown.json_rows() == whole.json_rows()
    assert shown.best == whole.best
    (wrong,) = [outcome for outcome in verify(root) if not outcome.ok]
    assert wrong.path == file
    with pytest.warns(NitroWarning, match=r"written anew from the checkpoint|was changed since the checkpoint"):
        Nitro(Subject(), run_dir=str(root), resume="auto", max_epochs=3).train()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[:2] == whole.json_rows()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert (run / "history.jsonl.discarded").is_file()
    assert all(outcome.ok for outcome in verify(root))


def test_a_copy_made_while_the_run_wrote_is_readable_and_comes_to_the_same_end(root: Path, run: Path) -> None:
    """The copy has the first record and the manifest of then, but a history that is one row ahead, or one behind."""
    newest = max(runs(root)[0].checkpoints, key=lambda entry: entry.step)
    shutil.rmtree(root / newest.path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ahead = read_history(root, run.name)
    assert [row["epoch"] for row in ahead] == [1, 2]
    before = outcome_of_copy(root, run)
    (run / "history.jsonl").write_text("")
    with pytest.warns(NitroWarning, match="no row for epoch 1"):
        behind = read_history(root, run.name)
    assert [row["epoch"] for row in behind] == [1]
    assert before


def outcome_of_copy(root: Path, run: Path) -> bool:
    """Whether a copy resumes without a word about its history."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Nitro(Subject(), run_dir=str(copy), resume="auto").train()
    return not [warning for warning in told if "written anew" in str(warning.message)]


@pytest.mark.parametrize("name", ["history.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("where", ["the file", "what is discarded"])
def test_no_file_of_a_run_is_written_through_a_link(root: Path, run: Path, name: str, where: str) -> None:
    target = root.parent / "thesis"
    lines = (run / name).read_bytes()
    if where == "the file":
        target.write_bytes(lines + b"years of work\n")
        (run / name).unlink()
        (run / name).symlink_to(target)
    else:
        target.write_bytes(b"years of work\n")
        (run / f"{name}.discarded").symlink_to(target)
        (run / name).write_bytes(lines + b'{"type":"later"}\n')
    before = target.read_bytes()
    with pytest.raises(IntegrityError, match="no plain file of a run") as caught:
        Nitro(Subject(), run_dir=str(root), resume="auto", max_epochs=3).train()
    assert "it is a link" in (caught.value.why or "")
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["history.jsonl", "history.jsonl.discarded"])
def test_a_run_with_a_pipe_for_a_file_is_refused_before_another_of_its_files_is_cut_or_a_word_is_said(
    root: Path, run: Path, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    log = run / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"type":"later"}\n')
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    before = log.read_bytes()
    with pytest.raises(IntegrityError, match=f"{name} is no plain file"):
        Nitro(Subject(), run_dir=str(root), resume="auto", max_epochs=4).train()
    assert log.read_bytes() == before
    assert not (run / "metrics.jsonl.discarded").exists()
    assert not [w for w in recwarn if "written anew" in str(w.message)]


def test_a_log_outside_the_run_is_appended_to_and_never_cut_or_mended(root: Path) -> None:
    """As a configuration of somebody else may name any file of one's own, with any length in its record."""
    thesis = root.parent / "thesis.txt"
    thesis.write_text("years\nof work, whose last line has no end")
    e = Subject(logger=JSONLogger(thesis))
    with pytest.warns(NitroWarning, match="not in the run's directory"):
        Nitro(e, run_dir=str(root), resume="auto", max_epochs=3).train()
    text = thesis.read_text()
    assert text.startswith("years\nof work, whose last line has no end\n{")
    assert not (root.parent / "thesis.txt.discarded").exists()


@pytest.mark.parametrize(
    "name", ["manifest.json", "record.json", "run.json", "history.jsonl", "metrics.jsonl", ".lock"]
)
@pytest.mark.parametrize("kind", ["pipe", "directory", "loop"])
def test_a_pipe_a_directory_or_a_loop_in_the_place_of_a_file_is_told_and_nobody_waits_for_it(
    root: Path, run: Path, name: str, kind: str
) -> None:
    newest = max(runs(root)[0].checkpoints, key=lambda entry: entry.step)
    file = {"manifest.json": root / name, "record.json": root / newest.path / name}.get(name, run / name)
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to(file.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        problems = [outcome for outcome in verify(root) if not outcome.ok]
        assert bool(problems) == (name in ("manifest.json", "record.json", "history.jsonl"))
        if name == "manifest.json":
            with pytest.raises(IntegrityError):
                runs(root)
        else:
            read_history(root, run.name)
            assert len(runs(root)) == 1
            assert resolve_resume("auto", root) is not None
