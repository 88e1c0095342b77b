"""`config.toml`: what is written rebuilds the same experiment."""

import enum
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, IntegrityError
from nitro_cli.experiment import (
    EMA,
    Best,
    Checkpointer,
    Device,
    EarlyStopping,
    Epochs,
    Every,
    Experiment,
    GraphConst,
    Host,
    JSONLogger,
    Last,
    MLflowLogger,
    Monitor,
    Tee,
    TensorBoardLogger,
)
from nitro_cli.registry import OriginKind, find_experiment, read_config, resolve, resolved_of, write_config


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    a: int = 1
    b: str | None = "b"
    path: Path | None = None


class Rich(Experiment):
    width: GraphConst[int] = 64
    sizes: GraphConst[tuple[int, ...]] = (1, 2)
    colour: GraphConst[Colour] = Colour.RED
    smoothing: Device[float] = 0.05
    weights: Device[tuple[float, ...]] = (1.0, 2.0)
    name: str = "n"
    note: str | None = "x"
    rate: float = 0.5
    data: Path | None = None
    inner: Inner = Inner()
    table: dict[str, Any] = Field({})
    numbers: list[float] = Field([])
    tags: frozenset[str] = frozenset()
    array: Host[Any] = None


class OnDevice(Experiment):
    weights: Device[Any] = 1.0
    baked: GraphConst[Any] = 1.0


class Own:
    """A user's logger, which TOML cannot write."""

    def log_params(self, params): ...
    def log_metrics(self, metrics, *, step, epoch, context): ...
    def log_other(self, key, value): ...
    def finish(self, status): ...


class WithDefault(Experiment):
    mean: Host[Any] = np.arange(3.0)
    act: Host[Any] = len


def roundtrip(experiment, folder, **given):
    path = folder / "config.toml"
    write_config(path, resolved_of(experiment, **given))
    return read_config(path)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"colour": Colour.BLUE, "sizes": (), "tags": frozenset({"b", "a"})},
        {"note": None, "checkpointer": None, "logger": None, "early_stop": None},
        {"inner": Inner(a=2, b=None, path=Path("x"))},
        {"table": {"a": {"b": [1, {"c": 2.0}]}, "key with . dots": True, "none": None, "deep": {"n": None}}},
        {"data": Path("/abs/data.npz"), "run_dir": Path("rel/dir")},
        {"checkpointer": Checkpointer(keep=(Best(2), Every(5), Epochs(1, 3), Last(1)), scope="dir")},
        {"early_stop": EarlyStopping(patience=3, metric="acc", mode="max"), "ema": EMA(0.99, warmup=False)},
        {"monitor": Monitor("acc", "max"), "eval_weights": "raw", "max_time": 60.0},
        {"logger": Tee(JSONLogger("a.jsonl"), TensorBoardLogger())},
        {"logger": MLflowLogger(tags={"a": "b"})},
        {"rate": float("inf"), "numbers": [float("nan"), 1e300, -0.0]},
        {"name": 'quotes " and \\ and\nlines\tand é'},
        {"seed": 2**62, "width": -(2**70)},
    ],
)
def test_what_toml_can_write_is_rebuilt_equal(cwd, values):
    experiment = Rich(**values)
    again = roundtrip(experiment, cwd)
    assert again.experiment == experiment
    assert "unwritten" not in tomllib.loads((cwd / "config.toml").read_text())


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_leaf = st.integers(-(2**62), 2**62) | st.booleans() | st.floats() | _text
_tree = st.recursive(
    _leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3), max_leaves=8
)
_nones = st.recursive(_tree | st.none(), lambda inner: st.dictionaries(_text, inner, max_size=3), max_leaves=6)
_selectors = st.one_of(
    st.integers(1, 9).map(Best), st.integers(1, 9).map(Last), st.integers(1, 9).map(Every), st.just(Epochs(1, 5))
)
_fields = {
    "width": st.integers(-(2**62), 2**62),
    "sizes": st.lists(st.integers(-9, 9), max_size=4).map(tuple),
    "colour": st.sampled_from(Colour),
    "smoothing": st.floats(0, 1),
    "name": _text,
    "note": st.none() | _text,
    "rate": st.floats(),
    "data": st.none() | st.from_regex(r"[a-z~./]{1,8}", fullmatch=True).map(Path),
    "inner": st.builds(Inner, a=st.integers(-9, 9), b=st.none() | _text),
    "table": st.dictionaries(_text, _nones, max_size=4),
    "numbers": st.lists(st.floats(), max_size=4),
    "tags": st.frozensets(_text, max_size=3),
    "early_stop": st.none() | st.builds(EarlyStopping, patience=st.integers(1, 9), min_delta=st.floats(0, 1)),
    "ema": st.none() | st.builds(EMA, beta=st.floats(0, 0.999), every=st.integers(1, 9)),
    "checkpointer": st.none() | st.lists(_selectors, min_size=1, max_size=3).map(lambda k: Checkpointer(keep=tuple(k))),
    "max_epochs": st.integers(1, 10**6),
    "learning_rate": st.floats(0, 1e3),
}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.fixed_dictionaries({}, optional=_fields))
def test_any_values_are_rebuilt_equal(cwd, values):
    experiment = Rich(**values)
    assert roundtrip(experiment, cwd).experiment == experiment


