"""validate, evaluate, predict, average: what TARGET means, and what is told."""

import os
import shutil

import numpy as np
import pytest

from nitro_cli.checkpoints import RunStore
from nitro_cli.errors import ExitCode


@pytest.fixture
def run(nitro_json):
    return lambda: nitro_json("runs")["runs"][0]


def test_evaluate_json_has_its_keys(trained, nitro_json, run):
    made = nitro_json("evaluate", "runs/Probe", "--split", "test")
    assert {"experiment", "run", "checkpoint", "split", "metrics"} <= made.keys()
    assert (made["experiment"], made["run"], made["split"]) == ("Probe", run()["id"], "test")
    assert made["checkpoint"].endswith(run()["best"]["checkpoint"])
    assert made["metrics"].keys() == {"mse"}


def test_validate_gives_the_metrics_that_training_recorded_for_the_best_epoch(trained, nitro_json, run):
    made = nitro_json("validate", "runs/Probe")
    assert made["split"] == "val"
    assert made["metrics"]["mse"] == pytest.approx(run()["best"]["score"], rel=1e-6)


def test_every_form_of_a_target_means_the_same_checkpoint(trained, nitro_json, run):
    best = run()["best"]["checkpoint"]
    forms = ["runs/Probe", f"runs/Probe/{run()['id']}", run()["id"], run()["id"][:5], f"runs/Probe/{best}"]
    made = [nitro_json("validate", form) for form in forms]
    made.append(nitro_json("validate"))
    made.append(nitro_json("validate", "Probe", "--preset", "wide", "--weights", "latest:best"))
    assert {m["metrics"]["mse"] for m in made} == {made[0]["metrics"]["mse"]}
    assert {m["checkpoint"].rpartition("/")[2] for m in made} == {best.rpartition("/")[2]}
    assert {m["run"] for m in made} == {run()["id"]}


def test_a_run_is_named_by_the_directory_one_stands_in(trained, nitro, nitro_json, run, monkeypatch):
    held = run()
    code = ("--experiment", f"{trained}/experiments/probe.py:Probe")
    place = trained / "runs" / "Probe" / held["id"]
    mse = nitro_json("validate", "runs/Probe")["metrics"]["mse"]
    made = nitro_json("validate", f"runs/Probe/{held['id']}/checkpoints/..")
    assert (made["run"], made["metrics"]["mse"]) == (held["id"], mse)
    record = place / held["best"]["checkpoint"]
    record = record if record.is_dir() else place.parent / held["best"]["checkpoint"]
    for folder, text in ((place, "."), (place / "checkpoints", "..")):
        monkeypatch.chdir(folder)
        made = nitro_json("validate", text, *code)
        assert (made["run"], made["metrics"]["mse"]) == (held["id"], mse)
        assert nitro_json("compare", text, place)["runs"][0]["id"] == held["id"]
        for words in (("history",), ("checkpoint", "info"), ("checkpoint", "verify")):
            result = nitro(*words, text)
            assert result.exit_code == 0, (words, result.output)
    monkeypatch.chdir(record)
    assert nitro_json("validate", ".", *code)["metrics"]["mse"] == mse
    assert record.name in nitro("checkpoint", "info", ".").stdout
    monkeypatch.chdir(place)
    assert nitro_json("average", ".", "--select", "last(1)", *code)
    assert nitro_json("resume", ".", "--max-epochs", "4", *code)["run"] == held["id"]


def test_what_was_chosen_is_said(trained, nitro, run):
    assert f"run {run()['id']} of runs/Probe, best checkpoint epoch-" in nitro("validate").stderr
    assert "latest checkpoint" in nitro("validate", "--checkpoint", "latest").stderr


WIDE = ["Probe", "--set", "width=3"]


