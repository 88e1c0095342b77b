"""`~` where a shell does not replace it: in `--run-dir=~/a`, a preset, the environment, Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nitro_cli import Experiment, Host, Nitro, average_checkpoints, checkpoint_info, read_manifest, runs
from nitro_cli.experiment import TensorBoardLogger
from nitro_cli.registry import resolve
from nitro_cli.tracking import JSONLogger


@pytest.fixture
def home(tmp_path, monkeypatch):
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    return made


class Pathy(Experiment):
    data: Host[Path] = Path("~/data")
    several: Host[tuple[Path, ...]] = ()
    maybe: Host[Path | None] = None
    text: Host[str] = "~/text"


def test_every_way_to_give_a_path_expands_it_and_text_stays_text(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ways = {
        "flag": resolve(Pathy, flags={"run_dir": "~/a"}).experiment,
        "set": resolve(Pathy, sets=["run_dir=~/a"]).experiment,
        "environment": resolve(Pathy, env={"NITRO_RUN_DIR": "~/a"}).experiment,
        "keyword": resolve(Pathy, keywords={"run_dir": Path("~/a")}).experiment,
        "python": Pathy(run_dir="~/a"),
    }
    assert {name: e.run_dir for name, e in ways.items()} == dict.fromkeys(ways, home / "a")
    e = Pathy(several=["~/x", "y/~", "~"], maybe="~/z")
    assert (e.several, e.maybe, e.text) == ((home / "x", Path("y/~"), home), home / "z", "~/text")
    assert Pathy().data == home / "data"
    assert JSONLogger("~/log").path == home / "log"
    assert TensorBoardLogger(log_dir="~/tb").log_dir == home / "tb"


def test_a_preset_and_the_project_expand_it(home, probe, nitro_json, nitro):
    (probe / "presets" / "Probe" / "away.toml").write_text(
        '[fields]\nrun_dir = "~/away"\nlogger = { kind = "json", path = "~/l" }\n'
    )
    (probe / "pyproject.toml").write_text('[tool.nitro]\nrun_dir = "~/project"\n')
    shown = {f["name"]: f["value"] for f in nitro_json("show", "Probe", "--preset", "away")["fields"]}
    assert shown["run_dir"] == str(home / "away")
    assert shown["logger"]["path"] == str(home / "l")
    shown = {f["name"]: f["value"] for f in nitro_json("show", "Probe")["fields"]}
    assert shown["run_dir"] == str(home / "project")


def test_commands_read_and_write_below_the_home_directory(home, probe, nitro):
    def done(*words):
        result = nitro(*words)
        assert result.exit_code == 0, (words, result.output)
        return result

    done("train", "Probe", "--run-dir=~/a", "--max-epochs", "1", "--cache-dir=~/cache")
    (summary,) = runs("~/a")
    record = f"~/a/{summary.checkpoints[0].path}"
    np.savez(home / "in.npz", x=np.ones((3, 2), np.float32))
    done("history", "~/a")
    done("runs", "~/a")
    done("compare", "~/a", f"~/a/{summary.id}")
    done("plot", "~/a", "--out=~/out/h.png")
    done("checkpoint", "info", "~/a:latest:latest")
    done("checkpoint", "verify", "~/a")
    done("checkpoint", "prune", "~/a", "--dry-run")
    done("average", "~/a", "--select", "last(1)", "--save=~/avg")
    done("predict", "~/a", "--input=~/in.npz", "--output=~/out.npz")
    done("evaluate", record)
    done("evaluate", "Probe", f"--weights={record}")
    done("resume", "~/a", "--max-epochs", "2")

    done("new", "other", "--dir=~/other")
    assert {"a", "cache", "out", "avg", "out.npz", "other"} <= {p.name for p in home.iterdir()}
    assert not list(probe.rglob("~*"))
    # the same in Python
    assert read_manifest("~/a").entries
    assert checkpoint_info("~/avg")
    import nitro_cli

    average_checkpoints("~/a", "latest", nitro_cli.Average(nitro_cli.Last(1)), save="~/avg2")
    e = resolve(f"{probe}/experiments/probe.py:Probe").experiment
    handle = Nitro(e, weights="~/avg2", run_dir="~/b")
    assert handle.run_dir == home / "b"
    assert (home / "avg2").is_dir()
