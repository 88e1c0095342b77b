"""Experiments whose hooks a task of an installed distribution supplies, on the command line."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.tasks import TASKS
from tests.installed_tasks import install_tasks

REPOSITORY = Path(__file__).parents[2]
EXPERIMENT = """
from nitro_cli.tasks import Task
from tiny import Tiny


class Judged(Tiny):
    loss = None
    metrics = None
    task: Task
    max_epochs = 1
"""
PRESET = """
[fields]
task = { kind = "soft", smoothing = 0.1 }

[schedules]
task.smoothing = { kind = "linear", init_value = 0.1, end_value = 0.0 }
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with an experiment whose preset names a task."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "judged.py").write_text(EXPERIMENT.replace("from tiny", "from .tiny"))
    shutil.copy(REPOSITORY / "tests" / "tiny.py", tmp_path / "experiments" / "tiny.py")
    (tmp_path / "presets" / "Judged").mkdir(parents=True)
    (tmp_path / "presets" / "Judged" / "soft.toml").write_text(PRESET)
    monkeypatch.syspath_prepend(str(install_tasks(tmp_path / "site")))
    monkeypatch.setenv("NITRO_NO_PLUGINS", "0")
    importlib.invalidate_caches()
    # Another test's tasks of the same names may be held, whose folder is gone.
    monkeypatch.setattr(TASKS, "_held", {k: v for k, v in TASKS._held.items() if v.__module__ != "soft_tasks"})
    yield tmp_path
    sys.modules.pop("soft_tasks", None)


def test_list_tells_the_installed_tasks_without_importing_them(nitro: Any, nitro_json: Callable[..., Any]) -> None:
    listed = nitro_json("list", "tasks")["tasks"]
    installed = [row for row in listed if row["distribution"] is not None]  # others were registered in this process
    assert [(row["id"], row["version"], row["distribution"]) for row in installed] == [
        ("soft", 1, "soft-tasks"),
        ("soft", 2, "soft-tasks"),
    ]
    assert "soft_tasks" not in sys.modules
    shown = nitro("list", "tasks")
    assert "soft-tasks" in shown.stdout
    assert nitro("list", "experiments").stdout == nitro("list").stdout
    refused = nitro("list", "taks")
    assert refused.exit_code == 2
    assert "tasks" in refused.stderr


def test_show_tells_the_fields_inside_a_part_and_who_supplies_each_hook(
    nitro: Any, nitro_json: Callable[..., Any]
) -> None:
    made = nitro_json("show", "Judged", "--preset", "soft", "--set", "task.smoothing=0.2")
    fields = {row["name"]: row for row in made["fields"]}
    assert fields["task"]["value"]["kind"] == "soft"
    inside = fields["task.smoothing"]
    assert (inside["kind"], inside["type"], inside["value"]) == ("device", "float", 0.2)
    assert (inside["origin"], inside["default"]) == ("--set task.smoothing=0.2", 0.0)
    assert inside["doc"].startswith("The share of a target")
    assert made["schedules"] == {"task.smoothing": {"kind": "linear", "init_value": 0.1, "end_value": 0.0}}
    assert (made["hooks"]["loss"], made["hooks"]["forward"]) == ("task (soft)", "Tiny")
    shown = nitro("show", "Judged", "--preset", "soft")
    assert shown.exit_code == 0, shown.output
    assert "task (soft)" in shown.stdout


def test_a_run_is_trained_shown_compared_and_resumed(project: Path, nitro: Any, nitro_json: Callable[..., Any]) -> None:
    for words in (("--preset", "soft"), ("--set", 'task={kind="soft"}', "--set", "task.smoothing=0.3")):
        done = nitro("train", "Judged", *words)
        assert done.exit_code == 0, done.output
    runs = [path.name for path in sorted((project / "runs" / "Judged").iterdir()) if path.is_dir()]
    runs = [name for name in runs if (project / "runs" / "Judged" / name / "config.toml").exists()]
    fields = {row["name"]: row for row in nitro_json("show", str(project / "runs" / "Judged" / runs[0]))["fields"]}
    assert fields["task.smoothing"]["value"] in (0.1, 0.3)
    compared = nitro("compare", *runs, "--all")
    assert "task.smoothing" in compared.stdout, compared.output
    resumed = nitro("resume", str(project / "runs" / "Judged" / runs[0]), "--max-epochs", "2")
    assert resumed.exit_code == 0, resumed.output
    history = json.loads(nitro("history", str(project / "runs" / "Judged" / runs[0]), "--json").stdout)
    assert "acc" in json.dumps(history)


def test_an_unknown_task_in_a_preset_is_told_at_its_line_with_the_nearest(project: Path, nitro: Any) -> None:
    preset = project / "presets" / "Judged" / "soft.toml"
    preset.write_text(PRESET.replace('"soft"', '"sofd"'))
    refused = nitro("train", "Judged", "--preset", "soft")
    assert refused.exit_code == 2
    assert "there is no task sofd" in refused.stderr
    assert "soft.toml:3" in refused.stderr
    checked = nitro("presets", "check")
    assert checked.exit_code != 0
    assert "sofd" in checked.output


def test_a_part_of_which_nothing_is_used_is_refused_before_anything_runs(project: Path, nitro: Any) -> None:
    source = project / "experiments" / "judged.py"
    source.write_text(source.read_text().replace("    loss = None\n    metrics = None\n", ""))
    refused = nitro("train", "Judged", "--preset", "soft")
    assert refused.exit_code == 2
    assert "the part task (soft) of Judged is not used" in refused.stderr
    assert not (project / "runs").exists()
