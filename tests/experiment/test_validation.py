"""How values are read, and how all that is wrong with them is reported."""

from __future__ import annotations

import dataclasses
from datetime import date
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import (
    EMA,
    Best,
    Checkpointer,
    Device,
    EarlyStopping,
    Experiment,
    GraphConst,
    JSONLogger,
    Last,
    TensorBoardLogger,
    fields_of_kind,
    validation_problems,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Nested(BaseModel):
    depth: int = 1
    rates: list[float] = []


@dataclasses.dataclass(frozen=True)
class Crop:
    size: int = 32
    padded: bool = False


class Values(Experiment):
    width: GraphConst[int] = 128
    rate: Device[float] = 0.5
    flag: bool = False
    name: str = "x"
    shape: GraphConst[tuple[int, ...]] = (1, 2)
    colour: GraphConst[Colour] = Colour.RED
    level: Level = Level.LOW
    folder: Path = Path(".")
    nested: Nested = Nested()
    crop: Crop = Crop()
    by_name: dict[str, float] = {}  # noqa: RUF012
    by_step: dict[int, float] = {}  # noqa: RUF012
    either: int | str | None = None
    choice: Literal["a", "b"] = "a"
    weights: Device[np.ndarray] = np.zeros(3, np.float32)
    data: np.ndarray | None = None
    day: date | None = None
    anything: Any = None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", "128"),
        ("width", 1.5),
        ("width", 1.0),
        ("width", True),
        ("rate", "0.5"),
        ("rate", True),
        ("flag", 1),
        ("flag", "yes"),
        ("name", 3),
        ("shape", ["1"]),
        ("shape", [1.5]),
        ("shape", 1),
        ("colour", "green"),
        ("level", 1.0),
        ("level", True),
        ("nested", {"depth": "1"}),
        ("nested", {"rates": ["0.5"]}),
        ("crop", {"size": "32"}),
        ("crop", {"padded": 1}),
        ("by_name", {"a": "1"}),
        ("either", 1.0),
        ("choice", "c"),
        ("weights", ["a"]),
        ("weights", [[1], [1, 2]]),
        ("day", "2024-01-01"),
        ("run_dir", 3),
        ("monitor", ["acc", "up"]),
        ("monitor", "acc"),
        ("max_epochs", 0),
        ("seed", -1),
        ("learning_rate", float("nan")),
        ("learning_rate", -1.0),
        ("n_devs", 0),
        ("early_stop", {"patience": "5"}),
        ("early_stop", {"metric": "acc"}),
        ("ema", {"beta": 1.0}),
        ("max_time", "soon"),
        ("max_time", -1),
        ("sharding", "tensor"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_and_its_field_named(field, value):
    with pytest.raises(ConfigError) as caught:
        Values(**{field: value})
    assert f"Values.{field}" in caught.value.what
    problems = validation_problems(Values, {field: value})
    assert [p.path[0] for p in problems] == [field]


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("rate", 1, 1.0),
        ("shape", [3, 4], (3, 4)),
        ("colour", "blue", Colour.BLUE),
        ("colour", "BLUE", Colour.BLUE),
        ("level", 2, Level.HIGH),
        ("level", "HIGH", Level.HIGH),
        ("folder", "a/b", Path("a/b")),
        ("nested", {"depth": 2, "rates": [1]}, Nested(depth=2, rates=[1.0])),
        ("crop", {"size": 8}, Crop(8)),
        ("by_name", {"a": 1}, {"a": 1.0}),
        ("by_step", {"10": 1}, {10: 1.0}),
        ("either", "1", "1"),
        ("either", 1, 1),
        ("day", date(2024, 1, 1), date(2024, 1, 1)),
        ("run_dir", "runs/x", Path("runs/x")),
        ("monitor", ["acc", "max"], ("acc", "max")),
        ("early_stop", {"patience": 3}, EarlyStopping(patience=3)),
        ("ema", {"beta": 0.9}, EMA(0.9)),
        ("checkpointer", {"keep": ["best(2)", "last(1)"]}, Checkpointer(keep=(Best(2), Last(1)))),
        ("checkpointer", {"keep": "last(5)"}, Checkpointer(keep=(Last(5),))),
        ("checkpointer", None, None),
        ("logger", {"kind": "tensorboard"}, TensorBoardLogger()),
        ("logger", {"kind": "json", "path": "m.jsonl"}, JSONLogger("m.jsonl")),
        ("max_time", "1h30m", 5400.0),
        ("max_time", 90, 90.0),
    ],
)
def test_what_toml_cannot_write_is_read_from_its_natural_form(field, value, read):
    found = getattr(Values(**{field: value}), field)
    assert found == read
    assert type(found) is type(read) or field == "monitor"


def test_fields_may_have_any_name_that_means_something_inside_a_schema():
    class Named(Experiment):
        type: int = 1
        default: int = 1
        metadata: float = 1.0
        cls: str = "a"
        fields: dict[str, int] = {}  # noqa: RUF012
        serialization: int = 1

    assert Named(type=2, metadata=3).metadata == 3.0
    bad = {"type": "2", "default": "2", "metadata": "2", "cls": 2, "fields": {"type": "2"}, "serialization": "2"}
    assert {p.path[0] for p in validation_problems(Named, bad)} == set(bad)


def test_fields_of_a_mixin_are_fields_with_their_kind():
    class Plain:
        extra: Device[float] = 2.0

    class Model(BaseModel):
        bm: GraphConst[int] = 3

    class Mixed(Plain, Model, Experiment):
        pass

    e = Mixed(extra=1)
    assert (e.extra, e.bm) == (1.0, 3)
    assert fields_of_kind(Mixed, "device") == ("extra",)
    assert fields_of_kind(Mixed, "graphconst") == ("bm",)


