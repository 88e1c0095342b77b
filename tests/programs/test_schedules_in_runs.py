"""Schedules through whole runs: what compiles, what the train lines and the setup report say."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Device, Nitro, cache_stats, set_progress_reporter
from nitro_cli.optim import SAM, Plateau, cosine, linear
from nitro_cli.tracking import JSONLogger
from tests.tiny import Bare, points


class Grouped(Bare):
    """Two groups, a Device field of every kind, a perturbing rule, clipping and decay: nothing left out."""

    pull: Device[float] = 0.0
    repeats: Device[int] = 1
    offsets: Device[Any] = np.zeros(3, np.float32)
    radius: float = 0.1
    samples: int = 16
    learning_rate = 0.1
    weight_decay = 0.01
    gradient_clip_norm = 100.0
    checkpointer = None
    logger = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(self.samples, 1), self.batch_size)}

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        return super().loss(outputs + self.offsets, y=y) * self.repeats + self.pull * jnp.mean(outputs)

    def optimizer(self, group: str) -> Any:
        return partial(optax.sgd, momentum=0.5)

    def param_group(self, path: Any) -> str:
        return "bias" if path[0] == "bias" else "default"

    def group_learning_rate(self, group: str) -> float:
        return self.learning_rate / 4 if group == "bias" else self.learning_rate

    def grad_rule(self) -> Any:
        return SAM(self.radius)


def value(field: str, i: int) -> Any:
    """The i-th of ten values of a field."""
    values = {
        "pull": 0.1 * i,
        "repeats": i,
        "offsets": np.asarray([0, 0.1 * i, 0], np.float32),
        "learning_rate": 0.01 * i,
        "weight_decay": 0.1 * i,
        "gradient_clip_norm": 0.2 * i,
        "radius": 0.3 * i,
    }
    return values[field]


SWEPT = ("pull", "repeats", "offsets", "learning_rate", "weight_decay", "gradient_clip_norm", "radius")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    return Nitro(Grouped(), run_dir=tmp_path_factory.mktemp("swept")).train()


def compiled(name: str) -> int:
    stats = cache_stats().by_name[name]
    return stats.misses + stats.disk_hits


def test_ten_values_of_everything_in_one_process_compile_once(swept: Nitro, tmp_path: Path) -> None:
    before = {name: compiled(name) for name in ("init", "train")}
    ends = set()
    for i in range(1, 11):
        nitro = Nitro(Grouped(**{field: value(field, i) for field in SWEPT}), run_dir=tmp_path).train()
        ends.add(np.asarray(nitro.params["kernel"]).tobytes())
    assert {name: compiled(name) for name in ("init", "train")} == before
    assert len(ends) == 10


@pytest.mark.parametrize("field", SWEPT)
def test_each_value_reaches_the_compiled_program(field: str, swept: Nitro, tmp_path: Path) -> None:
    other = Nitro(Grouped(**{field: value(field, 3)}), run_dir=tmp_path).train()
    assert other.programs["train"].source == "memory"
    assert not np.array_equal(other.params["kernel"], swept.params["kernel"])


def test_a_schedule_in_the_place_of_a_constant_compiles_nothing(swept: Nitro, tmp_path: Path) -> None:
    before = compiled("train")
    schedules = {"learning_rate": linear(0.1, 0.0), "opt.bias.weight_decay": cosine(0.1), "rho": linear(0.0, 0.2)}
    nitro = Nitro(Grouped(), run_dir=tmp_path, schedules=schedules).train()
    assert compiled("train") == before
    assert nitro.programs["train"].source == "memory"


class Scheduled(Grouped):
    max_epochs = 3
    logger = JSONLogger()
    monitor = ("loss", "max")

    def build_data(self, dist: Any) -> Any:
        return {**super().build_data(dist), "val": ArrayBatches(points(8, 2), 8)}

    def schedules(self) -> Any:
        return {
            "learning_rate": Plateau(linear(0.1, 0.0), factor=0.5, patience=0),
            "opt.bias.momentum": optax.linear_schedule(0.9, 0.3, 6),
            "opt.default.momentum": 0.4,
            "pull": {"kind": "linear", "init_value": 0.0, "end_value": 0.6},
            "grad.rho": lambda total: lambda step: 0.01 * step / total,
        }


class Lines:
    """A reporter that keeps the lines it is given."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def __getattr__(self, name: str) -> Any:
        return lambda *words: None


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Nitro, list[str]]:
    reporter = Lines()
    previous = set_progress_reporter(reporter)
    nitro = Nitro(Scheduled(), run_dir=tmp_path_factory.mktemp("told")).train()
    set_progress_reporter(previous)
    return nitro, reporter.lines


