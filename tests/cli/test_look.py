"""runs, history, plot, compare: from the files of runs, without JAX."""

import csv
import io
import json
import shutil
import time

import pytest

from nitro_cli.checkpoints import RecordMeta, RunStore
from nitro_cli.experiment import Checkpointer, Last


def test_runs_lists_every_run_with_its_keys_without_jax(trained, process):
    done = process("runs", "--json", block_jax=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["schema"] == 1
    (run,) = made["runs"]
    assert {"id", "experiment", "preset", "status", "epochs", "best", "checkpoints", "parent", "written"} <= run.keys()
    assert (run["preset"], run["status"], run["parent"]) == ("wide", "completed", None)
    assert run["best"].keys() == {"score", "metric", "mode", "checkpoint"}
    assert {"path", "epoch", "step", "score"} <= run["checkpoints"][0].keys()


def test_the_table_of_runs_fits_eighty_columns(trained, nitro, nitro_json):
    for words in (["runs"], ["runs", "runs/Probe"], ["runs", "runs/Probe", "-c"]):
        result = nitro(*words)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert nitro_json("runs")["runs"][0]["id"] in result.stdout
        assert "completed" in result.stdout
        assert "mse" in result.stdout


def test_runs_without_any_is_no_error_and_says_what_to_do(nitro):
    result = nitro("runs")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "nitro train" in result.stderr


def test_runs_names_the_nearest_of_a_wrong_directory_or_id(trained, nitro):
    assert nitro("runs", "runs/Prob").exit_code == 3
    result = nitro("runs", "runs/Probe", "--run", "zzzz")
    assert result.exit_code == 3
    assert "there is no run zzzz" in result.stderr


def test_a_lost_manifest_is_rebuilt_by_rescan(trained, nitro, nitro_json):
    before = nitro_json("runs")["runs"][0]
    (trained / "runs" / "Probe" / "manifest.json").unlink()
    for words in (["runs", "runs/Probe"], ["runs", "runs"], ["runs"], ["history", "runs/Probe"]):
        result = nitro(*words)
        assert result.exit_code == 3, words
        told = " ".join(result.stderr.split())
        assert before["id"] in told
        assert "`nitro runs runs/Probe --rescan`" in told
    after = nitro_json("runs", "runs/Probe", "--rescan")["runs"][0]
    assert after["id"] == before["id"]
    assert [c["path"] for c in after["checkpoints"]] == [c["path"] for c in before["checkpoints"]]


def test_runs_that_a_new_manifest_does_not_list_are_told(trained, nitro, nitro_json):
    lost = nitro_json("runs")["runs"][0]["id"]
    (trained / "runs" / "Probe" / "manifest.json").write_text('{"format": 1, "runs": {}, "entries": []}')
    assert f"its manifest does not list: {lost}" in " ".join(nitro("runs", "runs/Probe").stderr.split())


def test_history_gives_the_rows_without_jax(trained, process):
    done = process("history", "runs/Probe", "--json", block_jax=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert {"train_loss", "mse"} <= rows[0].keys()


def test_history_as_csv_and_as_a_table_of_chosen_metrics(trained, nitro):
    result = nitro("history", "--csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    table = nitro("history", "runs/Probe", "--metric", "mse").stdout
    assert "mse" in table
    assert "train_loss" not in table
    assert nitro("history", "--metric", "mze").exit_code == 2


def test_history_by_run_id_prefix_and_of_the_newest_run(trained, nitro, nitro_json):
    run = nitro_json("runs")["runs"][0]["id"]
    assert nitro_json("history", run[:5])["run"] == run
    newest = nitro("history")
    assert f"run {run} of runs/Probe" in newest.stderr


def test_plot_writes_the_file_it_names(trained, nitro):
    result = nitro("plot", "runs/Probe", "--out", "curves/mse.svg")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == "curves/mse.svg"
    assert "<svg" in (trained / "curves" / "mse.svg").read_text()[:2000]
    assert nitro("plot", "--out", "x.docx").exit_code == 2


def test_compare_shows_what_differs_first(trained, nitro, nitro_json):
    first = nitro_json("runs")["runs"][0]["id"]
    second = nitro_json("train", "Probe", "--preset", "wide", "--learning-rate", "0.02")["run"]
    made = nitro_json("compare", first, second)
    differing = {row["field"]: row["values"] for row in made["differences"]}
    assert differing == {"max_epochs": [3, 1], "learning_rate": [0.1, 0.02]}
    assert made["same"]["width"] == 3
    table = nitro("compare", first, second).stdout
    assert "learning_rate" in table
    assert "width" not in table
    assert max(map(len, table.splitlines())) <= 80
    assert nitro("compare", first).exit_code == 2


def test_compare_of_one_directory_compares_all_its_runs_the_oldest_first(trained, nitro, nitro_json):
    first = nitro_json("runs")["runs"][0]["id"]
    assert nitro("compare", "runs/Probe").exit_code == 2
    second = nitro_json("train", "Probe", "--preset", "wide", "--learning-rate", "0.02")["run"]
    for place in ("runs/Probe", "runs"):
        made = nitro_json("compare", place)
        assert [run["id"] for run in made["runs"]] == [first, second]
        assert "learning_rate" in {row["field"] for row in made["differences"]}
    (trained / "runs" / "Probe" / second / "config.toml").unlink()
    assert nitro("compare", "runs/Probe").exit_code == 2


def test_a_run_that_is_removed_by_hand_leaves_no_ghost(trained, nitro, nitro_json):
    kept = nitro_json("runs")["runs"][0]["id"]
    gone = nitro_json("train", "Probe", "--preset", "short")["run"]
    shutil.rmtree(trained / "runs" / "Probe" / gone)
    for words in (
        ["runs"],
        ["history", "runs/Probe"],
        ["evaluate", "runs/Probe"],
        ["checkpoint", "info", "latest:best"],
    ):
        result = nitro(*words)
        assert result.exit_code == 0, result.output
        assert gone not in result.output, words
    assert [run["id"] for run in nitro_json("runs")["runs"]] == [kept]
    assert nitro("runs", "runs/Probe", "--run", gone).exit_code == 3


@pytest.mark.parametrize(
    ("trouble", "cause", "shown", "code"),
    [("SIGINT", "sigint", "interrupted", 130), ("SIGTERM", "sigterm", "SIGTERM", 75)],
)
def test_runs_says_what_asked_for_a_stop(probe, nitro, nitro_json, trouble, cause, shown, code):
    assert nitro("train", "Probe", "--set", f"trouble={trouble}").exit_code == code
    result = nitro("runs")
    assert shown in result.stdout
    assert "requested" not in result.stdout
    assert "the checkpointer's `keep`" in result.stderr
    (run,) = nitro_json("runs")["runs"]
    assert (run["status"], run["stop_cause"]) == ("requested", cause)
    about = probe / "runs" / "Probe" / run["id"] / "run.json"
    whole = about.read_text()
    about.write_text(json.dumps({**json.loads(whole), "stop_cause": [cause]}))
    assert nitro_json("runs")["runs"][0]["stop_cause"] is None
    about.write_text(whole)
    assert nitro("resume", "--set", "trouble=none").exit_code == 0
    (run,) = nitro_json("runs")["runs"]
    assert (run["status"], run["stop_cause"]) == ("completed", None)


def test_the_help_of_runs_says_one_thing_about_no_argument(nitro):
    told = " ".join(nitro("runs", "--help").stdout.split())
    assert "without RUN_DIR all under runs/" in told
    assert "newest run under runs/" not in told
    assert "newest by default" not in told


@pytest.mark.parametrize("sort", ["written", "created", "best", "epochs", "preset"])
def test_runs_sort_and_limit(trained, nitro_json, sort):
    assert len(nitro_json("runs", "--sort", sort, "--limit", "1")["runs"]) == 1


def test_a_picture_that_cannot_be_written_is_told_without_a_traceback(trained, nitro):
    (trained / "there.png").mkdir()
    (trained / "file").touch()
    for place in ("there.png", "file/history.png"):
        result = nitro("plot", "runs/Probe", "--out", place)
        assert (result.exit_code, f"cannot write {place}" in result.stderr) == (1, True)
        assert "Traceback" not in result.stderr


def ahead(monkeypatch, root, days):
    """A finished run with a history, written by a clock that is so many days ahead."""
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + days * 86400)
        store = RunStore.create(root, experiment="m:Probe", checkpointer=Checkpointer(keep=(Last(1),)))
        store.save(RecordMeta(), {"params/w": 1}, epoch=1, step=1, name="e1", final=True)
        store.set_status("completed")
        store.close()
    (store.path / "history.jsonl").write_text('{"epoch":1,"step":1,"loss":0.5}\n')
    return store.id


def test_a_time_still_to_come_is_shown_as_one_and_makes_no_run_the_newest(trained, nitro, nitro_json, monkeypatch):
    mine = nitro_json("runs")["runs"][0]["id"]
    other = ahead(monkeypatch, "runs/Ahead", 400)
    shown = nitro("runs").stdout
    assert "400 d ahead" in shown
    assert nitro("history").stderr.startswith(f"run {mine} of runs/Probe")
    again = ahead(monkeypatch, "runs/Ahead", 0)
    assert nitro("history", "runs/Ahead").stderr.startswith(f"run {again} of")
    assert nitro("history").stderr.startswith(f"run {again} of")
    listed = nitro("runs", "runs/Ahead").stdout
    assert listed.index(again) < listed.index(other)


def test_verify_and_rescan_say_what_is_gone(trained, nitro, nitro_json):
    gone = nitro_json("runs")["runs"][0]["checkpoints"][0]["path"]
    shutil.rmtree(trained / "runs" / "Probe" / gone)
    result = nitro("checkpoint", "verify", "runs/Probe")
    assert result.exit_code == 5
    assert "GONE" in result.stdout
    assert "is gone from the disk" in " ".join(result.stderr.split())
    assert nitro_json("checkpoint", "verify", "runs/Probe", code=5)["damaged"] == 1
    told = nitro("runs", "runs/Probe", "--rescan")
    assert (told.exit_code, "lists it no longer" in " ".join(told.stderr.split())) == (0, True)
    assert nitro("checkpoint", "verify", "runs/Probe").exit_code == 0


def test_an_average_is_not_written_through_a_link(trained, nitro, nitro_json):
    (trained / "elsewhere").mkdir()
    (trained / "runs" / "Probe" / nitro_json("runs")["runs"][0]["id"] / "averages").symlink_to(trained / "elsewhere")
    assert nitro("average", "runs/Probe", "--select", "last(2)").exit_code == 5
    assert not list((trained / "elsewhere").iterdir())


@pytest.mark.parametrize("columns", ["0", "000", "-3", "wide"])
def test_a_width_that_is_none_hides_nothing(trained, nitro, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert "completed" in nitro("runs").stdout
    assert "train_loss" in nitro("history", "runs/Probe").stdout