@pytest.mark.parametrize("value", [np.zeros(2), jnp.zeros(2), [0, 0]])
def test_a_field_of_jax_arrays_takes_numpy_arrays_and_lists(value):
    class Arrays(Experiment):
        table: Device[jax.Array]

    assert Arrays(table=value).table.shape == (2,)
    with pytest.raises(ConfigError, match="table"):
        Arrays(table="a")


def test_an_array_is_read_from_a_list_of_numbers():
    e = Values(weights=[1, 2.5], data=[[1, 2], [3, 4]])
    np.testing.assert_array_equal(e.weights, [1.0, 2.5])
    assert e.data.shape == (2, 2)
    big = np.zeros((2, 3))
    assert Values(data=big).data is big


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.array(0.25)])
def test_a_numpy_scalar_is_the_number_it_holds(number):
    assert Values(rate=number).rate == 0.25
    assert type(Values(rate=number).rate) is float
    assert Values(width=np.int64(3)).width == 3
    assert Values(flag=np.bool_(True)).flag is True


def test_a_numpy_scalar_of_another_kind_is_still_refused():
    with pytest.raises(ConfigError, match="width"):
        Values(width=np.float32(3))


def test_unknown_names_come_with_the_nearest_and_all_problems_at_once():
    with pytest.raises(ConfigError) as caught:
        Values(widht=1, rate="x", early_stop={"patiense": 3}, logger={"kind": "tensorbord"})
    text = str(caught.value)
    assert "4 problems" in text
    for part in ("widht", "width", "rate", "early_stop.patiense", "patience", "logger.kind", "tensorboard"):
        assert part in text


def test_one_unknown_name_is_offered_the_nearest():
    with pytest.raises(ConfigError) as caught:
        Values(widht=1)
    assert caught.value.nearest[0] == "width"


def test_problems_carry_the_path_message_and_nearest_of_every_value():
    values = {
        "widht": 1,
        "checkpointer": {"keep": ["best(3)", "lst(1)"]},
        "ema": {"bta": 0.9},
        "shape": [1, "2"],
        "nested": {"deph": 1, "depth": "1"},
        "logger": {"kind": "tee", "loggers": [{"kind": "json", "pth": "a"}]},
        "choice": "bb",
    }
    problems = {p.path: p for p in validation_problems(Values, values)}
    assert problems[("widht",)].nearest[0] == "width"
    assert "last" in problems[("checkpointer", "keep", 1)].nearest
    assert problems[("ema", "beta")].kind == "missing"
    assert problems[("ema", "bta")].nearest == ("beta",)
    assert "'2'" in problems[("shape", 1)].message
    assert ("nested", "depth") in problems
    assert problems[("logger", "loggers", 0, "pth")].nearest == ("path",)
    assert problems[("logger", "loggers", 0, "pth")].keypath == "logger.loggers[0].pth"
    assert problems[("choice",)].kind == "literal_error"


def test_values_without_problems_give_an_empty_list():
    assert validation_problems(Values, {"width": 3, "monitor": ["acc", "max"]}) == []


def test_a_union_is_one_problem():
    problems = validation_problems(Values, {"either": 1.5})
    assert len(problems) == 1
    assert "integer" in problems[0].message
    assert "string" in problems[0].message


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.integers(), min_size=1, max_size=4))
def test_every_unknown_name_is_one_problem_at_its_own_path(unknown):
    unknown = {k: v for k, v in unknown.items() if k not in Values.model_fields}
    problems = validation_problems(Values, unknown)
    assert {p.path for p in problems} == {(name,) for name in unknown}


@pytest.mark.parametrize("value", ["fast", None, {"a": 1}, [[1.0], [1.0, 2.0]], object()])
def test_a_device_value_that_cannot_be_an_array_is_refused_at_construction(value):
    class Free(Experiment):
        anything: Device[Any] = 1.0

    with pytest.raises(ConfigError, match="anything"):
        Free(anything=value)


def test_an_experiment_is_frozen_and_says_how_to_change_a_value():
    e = Values()
    with pytest.raises(ConfigError) as caught:
        e.width = 3
    assert "replace(width=...)" in caught.value.fix


def test_replace_validates_and_keeps_the_other_values():
    e = Values(width=3, early_stop=EarlyStopping(patience=1))
    other = e.replace(width=4)
    assert (other.width, other.early_stop, e.width) == (4, e.early_stop, 3)
    assert other.model_fields_set == {"width", "early_stop"}
    with pytest.raises(ConfigError, match="width"):
        e.replace(width="4")
    with pytest.raises(ConfigError) as caught:
        e.replace(widht=4)
    assert "width" in caught.value.nearest


def test_equality_is_by_content_with_arrays_and_nan():
    a = Values(data=np.array([1.0, np.nan]), anything=float("nan"))
    b = Values(data=np.array([1.0, np.nan]), anything=float("nan"))
    assert a == b
    assert hash(a) == hash(b)
    assert a != b.replace(data=np.array([1.0, 2.0]))
    assert a != b.replace(data=np.array([1.0, np.nan], np.float32))
    assert a != b.replace(weights=[1.0])
    assert (a == 3) is False


def test_repr_shows_an_array_by_type_and_shape():
    text = repr(Values(data=np.zeros((1000, 3))))
    assert "<float64[1000, 3]>" in text
    assert "max_epochs" not in text
    assert "max_epochs=9" in repr(Values(max_epochs=9))
