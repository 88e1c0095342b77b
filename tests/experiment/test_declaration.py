"""What is checked, and what is inherited, where an experiment class is written."""

from __future__ import annotations

import functools
import textwrap
from typing import ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, Field, model_validator

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import (
    Checkpointer,
    Device,
    EarlyStopping,
    Experiment,
    FieldKind,
    GraphConst,
    HookTable,
    Host,
    config_metadata,
    fields_of_kind,
)


def kinds(cls: type[Experiment]) -> dict[str, FieldKind]:
    return {name: meta.kind for name, meta in config_metadata(cls).items()}


def test_markers_give_the_kind_and_no_marker_is_host():
    class Kinds(Experiment):
        width: GraphConst[int] = 128
        smoothing: Device[float] = 0.05
        folder: Host[str] = "a"
        epochs_seen: int = 0

    found = kinds(Kinds)
    assert (found["width"], found["smoothing"]) == (FieldKind.GRAPHCONST, FieldKind.DEVICE)
    assert (found["folder"], found["epochs_seen"], found["seed"]) == (FieldKind.HOST,) * 3
    assert fields_of_kind(Kinds, "graphconst") == ("width",)
    assert fields_of_kind(Kinds, FieldKind.DEVICE) == ("smoothing",)


def test_a_default_without_annotation_keeps_the_inherited_type_and_kind():
    class Parent(Experiment):
        width: GraphConst[int] = Field(default=128, ge=1)
        rate: Device[float] = 0.5

    class Child(Parent):
        width = 256
        rate = 1
        max_epochs = 20
        early_stop = EarlyStopping(patience=2)

    e = Child()
    assert (e.width, e.rate, e.max_epochs) == (256, 1.0, 20)
    assert isinstance(e.rate, float)
    assert e.early_stop == EarlyStopping(patience=2)
    assert fields_of_kind(Child, "graphconst") == ("width",)
    assert fields_of_kind(Child, "device") == ("rate",)
    with pytest.raises(ConfigError, match=r"Child\.width"):
        Child(width=0)  # the parent's constraint is inherited with the type
    assert Parent().width == 128


def test_a_default_is_taken_over_two_levels_and_from_the_first_base_that_has_it():
    class Parent(Experiment):
        width: GraphConst[int] = 1

    class Left(Parent):
        width = 2

    class Right(Parent):
        other: int = 0

    class Both(Left, Right):
        other = 5

    assert (Both().width, Both().other) == (2, 5)
    assert fields_of_kind(Both, "graphconst") == ("width",)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("width: GraphConst[int] = 'wide'", "width"),
        ("max_epochs = 2.5", "max_epochs"),
        ("max_epochs = 0", "max_epochs"),
        ("check_divergence = 1", "check_divergence"),
        ("rate: Device[float] = 'fast'", "rate"),
        ("label: Device[str] = 'cat'", "label"),
        ("table: Device[object] = {'a': 1}", "table"),
        ("checkpointer = {'keep': ['bst(3)']}", "checkpointer.keep"),
    ],
)
def test_a_default_that_its_field_refuses_is_an_error_at_declaration(body, field):
    with pytest.raises(ConfigError, match=field) as caught:
        declare(body)
    assert "Declared in" in caught.value.where


def declare(body: str) -> type[Experiment]:
    source = "class Declared(Experiment):\n" + textwrap.indent(body, "    ")
    scope = {"Experiment": Experiment, "GraphConst": GraphConst, "Device": Device, "Host": Host, "np": np}
    exec(source, scope)
    return scope["Declared"]


@pytest.mark.parametrize("name", ["forward", "metrics", "optimizer", "visualize", "schedules", "export_inputs"])
def test_a_field_named_like_a_hook_is_refused_even_where_the_base_does_not_define_the_hook(name):
    with pytest.raises(ConfigError, match=f"'{name}' is named like a hook"):
        declare(f"{name}: int = 1")


@pytest.mark.parametrize("name", ["replace", "copy", "model_dump", "graphconst_items"])
def test_a_field_named_like_a_method_of_the_base_is_refused(name):
    with pytest.raises(ConfigError, match=f"'{name}' is named like a method"):
        declare(f"{name}: int = 1")


@pytest.mark.parametrize("body", ["def max_epochs(self):\n    return 3", "@property\ndef seed(self):\n    return 3"])
def test_a_field_defined_as_a_method_is_refused_with_the_assignment_to_write(body):
    with pytest.raises(ConfigError, match="is a field") as caught:
        declare(body)
    assert "assign its value" in caught.value.fix


