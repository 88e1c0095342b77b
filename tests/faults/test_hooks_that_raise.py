"""Whatever a hook raises, also what Python ends a process with, fails the run and names the hook's line."""

from __future__ import annotations

import json
import textwrap

import pytest
from typer.testing import CliRunner

from nitro_cli.cli.app import app

RAISING = textwrap.dedent(
    """
    import asyncio
    import os
    import sys

    import jax.numpy as jnp
    import numpy as np
    import typer

    from nitro_cli import Experiment, Host, Mean, NoPrefetch


    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")


    class Odd(Exception):
        def __str__(self):
            return 3


    class Mine(BaseException):
        pass


    class Usage(Exception):
        def format_message(self):
            return "not for the command line"


    KINDS = {
        "ValueError": ValueError("a mistake"),
        "SystemExit()": SystemExit(),
        "SystemExit(0)": SystemExit(0),
        "SystemExit(3)": SystemExit(3),
        "SystemExit(text)": SystemExit("leaving"),
        "GeneratorExit": GeneratorExit(),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "StopIteration": StopIteration("one"),
        "StopAsyncIteration": StopAsyncIteration(),
        "CancelledError": asyncio.CancelledError(),
        "BaseException": BaseException("base"),
        "Mine": Mine("mine"),
        "Silent": Silent(),
        "Odd": Odd(),
        "Exit": typer.Exit(0),
        "Abort": typer.Abort(),
        "Usage": Usage(),
        "BrokenPipeError": BrokenPipeError("gone"),
        "ExceptionGroup": ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    }


    def here(place):
        if place == os.environ["RAISING_AT"]:
            raise KINDS[os.environ["RAISING_KIND"]]  # the line of the hook


    class Source:
        def __init__(self, name):
            self.name = name

        def __len__(self):
            return 3

        def __iter__(self):
            for index in range(3):
                if index == 2:
                    here(self.name)
                yield {"x": np.ones((4, 1), np.float32)}


    class Indexed:
        def __len__(self):
            return 2

        def begin_epoch(self, epoch, seed):
            here("begin_epoch")

        def batch_at(self, index, plan):
            if index:
                here("batch_at")
            return {"x": np.ones((4, 1), np.float32)}


    class Rule:
        def should_stop(self, epoch, metrics):
            here("should_stop")

        def state(self):
            here("state")
            return {}

        def load_state(self, state):
            pass


    class Log:
        def log_params(self, params):
            here("log_params")

        def log_metrics(self, metrics, *, step, epoch, context):
            here("log_metrics")

        def log_other(self, key, value):
            here("log_other")

        def finish(self, status):
            here("finish")


    class Raising(Experiment):
        inline: Host[bool] = False
        max_epochs = 2
        monitor = ("m", "min")
        early_stop = Rule()
        logger = Log()
        checkpoint_every_n_steps = 1

        def build_data(self, dist):
            here("build_data")
            train = NoPrefetch(Source("inline")) if self.inline else Source("train")
            return {"train": train, "val": Source("val"), "test": Indexed()}

        def derive(self, data):
            here("derive")
            return {}

        def build_model(self, rng):
            here("build_model")
            return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

        def forward(self, model, params, state, *, x):
            here("forward")
            return model(params, state, x)

        def loss(self, out):
            here("loss")
            return jnp.mean(out**2)

        def metrics(self, out):
            here("metrics")
            return {"m": Mean(out.sum(), len(out))}

        def finalize_metrics(self, acc, split):
            here("finalize_metrics")
            return dict(acc)

        def checkpoint_filename(self, **facts):
            here("checkpoint_filename")
            return f"c{facts['step']:04d}"

        def schedules(self):
            here("schedules")
            return {}

        def visualize(self, outputs, *, x):
            here("visualize")
            return "figure"

        def save_figure(self, figure, stem):
            here("save_figure")
            return stem
    """
)
KINDS = [line.split(chr(34))[1] for line in RAISING.splitlines() if line.startswith('    "') and '": ' in line]
PLACES = (
    "build_data", "derive", "build_model", "forward", "loss", "metrics", "finalize_metrics", "checkpoint_filename",
    "schedules", "train", "inline", "val", "should_stop", "state", "log_params", "log_metrics", "log_other", "finish",
    "batch_at", "visualize", "save_figure",
)  # fmt: skip
WORDS = {
    "batch_at": ["evaluate", "Raising", "--split", "test", "--weights", "latest:latest"],
    "visualize": ["render", "Raising"],
    "save_figure": ["render", "Raising"],
    "inline": ["train", "Raising", "--set", "inline=true"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("raising")
    (made / "experiments").mkdir()
    (made / "experiments" / "raising.py").write_text(RAISING)
    return made


@pytest.fixture
def raising(folder, monkeypatch, tmp_path_factory):
    """Run a command whose hook at `place` raises `kind`, and return its result and the statuses of its runs."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))

    def call(place, kind, run_dir):
        monkeypatch.setenv("NITRO_RUN_DIR", str(run_dir))
        monkeypatch.setenv("RAISING_AT", place)
        monkeypatch.setenv("RAISING_KIND", kind)
        result = CliRunner().invoke(app, WORDS.get(place, ["train", "Raising"]), prog_name="nitro")
        manifest = run_dir / "manifest.json"
        runs = json.loads(manifest.read_text())["runs"].values() if manifest.is_file() else ()
        return result, {run["status"] for run in runs}

    return call


def check(result, statuses, *, where):
    assert result.exit_code == 1, (where, result.output)
    told = result.stderr
    assert "error: here raised" in told, (where, told)
    line = next(n for n, text in enumerate(RAISING.splitlines(), start=1) if "the line of the hook" in text)
    assert f"raising.py:{line}" in told.rpartition("error:")[2], (where, told)
    assert "defect" not in told, (where, told)
    assert statuses <= {"error"}, (where, statuses)


@pytest.mark.parametrize("place", PLACES)
def test_a_hook_that_leaves_the_process_fails_the_run_and_is_named(raising, tmp_path, place):
    if place == "batch_at":
        trained, _ = raising("nowhere", "ValueError", tmp_path / "runs")
        assert trained.exit_code == 0, trained.output
    result, statuses = raising(place, "SystemExit(3)", tmp_path / "runs")
    check(result, statuses - {"completed"}, where=place)


@pytest.mark.parametrize("place", ["build_data", "checkpoint_filename", "inline", "log_metrics"])
def test_every_kind_of_exception_is_an_error_of_the_hook(raising, tmp_path, place):
    # Inside training the exception crosses generators, inline those of the stream too, which treat these in their ways.
    crossing = ["StopIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit()", "Silent"]
    for number, kind in enumerate(crossing if place in ("inline", "log_metrics") else KINDS):
        result, statuses = raising(place, kind, tmp_path / str(number))
        check(result, statuses, where=(place, kind))
        if place == "checkpoint_filename":
            assert statuses == {"error"}, kind


def test_an_exception_without_text_is_told_by_its_name(raising, tmp_path):
    result, _ = raising("build_data", "Silent", tmp_path / "a")
    assert "here raised Silent: (no message: its __str__ raised RuntimeError)" in result.stderr
    result, _ = raising("build_data", "Odd", tmp_path / "b")
    assert "here raised Odd: (no message: its __str__ raised TypeError)" in result.stderr
