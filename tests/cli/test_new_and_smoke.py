"""A new project works as it is written; smoke takes experiments through everything."""

import re
import tomllib

import pytest

from nitro_cli.cli.project_template import ProjectNames
from nitro_cli.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("rings", ("rings", "rings", "Rings")),
        ("my-experiments", ("my-experiments", "my_experiments", "MyExperiments")),
        ("MyRings", ("my-rings", "my_rings", "MyRings")),
        ("a_b.c", ("a-b-c", "a_b_c", "ABC")),
    ],
)
def test_the_names_of_a_project_follow_from_one(given, names):
    made = ProjectNames.of(given)
    assert (made.distribution, made.package, made.experiment) == names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("numpy", "a package numpy is installed"),
        ("Num-Py", None),
        ("json", "Python's own library"),
        ("nitro-cli", "a package nitro_cli is installed"),
        ("jax-nitro", "jax-nitro .* is installed"),
        ("match", "a word of Python"),
        ("tests", "tests"),
    ],
)
def test_a_name_that_would_hide_or_replace_what_is_installed_is_refused_with_the_reason(nitro, tmp_path, name, why):
    result = nitro("new", name)
    if why is None:
        assert result.exit_code == 0
        return
    assert result.exit_code == 2
    assert re.search(why, result.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "1a", "class", "a/b", "ü", "-"])
def test_a_name_that_python_or_pip_refuses_is_refused(name):
    with pytest.raises(ConfigError):
        ProjectNames.of(name)


def test_a_new_project_declares_its_experiment_and_trains(nitro, nitro_json, tmp_path, monkeypatch):
    made = nitro_json("new", "Two-Rings")
    assert made["directory"] == "two-rings"
    project = tomllib.loads((tmp_path / "two-rings" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["nitro.experiments"] == {"TwoRings": "two_rings.experiment:TwoRings"}
    assert next(name for name in project["dependencies"] if "nitro" in name).startswith("jax-nitro")
    assert nitro("new", "two-rings").exit_code == 2
    monkeypatch.chdir(tmp_path / "two-rings")
    assert nitro_json("presets", "show", "two_rings/experiment.py:TwoRings", "quick")["fields"]
    trained = nitro_json("train", "two_rings/experiment.py:TwoRings", "--preset", "quick")
    assert trained["metrics"]["accuracy"] > 0.95
    for backend in ("bundle", "onnx", "safetensors"):
        assert nitro_json("export", "runs/TwoRings", "--backend", backend)["files"] >= 1
    info = nitro_json("bundle", "info", "runs/TwoRings/export/TwoRings")
    assert [tensor["name"] for tensor in info["manifest"]["inputs"]] == ["point"]


def test_smoke_takes_every_preset_through_the_real_path(probe, nitro_json):
    made = nitro_json("smoke", "Probe", "--preset", "short")
    (result,) = made["results"]
    assert result["ok"], result
    steps = {step["name"]: step["detail"] for step in result["steps"]}
    assert list(steps) == ["train", "resume", "evaluate", "average", "reload", "export"]
    assert steps["train"].startswith("stopped by SIGTERM")
    assert steps["resume"].startswith("completed at epoch 2, step 4")
    assert steps["export"] == "bundle with outputs"
    assert not (probe / "runs").exists()


def test_smoke_reports_what_failed_and_goes_on(probe, nitro):
    (probe / "presets" / "Probe" / "bad.toml").write_text("[fields]\nwidht = 1\n")
    result = nitro("smoke", "Probe", "--set", "trouble=raise", "--set", "when=1")
    assert result.exit_code == 1
    assert "FAILED in resolve  Probe bad" in result.stdout
    assert "FAILED in resume  Probe short" in result.stdout or "FAILED in train  Probe short" in result.stdout
    assert "ValueError: a mistake in a hook" in result.stderr
    assert "widht" in result.stderr


def test_train_smoke_is_the_same_for_one_experiment(probe, nitro):
    result = nitro("train", "Probe", "--smoke")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("ok  Probe")
    assert not (probe / "runs").exists()


def test_a_warm_up_longer_than_a_smoke_run_is_shortened():
    from nitro_cli.optim import warmup_cosine
    from nitro_cli.smoke_run import _short_warmup

    assert _short_warmup({"kind": "warmup_cosine", "warmup_steps": 500})["warmup_steps"] == 2
    assert _short_warmup(warmup_cosine(0.1, 500)).schedule.warmup_steps == 2
    for kept in (0.1, {"kind": "cosine"}, {"warmup_steps": 1}):
        assert _short_warmup(kept) is kept


def test_smoke_takes_a_preset_whose_warm_up_is_long(probe, nitro):
    set_it = "schedules.learning_rate={kind='warmup_cosine', peak_value=0.1, warmup_steps=500}"
    done = nitro("smoke", "Probe", "--set", set_it)
    assert done.exit_code == 0, done.output