def test_an_assignment_that_names_no_field_is_refused_with_the_nearest_field():
    with pytest.raises(ConfigError, match="'max_epoch' is assigned without an annotation") as caught:
        declare("max_epoch = 3")
    assert "max_epochs" in caught.value.nearest


def test_decorated_methods_and_class_variables_are_no_fields():
    class Decorated(Experiment):
        limit: ClassVar[int] = 3

        @functools.lru_cache(maxsize=1)  # noqa: B019
        def table(self):
            return self.limit

        @functools.cached_property
        def doubled(self):
            return 2 * self.limit

    assert set(Decorated.model_fields) == set(Experiment.model_fields)
    assert Decorated().doubled == 6


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Device[float] | None", "inside its type"),
        ("list[Device[float]]", "inside its type"),
        ("Device[GraphConst[int]]", "marked"),
        ("GraphConst", "without a type"),
    ],
)
def test_a_misplaced_marker_is_refused(annotation, message):
    with pytest.raises(ConfigError, match=message):
        declare(f"width: {annotation} = 1")


def test_an_annotation_that_cannot_be_evaluated_names_the_field_and_the_fix():
    with pytest.raises(ConfigError, match="'width' cannot be evaluated") as caught:
        declare("width: 'Missing' = 1")
    assert "TYPE_CHECKING" in caught.value.fix


def test_types_local_to_a_function_can_be_used_in_postponed_annotations():
    class Local(BaseModel):
        a: int = 1

    class UsesLocal(Experiment):
        part: Local = Local()

    assert UsesLocal(part={"a": 2}).part == Local(a=2)


def test_a_mutable_default_is_not_shared_between_experiments():
    class Shared(Experiment):
        names: list[str] = ["a"]  # noqa: RUF012

    Shared().names.append("b")
    assert Shared().names == ["a"]


def test_bad_defaults_are_listed_together():
    with pytest.raises(ConfigError) as caught:
        declare("width: GraphConst[int] = 'x'\nmax_epochs = -1")
    assert "width" in caught.value.what
    assert "max_epochs" in caught.value.what


def test_a_required_field_has_no_default_and_must_be_given():
    class Required(Experiment):
        classes: GraphConst[int]

    with pytest.raises(ConfigError, match=r"classes.*required"):
        Required()
    assert Required(classes=3).classes == 3


def test_whole_object_validators_do_not_run_at_declaration():
    started: list[int] = []

    class Strict(Experiment):
        low: int = 3
        high: int = 1

        def model_post_init(self, context):
            started.append(self.low)

        @model_validator(mode="after")
        def ordered(self):
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    assert started == []
    with pytest.raises(ConfigError, match="low is above high"):
        Strict()
    assert Strict(high=9).high == 9


def test_knob_defaults_are_those_of_the_specification():
    e = Experiment()
    assert (e.seed, e.max_epochs, e.accum, e.n_devs, e.run_dir) == (42, 1, 1, None, None)
    assert (e.gradient_clip_norm, e.check_divergence, e.autolog_schedules) == (0.0, True, True)
    assert (e.log_every_n_steps, e.eval_loss, e.monitor, e.early_stop, e.ema) == (1, False, None, None, None)
    assert (e.learning_rate, e.weight_decay, e.eval_weights, e.sharding) == (1e-3, 0.0, None, "replicated")
    assert (e.checkpoint_every_n_steps, e.checkpoint_every_minutes, e.max_time) == (None, None, None)
    assert e.checkpointer == Checkpointer()
    assert e.logger is not None
    assert e.logger.kind == "json"


@pytest.mark.parametrize("name", ["optimizer", "metrics", "no_decay", "schedules", "train_step"])
def test_a_hook_of_none_takes_back_what_an_experiment_above_wrote(name):
    above = declare(f"def {name}(self, *args): ...\nlearning_rate = 0.5")
    assert HookTable(above()).has(name)

    below = type(above)("Below", (above,), {"__module__": __name__, "__qualname__": "Below", name: None})
    assert not HookTable(below()).has(name)
    assert below().learning_rate == 0.5
    assert getattr(below, name, None) is getattr(Experiment, name, None)
    assert not HookTable(declare(f"{name} = None")()).has(name)


@pytest.mark.parametrize("name", ["optimizer", "metrics"])
def test_a_value_assigned_to_a_hook_is_refused_with_a_fix_that_is_taken(name):
    with pytest.raises(ConfigError, match=f"'{name}' is a hook") as refused:
        declare(f"{name} = 'adam'")
    assert f"def {name}(self, ...)" in refused.value.fix
    assert f"`{name} = None`" in refused.value.fix
    declare(f"{name} = None")
