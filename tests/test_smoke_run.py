"""An experiment is taken through everything a real run goes through by one call in Python."""

import os

import pytest

from nitro_cli import smoke
from nitro_cli.errors import ConfigError
from tests.tiny import Quick


class Smoked(Quick):
    """Four steps an epoch."""


class Broken(Quick):
    """Its validation fails."""

    def finalize_metrics(self, acc, split):
        raise ValueError("no such metric")


def test_an_experiment_goes_through_every_step_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = smoke(Smoked())
    assert result.ok, result.failed
    assert [name for name, _, _ in result.steps] == ["train", "resume", "evaluate", "average", "reload", "export"]
    assert result.steps[0][2].startswith("stopped by SIGTERM")
    assert (result.name, result.failed_in) == ("Smoked", "")
    assert os.listdir(tmp_path) == []


def test_what_fails_is_in_the_result_with_the_steps_before_it():
    result = smoke(Broken())
    assert not result.ok
    assert "no such metric" in str(result.failed)
    assert result.failed_in == [*("train", "resume")][len(result.steps)]


def test_what_is_no_experiment_is_refused():
    with pytest.raises(ConfigError, match="the class Smoked"):
        smoke(Smoked)