def test_schedules_preset_and_name_are_kept(cwd):
    schedules = {"learning_rate": {"kind": "one_cycle", "peak": 1e-3}, "opt.bias.learning_rate": 0.1}
    again = roundtrip(Rich(), cwd, preset="baseline", schedules=schedules)
    assert again.schedules == schedules
    assert (again.preset, again.name, again.cls) == ("baseline", "Rich", Rich)
    assert roundtrip(Rich(), cwd).schedules is None
    assert roundtrip(Rich(), cwd, schedules={}).schedules == {}


def test_a_value_that_was_the_default_stays_when_the_class_changes(cwd):
    folder = cwd / "experiments"
    folder.mkdir()
    code = "from nitro_cli.experiment import Experiment\nclass A(Experiment):\n    width: int = {}\n"
    (folder / "a.py").write_text(code.format(1))
    write_config(cwd / "config.toml", resolve("A", env={}))
    for name in [n for n in sys.modules if n.startswith("_nitro_local_")]:
        del sys.modules[name]
    (folder / "a.py").write_text(code.format(22))
    assert find_experiment("A").load()().width == 22
    assert read_config(cwd / "config.toml").experiment.width == 1


def test_an_array_on_a_host_field_is_listed_and_refused_by_name(cwd):
    experiment = Rich(array=np.arange(6, dtype=np.float32).reshape(2, 3))
    path = cwd / "config.toml"
    write_config(path, resolved_of(experiment))
    entry = tomllib.loads(path.read_text())["unwritten"]["array"]
    assert entry["type"] == "numpy.ndarray float32[2, 3]"
    assert len(entry["sha256"]) == 64
    with pytest.raises(ConfigError, match="array") as caught:
        read_config(path)
    assert "float32[2, 3]" in caught.value.why
    assert read_config(path, sets=["array=3"]).experiment.array == 3
    write_config(path, resolved_of(Rich(array=np.arange(6, dtype=np.float32).reshape(3, 2))))
    assert tomllib.loads(path.read_text())["unwritten"]["array"]["sha256"] != entry["sha256"]


@pytest.mark.parametrize(
    "value",
    [
        (1.0, 2.0),
        [[1, 2], [3, 4]],
        np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
        np.zeros((0, 3), np.int8),
        np.array([np.nan, np.inf]),
        np.array([True, False]),
    ],
)
def test_an_array_that_the_program_sees_is_rebuilt_with_its_dtype_and_shape(cwd, value):
    experiment = OnDevice(weights=value, baked=value)
    again = roundtrip(experiment, cwd).experiment
    assert again == experiment
    assert type(again.weights) is type(experiment.weights)