def test_a_checkpoint_is_named_the_same_way_to_every_command(trained, nitro_json):
    run = nitro_json("runs")["runs"][0]
    best, of_best = run["best"]["checkpoint"], nitro_json("evaluate", "--split", "val")["metrics"]
    for name in ("latest:best", f"{run['id'][:4]}:best", "runs/Probe:latest:best", f"runs/Probe/{run['id']}:best"):
        assert nitro_json("checkpoint", "info", name)["path"].endswith(best), name
        assert nitro_json("checkpoint", "verify", name)["checkpoints"][0]["path"].endswith(best), name
        made = nitro_json("evaluate", name, "--split", "val")
        assert (made["run"], made["metrics"]) == (run["id"], of_best), name
        if not name.startswith("runs/Probe/"):
            weighted = nitro_json("evaluate", *WIDE, "--weights", name, "--split", "val")
            assert weighted["metrics"] == of_best, name
    made = nitro_json("evaluate", "runs/Probe:latest:average(last(2))", "--split", "val")
    weighted = nitro_json("evaluate", *WIDE, "--weights", "latest:average(last(2))", "--split", "val")
    assert made["metrics"] == weighted["metrics"] != of_best
    resumed = nitro_json("train", *WIDE, "--resume", "runs/Probe:latest:latest", "--max-epochs", "4")
    assert (resumed["run"], resumed["epoch"]) == (run["id"], 4)


@pytest.mark.parametrize("name", ["latest:bset", "0000aaaa:best", "nowhere:latest:best", "runs/none:best"])
def test_a_checkpoint_that_is_not_there_is_not_found_by_every_command(trained, nitro, name):
    for words in (["evaluate", name], ["evaluate", *WIDE, "--weights", name], ["checkpoint", "info", name],
                  ["checkpoint", "verify", name], ["train", *WIDE, "--resume", name]):  # fmt: skip
        assert nitro(*words).exit_code == 3, words


def test_a_checkpoint_is_chosen_by_name_or_prefix(trained, nitro, nitro_json):
    made = nitro_json("validate", "runs/Probe", "--checkpoint", "epoch-0001")
    assert "epoch-0001" in made["checkpoint"]
    result = nitro("validate", "runs/Probe", "--checkpoint", "epoch-0009")
    assert result.exit_code == 3
    assert "epoch-000" in result.stderr


