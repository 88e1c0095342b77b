"""What a finished run suggests can be typed, and goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nitro_cli import EarlyStopping
from nitro_cli.cli.training import _next_commands


def ended(reason: str, early_stop: Any = None, epoch: int = 40) -> list[str]:
    experiment = SimpleNamespace(max_epochs=40, early_stop=early_stop)
    nitro: Any = SimpleNamespace(
        run_dir=Path("runs/Mine"),
        run_id="abc",
        epoch=epoch,
        stop_reason=reason,
        experiment=experiment,
        plan=SimpleNamespace(splits={"train": None}),
    )
    return _next_commands(nitro)


@pytest.mark.parametrize(
    ("reason", "early_stop", "command"),
    [
        ("completed", EarlyStopping(), "nitro resume runs/Mine --run abc --max-epochs 80"),
        ("early_stop", EarlyStopping(patience=5), "nitro resume runs/Mine --run abc --set early_stop.patience=10"),
        ("requested", None, "nitro resume runs/Mine --run abc"),
    ],
)
def test_the_resume_suggested_is_one_that_trains_on(reason: str, early_stop: Any, command: str) -> None:
    assert command in ended(reason, early_stop)


def test_a_run_that_is_past_its_last_epoch_is_sent_further() -> None:
    assert "nitro resume runs/Mine --run abc --max-epochs 120" in ended("completed", epoch=60)


def test_a_rule_of_the_users_own_is_not_guessed_at() -> None:
    assert ended("early_stop", object()) == ["nitro runs runs/Mine"]


def test_the_next_commands_of_code_outside_the_working_directory_name_it_and_go_on(
    probe: Path, nitro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "../experiments/probe.py:Probe"
    inside = nitro("train", "experiments/probe.py:Probe", "--preset", "short")
    assert inside.exit_code == 0, inside.output
    assert "--experiment" not in inside.stderr
    (probe / "w d").mkdir()
    monkeypatch.chdir(probe / "w d")
    trained = nitro("train", code, "--max-epochs", "1", "--run-dir", "r2")
    assert trained.exit_code == 0, trained.output
    told = [line.split()[1:] for line in trained.stderr.partition("next:")[2].splitlines() if "nitro " in line]
    assert [words[0] for words in told] == ["evaluate", "resume", "runs"]
    for words in told:
        assert (code in words) == (words[0] != "runs")
        assert nitro(*words).exit_code == 0, words
    again = nitro("resume", "r2", "--max-epochs", "3", "--experiment", code)
    assert f"--experiment {code} --max-epochs 6" in again.stderr
    averaged = nitro("average", "r2", "--experiment", code)
    assert averaged.stderr.rstrip().endswith(f"--experiment {code}")
    lost = nitro("resume", "r2", "--max-epochs", "9")
    assert lost.exit_code == 3
    assert "--experiment path/to/probe.py:Probe" in lost.stderr


def test_the_next_command_after_an_average_says_that_code_outside_the_working_directory_must_be_named(
    probe: Path, nitro: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (probe / "there").mkdir()
    monkeypatch.chdir(probe / "there")
    assert nitro("train", "../experiments/probe.py:Probe", "--max-epochs", "1", "--run-dir", "r").exit_code == 0
    told = nitro("average", "r", "--select", "last(1)").stderr.partition("next:")[2].split()
    assert told[-2:] == ["--experiment", "path/to/probe.py:Probe"]
    told[-1] = "../experiments/probe.py:Probe"
    assert nitro(*told[1:]).exit_code == 0
    monkeypatch.chdir(probe)
    assert "--experiment" not in nitro("average", "there/r", "--select", "last(1)", "--save", "mean").stderr