def lines_of(nitro: Nitro, context: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("context") == context]


def test_train_lines_hold_what_varies_per_group_and_nothing_that_does_not(told: Any) -> None:
    train = lines_of(told[0], "train")
    logged = {name: [line[name] for line in train] for name in train[0] if name.startswith("schedule/")}
    # the validation loss is judged by its rise, which it never does: every epoch after the first is bad
    scale = np.repeat([1.0, 1.0, 0.5], 2)
    rate = 0.1 * (1 - np.arange(6) / 6) * scale
    assert logged == {
        "schedule/default/learning_rate": pytest.approx(rate, rel=1e-6),
        "schedule/bias/learning_rate": pytest.approx(rate / 4, rel=1e-6),
        "schedule/bias/momentum": pytest.approx(0.9 - 0.1 * np.arange(6), rel=1e-6),
        "schedule/pull": pytest.approx(0.1 * np.arange(6), rel=1e-6),
        "schedule/rho": pytest.approx(0.01 * np.arange(1, 7) / 6, rel=1e-6),
    }


def test_a_reduction_is_announced_and_its_scale_logged_per_epoch(told: Any) -> None:
    nitro, lines = told
    scales = [line["schedule/plateau/learning_rate"] for line in lines_of(nitro, "validate")]
    assert scales == [1.0, 0.5, 0.25]
    (first, second) = [line for line in lines if "plateau" in line]
    assert first == "epoch 2: plateau: learning_rate scaled by 0.5 (was 1) after 1 bad epoch of loss"
    assert second.startswith("epoch 3")


def test_the_report_says_of_every_key_where_it_bound_what_it_is_and_where_from(told: Any, tmp_path: Path) -> None:
    (band,) = (band for band in told[0].report.bands if band.title == "bindings")
    rows = {row["key"]: (row["bound"], row["origin"], row["schedule"]) for row in band.rows}
    assert rows == {
        "learning_rate": (
            "default/learning_rate, bias/learning_rate",
            "class",
            "plateau(linear(init_value=0.1, end_value=0.0))",
        ),
        "opt.bias.momentum": ("bias/momentum", "class", "optax.polynomial_schedule"),
        "opt.default.momentum": ("default/momentum", "class", "0.4"),
        "pull": ("device/pull", "class", "linear(init_value=0.0, end_value=0.6)"),
        "grad.rho": ("grad/rho", "class", "Scheduled.schedules.<locals>.<lambda>(...)"),
    }
    other = Nitro(Scheduled(), run_dir=tmp_path, schedules={"pull": 0.3})
    (band,) = (band for band in other.report.bands if band.title == "bindings")
    assert [(row["key"], row["origin"]) for row in band.rows] == [("pull", "keyword")]
    from_preset = Nitro(Scheduled(), run_dir=tmp_path, schedules={"pull": 0.3}, preset="quick")
    (band,) = (band for band in from_preset.report.bands if band.title == "bindings")
    assert [(row["key"], row["origin"]) for row in band.rows] == [("pull", "preset")]


def test_the_report_says_of_every_group_rate_ratio_anchor_decay_rule_and_size(told: Any) -> None:
    (band,) = (band for band in told[0].report.bands if band.title == "parameter groups")
    assert [dict(row) for row in band.rows] == [
        {
            "group": group,
            "rate": "scheduled by learning_rate",
            "ratio": ratio,
            "anchor": "zero",
            "decay": "0.01",
            "rule": "optax.sgd(momentum=0.5)",
            "parameters": parameters,
            "leaves": 1,
        }
        for group, ratio, parameters in (("default", 1.0, 18), ("bias", 0.25, 3))
    ]
    assert "scheduled by learning_rate" in str(told[0].report)


def test_logging_of_schedules_can_be_off(told: Any, tmp_path: Path) -> None:
    nitro = Nitro(Scheduled(autolog_schedules=False, max_epochs=1), run_dir=tmp_path).train()
    (first, _) = lines_of(nitro, "train")
    assert not [name for name in first if name.startswith("schedule/")]