def test_a_run_directory_that_was_moved_still_works(trained, nitro_json, tmp_path):
    shutil.move(trained / "runs", trained / "elsewhere")
    assert nitro_json("validate", "elsewhere/Probe")["metrics"]["mse"] >= 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["evaluate", "Probe"], 2, "--weights latest:best"),
        (["evaluate", "nothing"], 3, "`nitro runs` the runs"),
        (["evaluate", "runs/Prbe"], 3, "Probe"),
        (["evaluate", "runs/Probe", "--split", "tset"], 3, "test"),
        (["evaluate", "runs/Probe", "--preset", "wide"], 2, "--set"),
        (["evaluate", "runs/Probe", "--weights", "latest:best"], 2, "--weights"),
        (["evaluate", "Probe", "--checkpoint", "best", "--weights", "latest:best"], 2, "--weights latest:best"),
        (["evaluate", "Probe", "--weights", "latest:best"], 4, "w: float32[2] here"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_exit_code(trained, nitro, words, code, told):
    result = nitro(*words)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stdout == ""


def test_set_replaces_a_value_of_the_record(trained, nitro_json):
    plain = nitro_json("validate")["metrics"]["mse"]
    noisy = nitro_json("validate", "--set", "noise=10.0")["metrics"]["mse"]
    assert noisy == pytest.approx(plain + 100.0, rel=0.5)


def test_a_record_outside_its_run_says_what_it_is_of(trained, nitro_json, run):
    score = run()["best"]["score"]
    shutil.copytree(trained / "runs" / "Probe" / run()["best"]["checkpoint"], trained / "copied")
    shutil.rmtree(trained / "runs")
    made = nitro_json("validate", "copied")
    assert (made["experiment"], made["run"], made["checkpoint"]) == ("Probe", None, "copied")
    assert made["metrics"]["mse"] == pytest.approx(score)
    assert nitro_json("validate", "Probe", "--preset", "wide", "--weights", "copied")["metrics"] == made["metrics"]


def test_predict_streams_all_samples_in_order(trained, nitro, nitro_json):
    x = np.random.default_rng(1).normal(size=(21, 3)).astype(np.float32)
    np.savez(trained / "new.npz", x=x, other=np.zeros(5))
    made = nitro_json("predict", "-i", "new.npz", "-o", "out.npz", "--batch-size", "8")
    assert made["samples"] == 21
    assert made["arrays"] == {"outputs": {"shape": [21], "dtype": "float32"}}
    with np.load(trained / "out.npz") as held:
        outputs = held["outputs"]
    assert nitro("predict", "-i", "new.npz", "-o", "whole.npz", "--batch-size", "21").exit_code == 0
    with np.load(trained / "whole.npz") as held:
        np.testing.assert_allclose(outputs, held["outputs"], rtol=1e-6)
    weights = np.linalg.lstsq(np.c_[x, np.ones(21)], outputs, rcond=None)[0]
    np.testing.assert_allclose(np.c_[x, np.ones(21)] @ weights, outputs, atol=1e-5)  # a line, as the experiment says


def test_predict_refuses_to_overwrite_and_leaves_nothing_behind_when_it_fails(trained, nitro):
    np.savez(trained / "bad.npz", y=np.zeros((4, 3), np.float32))
    (trained / "there.npz").write_bytes(b"mine")
    np.save(trained / "x.npy", np.zeros((4, 3), np.float32))
    assert nitro("predict", "-i", "x.npy", "-o", "there.npz").exit_code == 2
    assert (trained / "there.npz").read_bytes() == b"mine"
    result = nitro("predict", "-i", "bad.npz", "-o", "out.npz")
    assert result.exit_code == 2
    assert "it holds y" in result.stderr
    np.save(trained / "x.npy", np.zeros((4, 9), np.float32))
    assert nitro("predict", "-i", "x.npy", "-o", "out.npz").exit_code != 0
    assert not (trained / "out.npz").exists()
    assert not list(trained.glob(".out.npz*"))
    assert nitro("predict", "-i", "missing.npz", "-o", "out.npz").exit_code == 3


def test_predict_names_an_input_unlike_those_of_training(trained, nitro):
    np.savez(trained / "bad.npz", x=np.zeros((4, 9), np.float32))
    result = nitro("predict", "-i", "bad.npz", "-o", "out.npz")
    assert result.exit_code == 2
    assert "field x is float32[4, 9], the model was trained with float32[n, 3]" in " ".join(result.stderr.split())
    np.savez(trained / "wide.npz", x=np.zeros((4, 3), np.float64))
    told = nitro("predict", "-i", "wide.npz", "-o", "out.npz")  # works: told only
    assert (told.exit_code, "input x is float64[4, 3]" in told.stderr) == (0, True)


def test_average_writes_a_record_that_evaluates(trained, nitro, nitro_json, run):
    made = nitro_json("average", "runs/Probe", "--select", "last(2)", "--save", "mean", "--evaluate", "val")
    assert made["path"] == "mean"
    assert len(made["averaged_from"]["epochs"]) == 2
    assert made["metrics"]["mse"] >= 0
    assert nitro("average", "--select", "last(2)", "--save", "mean").exit_code == 2
    result = nitro("average", "--select", "last(2)")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == f"runs/Probe/{run()['id']}/averages/average-last-2"
    assert nitro_json("validate", result.stdout.strip())["metrics"]["mse"] == pytest.approx(made["metrics"]["mse"])
    assert nitro("average", "--select", "lats(2)").exit_code == ExitCode.USAGE


def test_an_average_of_fewer_than_asked_says_how_many_and_is_called_so(trained, nitro, nitro_json, run):
    kept = len(set(run()["epochs"]))
    result = nitro("average", "--select", "last(10)")
    assert result.exit_code == 0, result.output
    assert f"last(10) finds {kept} checkpoints" in " ".join(result.stderr.split())
    assert result.stdout.strip().endswith(f"/averages/average-last-{kept}")
    made = nitro_json("average", "--select", "last(10)", "--save", "fewer")
    assert (made["averaged_from"]["spec"], len(made["averaged_from"]["epochs"])) == (
        f"average(last({kept}), state=latest)",
        kept,
    )
    gone = nitro("average", "--select", "epochs(1:9)", "--save", "none")
    assert (gone.exit_code, "does not keep: epoch" in gone.stderr) == (3, True)


@pytest.fixture
def failed(trained, nitro):
    """The id of a newer run that failed before its first checkpoint."""
    store = RunStore.create("runs/Probe", experiment="m:Probe", checkpointer=None)
    store.set_status("error")
    store.close()
    return store.id


@pytest.mark.parametrize("target", [[], ["runs/Probe"]])
@pytest.mark.parametrize(("command", "what"), [("validate", "checkpoint"), ("history", "history")])
def test_a_newer_run_that_holds_nothing_to_read_is_passed_over_and_said(
    trained, nitro, failed, command, what, target, run
):
    result = nitro(command, *target)
    assert result.exit_code == 0, result.output
    assert f"{failed} (error) has no {what}" in " ".join(result.stderr.split())
    named = nitro(command, *target, "--run", failed)
    assert named.exit_code == 3
    assert "passed over" not in named.stderr


def test_a_run_whose_checkpoints_are_all_set_aside_is_damaged_not_untrained(trained, nitro, nitro_json, run):
    folder = trained / "runs" / "Probe" / run()["id"] / "checkpoints"
    names = [path.name for path in folder.iterdir()]
    for name in names:
        (folder / name).rename(folder / f"{name}.corrupt-1")
    result = nitro("evaluate", "runs/Probe")
    assert result.exit_code == ExitCode.INTEGRITY
    assert f"{sorted(names)[0]}.corrupt-1" in " ".join(result.stderr.split())
    made = nitro_json("checkpoint", "verify", "runs/Probe", code=5)
    assert made["damaged"] == len(names)


def test_a_split_that_is_not_there_names_the_commands_for_those_there_are(trained, nitro):
    result = nitro("evaluate", "--split", "held")
    told = " ".join(result.stderr.split())
    assert (result.exit_code, "there is no split 'held'" in told) == (3, True)
    assert "nitro validate" in told
    assert "nitro evaluate --split test" in told


def test_average_goes_on_with_a_split_that_the_run_had(trained, nitro, run):
    assert "nitro evaluate a" in nitro("average", "--save", "a").stderr
    file = trained / "runs" / "Probe" / run()["id"] / "run.json"
    file.write_text(file.read_text().replace('"split": "test"', '"split": "held"'))
    assert "nitro validate b" in nitro("average", "--save", "b").stderr


@pytest.mark.parametrize("words", [["resume"], ["validate"], ["show"], ["validate", "--checkpoint"], ["compare"]])
def test_a_pipe_in_the_place_of_a_configuration_is_one_integrity_error(trained, nitro, run, words):
    config = trained / "runs" / "Probe" / run()["id"] / "config.toml"
    target = f"runs/Probe/{run()['best']['checkpoint']}" if words[1:] else "runs/Probe"
    config.unlink()
    os.mkfifo(config)
    result = nitro(words[0], target, *([target] if words == ["compare"] else []))
    assert result.exit_code == ExitCode.INTEGRITY, result.output
    assert "config.toml is no plain file of a run" in " ".join(result.stderr.split())
    assert "named pipe" in result.stderr
