"""What the command line says of a part that there is not, or that is written as it cannot be: one code, and a form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

EXPERIMENT = """
from nitro_cli.optim import Optim
from nitro_cli.tasks import Categorical, Task
from .tiny import Tiny


class Parted(Tiny):
    loss = None
    metrics = None
    optimizer = None
    task: Task = Categorical(target="y")
    optim: Optim = Optim("adam")
    max_epochs = 1
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "parted.py").write_text(EXPERIMENT)
    (tmp_path / "experiments" / "tiny.py").write_text((tests / "tiny.py").read_text())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("optim=adam", '{ name = "adam" }'),
        ("monitor=f1", '{ metric = "f1" }'),
        ("callbacks=save_predictions", '[{ id = "save_predictions" }]'),
        ("task.kind=categoric", "there is no task categoric"),
        ('callbacks=[{id="save_prediction"}]', "did you mean save_predictions"),
        ('task.metrics=["acuracy"]', "did you mean accuracy"),
        ("task.label_smoothing=1.5", "less than or equal to 1"),
    ],
)
def test_a_part_written_wrong_is_a_usage_error_with_the_form_that_works(nitro: Any, given: str, told: str) -> None:
    done = nitro("train", "Parted", "--set", given)
    assert done.exit_code == 2
    assert told in done.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("optim.name=adamm", "there is no optimizer adamm"),
        ("optim.b3=0.1", "its options are b1, b2"),
        ("optim.b1=x", "b1 of adam should be a number"),
        ("monitor.metric=f2", "name one of them"),
    ],
)
def test_what_setup_finds_out_about_a_part_is_a_usage_error_too(nitro: Any, given: str, told: str) -> None:
    monitor = () if given.startswith("monitor") else ("--set", 'monitor={metric="f1"}')
    more = ("--set", 'monitor={metric="f2", mode="max"}') if not monitor else ("--set", given)
    done = nitro("train", "Parted", *monitor, *more)
    assert done.exit_code == 2
    assert told in done.stderr
    assert not list(Path("runs").glob("**/epoch-*"))


def test_a_flag_with_the_word_skip_is_its_assignment() -> None:
    from nitro_cli.cli.knob_flags import as_assignments

    assert as_assignments(["E", "--check-divergence", "skip"]) == ["E", "--set", "check_divergence=skip"]
    assert as_assignments(["--check-divergence=skip", "skip"]) == ["--set", "check_divergence=skip", "skip"]
    assert as_assignments(["--check-divergence", "E"]) == ["--check-divergence", "E"]
    assert as_assignments(["E", "--", "--check-divergence", "skip"]) == ["E", "--", "--check-divergence", "skip"]
