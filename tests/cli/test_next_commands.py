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
        parts=SimpleNamespace(splits={"train": None}),
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
