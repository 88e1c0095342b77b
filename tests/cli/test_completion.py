"""What the shell is offered, with JAX unimportable: completion imports nothing."""

import pytest


@pytest.fixture
def complete(process):
    def call(words):
        cword = len(words.split(" ")) - 1
        asked = {"_NITRO_COMPLETE": "complete_bash", "COMP_WORDS": f"nitro {words}", "COMP_CWORD": str(cword + 1)}
        done = process(block_jax=True, env=asked)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return call


def test_experiments_presets_and_fields_complete(trained, complete):
    assert complete("train Pro") == ["Probe"]
    assert complete("train Probe --preset w") == ["wide"]
    assert complete("train Probe --set wi") == ["width="]
    assert "max_epochs=" in complete("train Probe --set ma")


def test_runs_complete(trained, complete, nitro_json):
    run = nitro_json("runs")["runs"][0]["id"]
    assert complete("history runs") == ["runs/Probe"]
    assert complete(f"history {run[:3]}") == [run]
    assert complete(f"resume runs/Probe --run {run[:2]}") == [run]
    assert complete("evaluate P") == ["Probe"]
