"""Precedence of the layers, overrides inside tables, origins."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, PresetError
from nitro_cli.experiment import EMA, Checkpointer, EarlyStopping, Experiment, Last
from nitro_cli.registry import OriginKind, resolve


class Net(Experiment):
    width: int = 64
    flag: bool = False
    rate: float = 0.5
    name: str = "net"
    data: Path | None = None
    table: dict[str, Any] = Field({"a": 1})
    objects: dict[str, Any] = Field({"f": print})


class Needs(Experiment):
    size: int


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


LAYERS = ["project", "parent", "preset", "environment", "set", "flag"]


@pytest.mark.parametrize("count", range(len(LAYERS) + 1))
def test_each_layer_wins_over_the_weaker_ones(cwd, count):
    given = set(LAYERS[:count])
    project = write(cwd / "pyproject.toml", "[tool.nitro]\nseed = 1\n" if "project" in given else "")
    parent = write(cwd / "presets/Net/parent.toml", "\n[fields]\nseed = 2\n" if "parent" in given else "")
    line = "[fields]\nseed = 3\n" if "preset" in given else ""
    preset = write(cwd / "presets/Net/child.toml", 'extends = "parent"\n' + line)
    resolved = resolve(
        Net,
        "child",
        sets=["seed=5"] if "set" in given else [],
        flags={"seed": 6 if "flag" in given else None},
        env={"NITRO_SEED": "4"} if "environment" in given else {},
    )
    assert resolved.experiment.seed == [42, 1, 2, 3, 4, 5, 6][count]
    origin = resolved.origin("seed")
    expected = [
        (OriginKind.DEFAULT, None, None, "class default"),
        (OriginKind.PROJECT, project, 2, "[tool.nitro] (pyproject.toml:2)"),
        (OriginKind.PRESET, parent, 3, "preset parent (presets/Net/parent.toml:3)"),
        (OriginKind.PRESET, preset, 3, "preset child (presets/Net/child.toml:3)"),
        (OriginKind.ENVIRONMENT, None, None, "NITRO_SEED=4"),
        (OriginKind.SET, None, None, "--set seed=5"),
        (OriginKind.FLAG, None, None, "--seed"),
    ][count]
    assert (origin.kind, origin.file, origin.line, str(origin)) == expected


def test_a_set_inside_none_builds_it_from_its_defaults(cwd):
    resolved = resolve(Net, sets=["early_stop.patience=3", "ema.beta=0.99"], env={})
    assert resolved.experiment.early_stop == EarlyStopping(patience=3)
    assert resolved.experiment.ema == EMA(beta=0.99)


def test_a_set_inside_a_value_keeps_the_rest_of_it(cwd):
    write(cwd / "presets/Net/base.toml", "[fields]\nearly_stop = { patience = 9, min_delta = 0.5 }\n")
    resolved = resolve(Net, "base", sets=["early_stop.patience=3", "table.b=2"], env={})
    assert resolved.experiment.early_stop == EarlyStopping(patience=3, min_delta=0.5)
    assert resolved.experiment.table == {"a": 1, "b": 2}
    assert resolve(Net, sets=["checkpointer.keep=['last(1)']"], env={}).experiment.checkpointer == Checkpointer(
        keep=(Last(1),)
    )
    assert resolve(Net, sets=["logger.path=x.jsonl"], env={}).experiment.logger.path == Path("x.jsonl")


def test_the_origin_of_a_key_inside_a_field_is_told_beside_the_fields_own(cwd):
    write(cwd / "presets/Net/base.toml", "[fields]\nearly_stop = { patience = 9, min_delta = 0.5 }\n")
    resolved = resolve(Net, "base", sets=["early_stop.patience=3"], env={})
    assert resolved.origins["early_stop"].kind is OriginKind.PRESET
    assert resolved.origins["early_stop.patience"].kind is OriginKind.SET
    assert "early_stop.min_delta" not in resolved.origins
    assert resolved.origin_text("early_stop").endswith("early_stop.patience: --set early_stop.patience=3")


def test_a_later_set_wins_and_a_whole_value_replaces_parts_set_before(cwd):
    assert resolve(Net, sets=["width=1", "width=2"], env={}).experiment.width == 2
    resolved = resolve(Net, sets=["early_stop.min_delta=0.5", "early_stop={patience=2}"], env={})
    assert resolved.experiment.early_stop == EarlyStopping(patience=2)
    assert "early_stop.min_delta" not in resolved.origins


def test_unset_gives_none_and_starts_what_is_set_inside_from_defaults(cwd):
    write(cwd / "presets/Net/base.toml", "[fields]\nearly_stop = { patience = 9, min_delta = 0.5 }\n")
    assert resolve(Net, "base", unsets=["early_stop"], env={}).experiment.early_stop is None
    resolved = resolve(Net, "base", unsets=["early_stop"], sets=["early_stop.patience=3"], env={})
    assert resolved.experiment.early_stop == EarlyStopping(patience=3)
    with pytest.raises(ConfigError, match="width"):
        resolve(Net, unsets=["width"], env={})


def test_schedules_are_set_by_key_and_parameter(cwd):
    write(cwd / "presets/Net/base.toml", "[schedules]\nlearning_rate = { kind = 'one_cycle', peak = 1e-3 }\n")
    resolved = resolve(Net, "base", sets=["schedules.learning_rate.peak=3e-4", "schedules.weight_decay=0.1"], env={})
    assert resolved.schedules == {"learning_rate": {"kind": "one_cycle", "peak": 3e-4}, "weight_decay": 0.1}
    assert resolved.origins["schedules.learning_rate.peak"].kind is OriginKind.SET
    assert resolve(Net, "base", unsets=["schedules.learning_rate"], env={}).schedules == {}
    assert resolve(Net, "base", unsets=["schedules"], env={}).schedules is None
    assert resolve(Net, env={}).schedules is None
    both = resolve(Net, sets=["schedules.opt.bias.learning_rate=0.1", "schedules.grad.rho=0.05"], env={}).schedules
    assert both == {"opt.bias.learning_rate": 0.1, "grad.rho": 0.05}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedules.learning_rate.peak=3e-4", "schedules.learning_rate"),
        ("schedules.learning_rate=fast", "schedules.learning_rate"),
        ("schedules=3", "schedules"),
        ("flag=yes", "flag"),
        ('width="128"', "width"),
        ("width=1.5", "width"),
        ("name=128", "name"),
        ("width.x=1", "of type int, not a table"),
        ("checkpointer.keep.first=1", "a list, not a table"),
        ("early_stop.patience.x=1", "early_stop.patience"),
        ("early_stop.patience=0", "early_stop.patience"),
        ("ema.warmup=true", "ema.beta"),
        ("fields.width=1", "unknown field"),
    ],
)
def test_a_set_that_does_not_fit_is_refused_with_its_text(cwd, text, problem):
    with pytest.raises(ConfigError) as caught:
        resolve(Net, sets=[text], env={})
    assert problem in str(caught.value)
    assert f"--set {text}" in str(caught.value)
    assert not isinstance(caught.value, PresetError)


def test_what_a_set_breaks_inside_a_presets_table_is_told_of_the_set(cwd):
    write(cwd / "presets/Net/base.toml", "[fields]\nearly_stop = { patience = 9, min_delta = 0.5 }\n")
    with pytest.raises(ConfigError, match="metric without mode") as caught:
        resolve(Net, "base", sets=["early_stop.metric=acc"], env={})
    assert "--set early_stop.metric=acc" in str(caught.value)
    assert not isinstance(caught.value, PresetError)


def test_a_set_to_none_is_told_to_be_an_unset(cwd):
    with pytest.raises(ConfigError) as caught:
        resolve(Net, sets=["early_stop=None"], env={})
    assert "--unset early_stop" in caught.value.fix
    assert resolve(Net, sets=["name=none"], env={}).experiment.name == "none"


def test_all_sets_that_do_not_fit_are_told_together(cwd):
    with pytest.raises(ConfigError) as caught:
        resolve(Net, sets=["widht=1", "flag=yes", "sched.x=1"], unsets=["nmae"], env={})
    text = str(caught.value)
    assert "4 problems" in caught.value.what
    assert all(word in text for word in ("widht", "flag", "sched", "nmae"))
    assert {"width", "name", "schedules"} <= set(caught.value.nearest)


def test_a_number_is_accepted_for_a_float_only_from_an_int(cwd):
    e = resolve(Net, sets=["rate=1"], env={}).experiment
    assert e.rate == 1.0
    assert type(e.rate) is float


def test_the_environment_sets_knobs_only_and_is_typed_like_set(cwd):
    env = {"NITRO_MAX_EPOCHS": "7", "NITRO_WIDTH": "9", "NITRO_EARLY_STOP": "{ patience = 2 }", "NITRO_SEED": " "}
    e = resolve(Net, env={**env, "NITRO_MAX_TIME": "55m"}).experiment
    assert (e.max_epochs, e.width, e.early_stop, e.seed) == (7, 64, EarlyStopping(patience=2), 42)
    assert e.max_time == 3300.0
    with pytest.raises(ConfigError, match="NITRO_MAX_EPOCHS=many"):
        resolve(Net, env={"NITRO_MAX_EPOCHS": "many"})
    with pytest.raises(ConfigError, match="NITRO_EARLY_STOP"):
        resolve(Net, env={"NITRO_EARLY_STOP": "{ patience ="})


def test_the_project_sets_knobs_only(cwd):
    file = write(cwd / "pyproject.toml", "[tool.nitro]\nseed = 3\nwidth = 1\nmax_epoch = 2\n")
    with pytest.raises(ConfigError) as caught:
        resolve(Net, env={})
    assert "pyproject.toml:3: width" in str(caught.value)
    assert "pyproject.toml:4: max_epoch" in str(caught.value)
    assert "max_epochs" in caught.value.nearest
    write(file, "[tool.nitro]\nmax_epochs = '2'\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml:2: max_epochs"):
        resolve(Net, env={})
    write(file, "[tool]\nnitro = 3\n")
    with pytest.raises(ConfigError, match="should be a table"):
        resolve(Net, env={})
    assert resolve(Net, env={}, project=None).experiment.seed == 42


def test_the_nearest_project_above_the_working_directory_counts(cwd):
    write(cwd / "pyproject.toml", "[tool.nitro]\nrun_dir = 'results'\n")
    inner = cwd / "a/b"
    inner.mkdir(parents=True)
    assert resolve(Net, env={}, cwd=inner).experiment.run_dir == cwd / "results"


def test_paths_of_the_command_line_stay_as_they_are(cwd):
    e = resolve(Net, sets=["data=d/x.npz"], flags={"run_dir": Path("out")}, env={"NITRO_RUN_DIR": "env"}).experiment
    assert (e.data, e.run_dir) == (Path("d/x.npz"), Path("out"))


def test_an_unknown_flag_is_refused(cwd):
    with pytest.raises(ConfigError, match="--max-epoch"):
        resolve(Net, flags={"max_epoch": 3}, env={})


def test_a_required_field_must_come_from_somewhere(cwd):
    with pytest.raises(ConfigError, match="size"):
        resolve(Needs, env={})
    assert resolve(Needs, sets=["size=3"], env={}).experiment.size == 3
    write(cwd / "presets/Needs/part.toml", "[fields]\nseed = 1\n")
    assert resolve(Needs, "part", flags={"size": 4}, env={}).experiment.size == 4


def test_an_unknown_experiment_is_not_found(cwd):
    with pytest.raises(ExperimentNotFoundError):
        resolve("Absent", env={})


def test_the_class_default_is_never_changed(cwd):
    resolve(Net, sets=["table.b=2", "early_stop.patience=3", "logger.path=x"], env={})
    assert resolve(Net, env={}).experiment.table == {"a": 1}
    assert resolve(Net, sets=["objects.b=2"], env={}).experiment.objects == {"f": print, "b": 2}
    assert Net().objects == {"f": print}
    assert Net().logger.path is None


_values = {
    "seed": st.integers(0, 2**62),
    "width": st.integers(-(2**62), 2**62),
    "rate": st.floats(allow_nan=False),
    "flag": st.booleans(),
}


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional=_values), st.fixed_dictionaries({}, optional=_values))
def test_sets_over_keywords_of_any_values_give_the_stronger_ones(weak, strong):
    sets = [f"{k}={str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in weak.items()]
    resolved = resolve(Net, sets=sets, env={}, project=None, keywords=strong)
    expected = Net(**{**weak, **strong})
    assert resolved.experiment == expected
    for name in _values:
        kind = OriginKind.KEYWORD if name in strong else OriginKind.SET if name in weak else OriginKind.DEFAULT
        assert resolved.origin(name).kind is kind