def test_a_large_array_is_refused_by_name(cwd):
    with pytest.raises(ConfigError, match="baked"):
        roundtrip(OnDevice(baked=np.zeros(100_000)), cwd)


def test_an_array_can_be_replaced_by_an_override(cwd):
    write_config(cwd / "config.toml", resolved_of(OnDevice(weights=np.arange(3.0))))
    assert read_config(cwd / "config.toml", sets=["weights=[1.0]"]).experiment.weights == [1.0]


def test_a_type_that_its_list_does_not_fit_is_a_problem_of_the_record(cwd):
    write_config(cwd / "config.toml", resolved_of(OnDevice(weights=np.arange(3, dtype=np.float32))))
    text = (cwd / "config.toml").read_text()
    (cwd / "config.toml").write_text(text.replace("float32[3]", "float32[4]"))
    with pytest.raises(ConfigError, match=r"float32\[4\]"):
        read_config(cwd / "config.toml")


def test_a_users_own_object_is_listed_and_refused_by_name(cwd):
    with pytest.raises(ConfigError, match="logger"):
        roundtrip(Rich(logger=Own()), cwd)
    again = read_config(cwd / "config.toml", unsets=["logger"])
    assert again.experiment.logger is None


def test_what_reads_back_as_another_value_is_not_written(cwd):
    with pytest.raises(ConfigError, match="table"):
        roundtrip(Rich(table={"pair": (1, 2)}), cwd)
    with pytest.raises(ConfigError, match="table"):
        roundtrip(Rich(table={"path": Path("x")}), cwd)
    with pytest.raises(ConfigError, match="name"):
        roundtrip(Rich(name="\ud800"), cwd)
    with pytest.raises(ConfigError, match="table"):
        roundtrip(Rich(table={"list": [None]}), cwd)


def test_an_unwritten_value_that_is_still_the_class_default_is_taken_from_the_class(cwd):
    assert roundtrip(WithDefault(), cwd).experiment == WithDefault()
    with pytest.raises(ConfigError, match="mean"):
        roundtrip(WithDefault(mean=np.arange(3.0) + 1), cwd)
    with pytest.raises(ConfigError, match="act"):
        roundtrip(WithDefault(act=max), cwd)


def test_schedules_that_are_functions_are_listed_and_refused(cwd):
    with pytest.raises(ConfigError, match="schedules"):
        roundtrip(Rich(), cwd, schedules={"learning_rate": lambda total: lambda step: 1.0})
    assert read_config(cwd / "config.toml", sets=["schedules.learning_rate=0.1"]).schedules == {"learning_rate": 0.1}


def test_overrides_win_over_the_record_and_environment_and_project_are_not_read(cwd, monkeypatch):
    write_config(cwd / "config.toml", resolved_of(Rich(seed=7, early_stop=EarlyStopping(patience=3, min_delta=0.5))))
    monkeypatch.setenv("NITRO_SEED", "8")
    (cwd / "pyproject.toml").write_text("[tool.nitro]\nmax_epochs = 9\n")
    again = read_config(cwd / "config.toml", sets=["early_stop.patience=4"], flags={"accum": 2, "seed": None})
    e = again.experiment
    assert (e.seed, e.max_epochs, e.accum) == (7, 1, 2)
    assert e.early_stop == EarlyStopping(patience=4, min_delta=0.5)
    assert again.origin("seed").kind is OriginKind.RECORD
    assert again.origin("seed").line is not None
    assert again.origin("accum").kind is OriginKind.FLAG
    assert again.origins["early_stop.patience"].kind is OriginKind.SET


