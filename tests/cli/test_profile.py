"""nitro profile: the table, the document, and what is left behind."""

from pathlib import Path

import pytest


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in (folder / "runs").rglob("*") if path.is_file())


def test_the_table_has_the_phases_and_names_the_trace(probe, nitro):
    result = nitro("profile", "Probe", "--steps", "3")
    assert result.exit_code == 0, result.output
    lines = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    for phase in ("setup", "compile", "step", "other", "evaluation", "checkpoint"):
        assert phase in lines
    assert max(map(len, result.stdout.splitlines())) <= 80
    files = left(probe)
    assert len(files) == 2
    assert all(file in result.stderr for file in files)
    assert all(file.startswith("runs/Probe/profile/plugins/profile/") for file in files)
    assert "tensorboard --logdir runs/Probe/profile" in result.stderr
    assert "the data is on the device" in result.stderr


def test_the_document_has_seconds_and_shares_by_phase(probe, nitro_json):
    made = nitro_json("profile", "Probe", "--preset", "wide", "--max-epochs", "4", "--first-step", "2", "--out", "here")
    assert made["schema"] == 1
    assert (made["experiment"], made["preset"], made["run"]) == ("Probe", "wide", None)
    assert made["first_step"] >= 2
    assert made["steps_per_epoch"] == 3
    assert all(Path(file).is_file() and Path(file).parts[0] == "here" for file in made["files"])
    phases = {phase["name"]: phase for phase in made["phases"]}
    assert phases["step"]["times"] == made["steps"]
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)
    assert made["steps_per_second"] > 0
    assert not (probe / "runs").exists()


def test_a_run_is_profiled_with_its_own_configuration(trained, nitro_json):
    (run,) = nitro_json("runs")["runs"]
    made = nitro_json("profile", run["id"], "--steps", "2")
    assert (made["run"], made["preset"]) == (run["id"], "wide")
    assert made["checkpoint"].endswith(run["best"]["checkpoint"])
    assert nitro_json("runs")["runs"] == [run]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["Probe", "--first-step", "100"], 2, "1 to 9"),
        (["Prob"], 3, "Probe"),
        (["Probe", "--set", "trouble=nans", "--first-step", "1"], 6, "diverged"),
        (["Probe", "--set", "trouble=SIGINT", "--set", "when=1", "--first-step", "5"], 130, "Ctrl-C"),
        (["Probe", "--set", "trouble=SIGTERM", "--set", "when=1", "--first-step", "5"], 143, "SIGTERM"),
    ],
)
def test_what_goes_wrong_has_its_exit_code_and_leaves_nothing(probe, nitro, words, code, named):
    result = nitro("profile", *words)
    assert result.exit_code == code, result.output
    assert named in result.stderr
    assert not left(probe) or code == 6  # what was traced before the loss was no number is kept
    assert not list(probe.rglob(".run-*"))
