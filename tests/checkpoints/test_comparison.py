"""Configurations and results of runs side by side, from their files."""

import json
from pathlib import Path

import pytest

from nitro_cli import compare_runs, runs
from nitro_cli.checkpoints import RecordMeta, RunStore
from nitro_cli.errors import ConfigError, NotFoundError
from nitro_cli.experiment import Checkpointer, Last

CONFIG = """format = 2
[experiment]
name = "Toy"
[fields]
run_dir = "/of/this/machine"
width = {width}
loss = {{ kind = "{loss}", scale = 1.0 }}
"""
ROWS = [{"epoch": 1, "step": 5, "acc": 0.25}, {"epoch": 2, "step": 10, "acc": 0.75}]


def made(root: Path, width: int, loss: str, schedule: str, *, epochs: int) -> Path:
    rule = Checkpointer(keep=(Last(1),))
    with RunStore.create(root, experiment="m:Toy", checkpointer=rule, metric="acc", mode="max") as run:
        (run.path / "config.toml").write_text(CONFIG.format(width=width, loss=loss) + schedule)
        lines = [json.dumps(row) + "\n" for row in ROWS[:epochs]]
        (run.path / "history.jsonl").write_text("".join(lines))
        for row in ROWS[:epochs]:
            meta = RecordMeta(history=ROWS[: row["epoch"]])
            run.save(meta, {}, epoch=row["epoch"], step=row["step"], score=row["acc"], name=f"e{row['epoch']}")
    return run.path


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    first = made(tmp_path, 3, "mse", "", epochs=2)
    return [first, made(tmp_path, 3, "mae", '[schedules]\nlearning_rate = "0.1"\n', epochs=0)]


def test_what_differs_and_what_is_the_same_is_named_by_its_path(two: list[Path]) -> None:
    found = compare_runs(*two)
    assert found.differences == ("loss.kind", "schedules.learning_rate")
    assert found.same == ("name", "width", "loss.scale")  # and nothing of where the runs lie
    assert [run.fields["loss.kind"] for run in found.runs] == ["mse", "mae"]
    assert ["schedules.learning_rate" in run.fields for run in found.runs] == [False, True]


def test_results_are_those_of_the_newest_record_and_a_run_without_epochs_has_none(two: list[Path]) -> None:
    first, second = compare_runs(*two).runs
    assert (first.epochs, first.last, first.summary.best.score) == (2, ROWS[1], 0.75)
    assert (second.epochs, second.last, second.summary.best) == (0, {}, None)


def test_runs_are_given_as_they_are_listed_too(two: list[Path]) -> None:
    listed = compare_runs(*runs(two[0].parent))
    assert {run.path for run in listed.runs} == set(two)
    assert listed.differences == compare_runs(*(run.path for run in listed.runs)).differences


def test_one_run_and_a_run_without_a_configuration_are_refused(two: list[Path]) -> None:
    with pytest.raises(ConfigError, match="nothing to be compared with"):
        compare_runs(two[0])
    (two[1] / "config.toml").unlink()
    with pytest.raises(NotFoundError, match=f"{two[1].name} has no readable configuration"):
        compare_runs(*two)