def test_a_local_experiment_is_rebuilt_in_another_process_and_its_paths_in_another_folder(cwd, tmp_path):
    folder = cwd / "experiments"
    folder.mkdir()
    (folder / "parts.py").write_text("width = 5\n")
    code = "from pathlib import Path\nfrom .parts import width as w\nfrom nitro_cli.experiment import Experiment\n"
    (folder / "a.py").write_text(code + "class A(Experiment):\n    width: int = w\n    data: Path | None = None\n")
    write_config(cwd / "config.toml", resolve("A", sets=["data=d.npz"], env={}))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    script = (
        "import sys; from pathlib import Path; from nitro_cli.registry import read_config;"
        "e = read_config(Path(sys.argv[1]), experiment=sys.argv[2] or None).experiment;"
        "print(type(e).__name__, e.width, e.data)"
    )
    env = {**os.environ, "PYTHONPATH": root}

    def printed(where, named):
        words = [sys.executable, "-c", script, str(cwd / "config.toml"), named]
        return subprocess.run(words, cwd=where, env=env, capture_output=True, text=True, check=True).stdout.split()

    assert printed(cwd, "") == ["A", "5", "d.npz"]
    assert printed(tmp_path, f"{folder / 'a.py'}:A") == ["A", "5", str(cwd / "d.npz")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not the configuration of a run"),
        ("format = 1\n[experiment]\nname = 3\n", r"experiment\.name \(line 3\)"),
        ("format = 1\nfields = 3\n[experiment]\nname = 'A'\n", r"fields \(line 2\)"),
        ("format = 1\nunset = [3]\n[experiment]\nname = 'A'\n", r"unset\[0\] \(line 2\)"),
        ("format = 1\n[experiment]\nname = '" + "n" * 256 + "'\n", r"experiment\.name \(line 3\)"),
        ("format = 1\n[experiment]\nname = 'A'\n[unwritten.w]\ntype = 'x'\n", r"unwritten\.w\.sha256"),
        ("format = " + "1" * 5000 + "\n", "not valid TOML"),
        ("a." * 20_000 + "a = 1\n", "a key has more than 64 parts"),
        ("a = " + "[" * 5000, "nested more than 64 deep"),
        ("format = 99\n[experiment]\nname = 'A'\nimport = 'a:A'\n", "newer nitro"),
        ("format = = 1\n", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_record_is_refused(cwd, text, problem):
    (cwd / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_config(cwd / "config.toml")


def test_a_file_that_is_no_regular_file_is_not_read(cwd):
    config = cwd / "config.toml"
    os.mkfifo(config)
    with pytest.raises(IntegrityError, match="named pipe"):
        read_config(config)
    config.unlink()
    config.symlink_to("config.toml")
    with pytest.raises(IntegrityError, match="it is a link"):
        read_config(config)
    config.unlink()
    config.mkdir()
    with pytest.raises(IntegrityError, match="a directory"):
        read_config(config)


def test_a_record_of_a_class_that_is_gone_or_changed_says_so(cwd):
    head = "format = 1\n[experiment]\nname = 'A'\nimport = '{}'\n[fields]\n"
    (cwd / "config.toml").write_text(head.format("no_such_module:A"))
    with pytest.raises(ExperimentNotFoundError):
        read_config(cwd / "config.toml")
    (cwd / "config.toml").write_text(head.format("/no/such/file.py:A"))
    with pytest.raises(ExperimentNotFoundError):
        read_config(cwd / "config.toml")
    (cwd / "config.toml").write_text(head.format("x:A") + "widht = 3\n")
    with pytest.raises(ConfigError, match=r"config\.toml:6: widht") as caught:
        read_config(cwd / "config.toml", cls=Rich)
    assert caught.value.nearest[0] == "width"


def test_a_config_that_cannot_be_written_leaves_the_old_one(cwd, monkeypatch):
    path = cwd / "config.toml"
    write_config(path, resolved_of(Rich(width=1)))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write_config(path, resolved_of(Rich(width=2)))
    assert read_config(path).experiment.width == 1
    assert [f.name for f in cwd.iterdir()] == ["config.toml"]


def test_a_mapping_type_of_another_class_is_not_silently_made_a_dict(cwd):
    class Frozen(Mapping):
        def __getitem__(self, key):
            return {"a": 1}[key]

        def __iter__(self):
            return iter(["a"])

        def __len__(self):
            return 1

    with pytest.raises(ConfigError, match="array"):
        roundtrip(Rich(array=Frozen()), cwd)
