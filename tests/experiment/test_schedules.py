"""Named schedules as TOML writes them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import optax
import pytest

from nitro_cli.errors import ScheduleError
from nitro_cli.experiment import (
    SCHEDULE_KINDS,
    Constant,
    Linear,
    OneCycle,
    Piecewise,
    PlateauConfig,
    parse_schedules,
    schedule_problems,
)

OPTAX = {
    "linear": optax.linear_schedule,
    "cosine": optax.cosine_decay_schedule,
    "warmup_cosine": optax.warmup_cosine_decay_schedule,
    "exponential": optax.exponential_decay,
    "polynomial": optax.polynomial_schedule,
    "constant": optax.constant_schedule,
}


@pytest.mark.parametrize("kind", OPTAX)
def test_parameters_are_named_as_in_optax_with_its_defaults(kind):
    theirs = inspect.signature(OPTAX[kind]).parameters
    ours = {name: info for name, info in SCHEDULE_KINDS[kind].model_fields.items() if name != "kind"}
    assert set(ours) == set(theirs)
    for name, parameter in theirs.items():
        if parameter.default is not parameter.empty:
            assert ours[name].default == parameter.default


def test_one_cycle_has_the_arguments_and_defaults_of_pytorch():
    # torch.optim.lr_scheduler.OneCycleLR, documentation of PyTorch 2
    cycle = parse_schedules({"learning_rate": {"kind": "one_cycle", "peak": 1e-3}})["learning_rate"]
    assert cycle == OneCycle(max_lr=1e-3)
    assert (cycle.pct_start, cycle.anneal_strategy, cycle.div_factor) == (0.3, "cos", 25.0)
    assert (cycle.final_div_factor, cycle.three_phase, cycle.total_steps) == (1e4, False, None)


def test_plateau_has_the_defaults_of_pytorch_and_takes_a_number_or_a_schedule():
    table = {
        "learning_rate": {"kind": "plateau", "inner": 0.1},
        "weight_decay": {"kind": "plateau", "inner": {"kind": "linear", "init_value": 1, "end_value": 0}},
    }
    parsed = parse_schedules(table)
    plateau = parsed["learning_rate"]
    assert isinstance(plateau, PlateauConfig)
    assert (plateau.inner, plateau.factor, plateau.patience, plateau.cooldown) == (0.1, 0.1, 10, 0)
    assert (plateau.threshold, plateau.threshold_mode, plateau.min_scale) == (1e-4, "rel", 0.0)
    assert parsed["weight_decay"].inner == Linear(init_value=1.0, end_value=0.0)


def test_a_number_is_a_number_and_a_table_its_model():
    parsed = parse_schedules({"a": 1, "b": {"kind": "constant", "value": 2}})
    assert parsed == {"a": 1.0, "b": Constant(value=2.0)}


def test_boundaries_are_read_from_toml_string_keys():
    parsed = parse_schedules(
        {"a": {"kind": "piecewise", "init_value": 1.0, "boundaries_and_scales": {"10": 0.5, "20": 0.1}}}
    )
    assert parsed["a"] == Piecewise(init_value=1.0, boundaries_and_scales={10: 0.5, 20: 0.1})


@pytest.mark.parametrize(
    ("entry", "path", "nearest"),
    [
        (True, ("k",), ()),
        ("0.1", ("k",), ()),
        (float("nan"), ("k",), ()),
        ({"kind": "onecycle", "peak": 1.0}, ("k", "kind"), ("one_cycle",)),
        ({"peak": 1.0}, ("k",), ()),
        ({"kind": "one_cycle", "peak": "1"}, ("k", "peak"), ()),
        ({"kind": "one_cycle", "peak": 1.0, "max_lr": 1.0}, ("k",), ()),
        ({"kind": "one_cycle", "pek": 1.0, "max_lr": 1.0}, ("k", "pek"), ("peak",)),
        ({"kind": "cosine"}, ("k", "init_value"), ()),
        ({"kind": "cosine", "init_value": 1.0, "decay_steps": 1.5}, ("k", "decay_steps"), ()),
        ({"kind": "cosine", "init_value": 1.0, "decay_steps": 0}, ("k", "decay_steps"), ()),
        ({"kind": "plateau", "inner": {"kind": "plateau", "inner": 1.0}}, ("k", "inner", "kind"), ()),
        ({"kind": "plateau", "inner": {"kind": "linear", "init_valu": 1.0, "init_value": 1.0, "end_value": 0.0}},
         ("k", "inner", "init_valu"), ("init_value",)),
        ({"kind": "plateau", "inner": 1.0, "factor": 1.0}, ("k", "factor"), ()),
        ({"kind": "plateau", "inner": 1.0, "metric": "acc"}, ("k",), ()),
        ({"kind": "piecewise", "init_value": 1.0, "boundaries_and_scales": {"x": 1.0}},
         ("k", "boundaries_and_scales", "x"), ()),
    ],
)  # fmt: skip
def test_a_bad_entry_is_one_problem_at_its_path(entry, path, nearest):
    problems = schedule_problems({"good": 1.0, "k": entry})
    assert [p.path for p in problems] == [path]
    assert problems[0].nearest[: len(nearest)] == nearest
    with pytest.raises(ScheduleError, match="schedules"):
        parse_schedules({"k": entry})


def test_all_problems_of_a_table_are_reported_together():
    problems = schedule_problems({"a": True, "b": {"kind": "linear"}, "c": {"kind": "x"}})
    assert {p.path[0] for p in problems} == {"a", "b", "c"}


def test_an_unknown_parameter_is_compared_with_those_of_its_kind_longer_names_first():
    (problem,) = schedule_problems(
        {"learning_rate": {"kind": "linear", "init_value": 1.0, "end_value": 0.0, "end": 0.1}}
    )
    assert (problem.keypath, problem.nearest) == ("learning_rate.end", ("end_value",))


def test_the_documentation_names_every_parameter_of_every_kind():
    page = (Path(__file__).parents[2] / "docs" / "optimization.md").read_text()
    for kind, model in SCHEDULE_KINDS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        assert set(re.findall(r"`(\w+)`", row)) - {"peak"} == {kind, *model.model_fields} - {"kind"}
