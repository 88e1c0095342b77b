"""Training and resuming from the command line: what is told, and how the process ends."""

import json
import tomllib

import pytest

from nitro_cli.errors import ExitCode


def test_train_ends_with_the_history_on_stdout_and_the_run_and_next_commands_on_stderr(probe, nitro):
    result = nitro("train", "Probe", "--max-epochs", "2")
    assert result.exit_code == 0, result.output
    assert "history of Probe" in result.stdout
    assert "mse" in result.stdout
    run = next(path.name for path in (probe / "runs" / "Probe").iterdir() if path.is_dir())
    assert f"run {run} in runs/Probe" in result.stderr
    assert f"nitro resume runs/Probe --run {run} --max-epochs 4" in result.stderr
    assert "nitro evaluate runs/Probe" in result.stderr
    assert result.stderr.count("epoch 1/2  loss") == 1
    assert "a hook prints" in result.stderr
    assert "a hook prints" not in result.stdout


def test_train_json_is_one_document_with_its_keys(probe, nitro_json):
    made = nitro_json("train", "Probe", "--preset", "short")
    assert made["schema"] == 1
    assert {"run", "stop_reason", "epoch", "step", "best", "metrics", "seconds", "compiles"} <= made.keys()
    assert (made["stop_reason"], made["epoch"], made["step"]) == ("completed", 1, 3)
    assert made["best"]["metric"] == "mse"
    assert made["best"]["score"] == made["metrics"]["mse"]
    assert (probe / made["best"]["checkpoint"]).is_dir()


def test_flags_sets_and_presets_reach_the_run(probe, nitro_json):
    words = ["--preset", "short", "--set", "width=5", "--max-epochs", "2", "--run-dir", "here/runs"]
    made = nitro_json("train", "Probe", *words)
    assert made["epoch"] == 2
    assert made["run_dir"] == "here/runs"
    config = (probe / "here" / "runs" / made["run"] / "config.toml").read_text()
    assert "width = 5" in config
    assert 'preset = "short"' in config


def test_quiet_leaves_only_the_result(probe, nitro):
    result = nitro("train", "Probe", "--preset", "short", "--quiet")
    assert result.exit_code == 0
    assert "history of Probe" in result.stdout
    assert result.stderr.replace("a hook prints\n", "") == ""


def test_quiet_holds_for_an_experiment_that_imports_the_handles_names_late(probe, process):
    (probe / "late.py").write_text(
        "from tests.tiny import Quick\n\n\nclass Late(Quick):\n    def build_data(self, dist):\n"
        "        from nitro_cli import progress_note\n\n        progress_note('reading')\n"
        "        return super().build_data(dist)\n"
    )
    done = process("train", "late.py:Late", "--quiet", "--max-epochs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        ("SIGTERM", ExitCode.STOPPED, "stopped by SIGTERM"),
        ("SIGUSR1", ExitCode.STOPPED, "stopped by SIGUSR1"),
        ("SIGINT", ExitCode.INTERRUPTED, "stopped by Ctrl-C"),
    ],
)
def test_a_signal_saves_the_state_and_gives_its_exit_code(probe, nitro, trouble, code, words):
    result = nitro("train", "Probe", "--set", f"trouble={trouble}", "--set", "when=1")
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "; the state is saved" in result.stderr
    assert "nitro resume runs/Probe --run" in result.stderr
    again = nitro("resume", "--set", "trouble=none")
    assert again.exit_code == 0, again.output
    assert "completed at epoch 3" in again.stderr


def test_max_time_stops_with_the_state_saved(probe, nitro_json):
    made = nitro_json("train", "Probe", "--max-time", "0.001s", "--max-epochs", "1000", code=75)
    assert made["stop_reason"] == "requested"
    assert made["stop_cause"] == "max_time"
    assert made["state_saved"] is True


def config_of(folder, made):
    return (folder / made["run_dir"] / made["run"] / "config.toml").read_text()


def test_a_time_limit_is_of_one_call_and_not_of_the_run(probe, nitro_json):
    made = nitro_json("train", "Probe", "--max-time", "0.001s", code=75)
    config = tomllib.loads(config_of(probe, made))
    assert "max_time" in config["unset"]
    assert config["origins"]["max_time"] == "default"
    again = nitro_json("resume", "--max-time", "0.001s", "--set", "noise=0.5", code=75)
    assert "noise = 0.5" in config_of(probe, again)
    assert nitro_json("resume")["stop_reason"] == "completed"


@pytest.mark.parametrize("place", ["file", "file/runs"])
def test_a_run_directory_that_is_a_file_is_refused(probe, nitro, place):
    (probe / "file").touch()
    result = nitro("train", "Probe", "--run-dir", place)
    assert (result.exit_code, "choose another --run-dir" in result.stderr) == (2, True)


def test_a_time_that_is_none_is_refused(probe, nitro):
    result = nitro("train", "Probe", "--max-time", "soon")
    assert (result.exit_code, "write it like 55m" in result.stderr) == (2, True)


def test_a_resume_that_trains_nothing_changes_nothing(probe, nitro, nitro_json):
    words = ("--set", "trouble=SIGTERM", "--set", "when=2", "--max-epochs", "6")
    made = nitro_json("train", "Probe", *words, code=75)
    before = config_of(probe, made)
    result = nitro("resume", "--max-epochs", "1")
    assert "already at epoch" in result.stderr
    assert config_of(probe, made) == before
    assert [run["status"] for run in nitro_json("runs")["runs"]] == ["requested"]
    assert json.loads((probe / made["run_dir"] / made["run"] / "run.json").read_text())["status"] == "requested"
    assert nitro_json("resume", "--set", "trouble=none")["epoch"] == 6


def test_a_run_that_diverges_ends_with_its_own_code(probe, nitro):
    result = nitro("train", "Probe", "--set", "trouble=nans", "--json")
    assert result.exit_code == ExitCode.DIVERGED
    told = json.loads(result.stderr.strip().splitlines()[-1])
    assert told["error"] == "DivergenceError"
    assert "step" in told["where"]


def test_an_exception_in_a_hook_keeps_its_traceback_folded(probe, nitro):
    result = nitro("train", "Probe", "--set", "trouble=raise", "--quiet")
    assert result.exit_code == 1
    assert "ValueError: a mistake in a hook" in result.stderr
    assert "in finalize_metrics" in result.stderr
    assert "frames of nitro …" in result.stderr
    assert "nitro_cli/run" not in result.stderr


@pytest.mark.parametrize(
    ("trouble", "words"), [("memory", "error: out of memory"), ("disk", "error: the disk is full")]
)
def test_memory_and_disk_are_recognised(probe, nitro, trouble, words):
    result = nitro("train", "Probe", "--set", f"trouble={trouble}", "--quiet")
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "nearest"),
    [
        (["Prob"], 3, "Probe"),
        (["Probe", "--preset", "shor"], 3, "short"),
        (["Probe", "--set", "widht=1"], 2, "width"),
        (["Probe", "--set", "width=1.5"], 2, "width"),
        (["Probe", "--max-epochs", "ten"], 2, "max-epochs"),
        (["Probe", "--resume", "latest:latest"], 3, "runs/Probe"),
        (["Probe", "--resume", "auto", "--weights", "latest:best"], 2, "weights"),
        (["experiments/prob.py:Probe"], 3, "probe.py"),
    ],
)
def test_what_is_wrong_is_named_with_its_exit_code(probe, nitro, words, code, nearest):
    result = nitro("train", *words)
    assert result.exit_code == code, result.output
    assert nearest in result.stderr
    assert "Traceback" not in result.stderr
    assert not (probe / "runs").exists() or not any((probe / "runs").rglob("config.toml"))


def test_resume_continues_the_same_run_from_its_own_configuration(trained, nitro_json):
    before = nitro_json("runs")["runs"][0]
    made = nitro_json("resume", "--max-epochs", "5")
    assert made["run"] == before["id"]
    assert (made["epoch"], made["step"], made["preset"]) == (5, 15, "wide")


def test_resume_from_the_best_branches_when_a_later_checkpoint_is_there(trained, nitro, nitro_json):
    first = nitro_json("runs")["runs"][0]
    assert first["best"]["checkpoint"] == first["checkpoints"][-1]["path"]  # the newest is the best: it is continued
    made = nitro_json("resume", "runs/Probe", "--run", first["id"][:4], "--from", "best", "--max-epochs", "4")
    assert made["run"] == first["id"]


def test_resuming_a_finished_run_trains_nothing_and_is_no_error(trained, nitro):
    result = nitro("resume")
    assert result.exit_code == 0
    assert "max_epochs" in result.stderr
    assert "nothing was left to train at epoch 3 of 3" in result.stderr
    assert "--max-epochs 6" in result.stderr


def test_resume_refuses_another_graphconst_value(trained, nitro):
    result = nitro("resume", "--set", "width=4", "--max-epochs", "5")
    assert result.exit_code == ExitCode.INCOMPATIBLE
    assert "width" in result.stderr
