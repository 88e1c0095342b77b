"""What a schedule's key binds to, and what is refused."""

from typing import Any

import numpy as np
import optax
import pytest

from nitro_cli import Device, GraphConst, optim
from nitro_cli.errors import OptimizerError, ScheduleError


def bind(e: Any, params: Any, **options: Any) -> optim.Hyper:
    options.setdefault("total_steps", 10)
    return optim.bind(e, optim.build_layout(e, params), **options)


@pytest.fixture
def rich(base: type[Any]) -> type[Any]:
    class Rich(base):  # type: ignore[valid-type, misc]
        width: GraphConst[int] = 4
        smoothing: Device[float] = 0.1
        rho: Device[float] = 0.5
        weights: Device[tuple[float, float]] = (1.0, 2.0)
        verbose: int = 1

        def param_group(self, path: Any) -> str:
            return "head" if path[0] == "head" else "default"

        def optimizer(self, group: str) -> Any:
            return optax.sgd if group == "default" else optax.adam

        def group_learning_rate(self, group: str) -> float:
            return self.learning_rate / 10 if group == "head" else self.learning_rate

    return Rich


def bound(hyper: optim.Hyper) -> dict[str, tuple[str, ...]]:
    return {row.key: row.bound for row in hyper.bindings}


def test_a_bare_key_binds_every_group_that_takes_it_and_no_other(rich: type[Any], params: Any) -> None:
    hyper = bind(rich(), params, schedules={"learning_rate": 0.5, "momentum": 0.9, "b1": 0.8, "smoothing": 0.2})
    assert bound(hyper) == {
        "learning_rate": ("default/learning_rate", "head/learning_rate"),
        "momentum": ("default/momentum",),
        "b1": ("head/b1",),
        "smoothing": ("device/smoothing",),
    }
    assert hyper.scheduled_device_fields == ("smoothing",)


def test_a_groups_ratio_scales_the_learning_rate_and_nothing_else(rich: type[Any], params: Any) -> None:
    hyper = bind(rich(), params, schedules={"learning_rate": 0.5, "weight_decay": 0.25})
    row = dict(zip(hyper.columns, hyper.table(1, 1)[0].tolist(), strict=True))
    assert row["default/learning_rate"] == 0.5
    assert row["head/learning_rate"] == pytest.approx(0.05)
    assert row["default/weight_decay"] == row["head/weight_decay"] == 0.25


def test_a_groups_own_key_wins_over_the_bare_one_and_keeps_the_ratio(rich: type[Any], params: Any) -> None:
    hyper = bind(rich(), params, schedules={"opt.head.learning_rate": 2.0, "learning_rate": 0.5})
    row = dict(zip(hyper.columns, hyper.table(1, 1)[0].tolist(), strict=True))
    assert row["default/learning_rate"] == 0.5
    assert row["head/learning_rate"] == pytest.approx(0.2)
    assert bound(hyper)["learning_rate"] == ("default/learning_rate",)


def test_nested_tables_are_the_dotted_keys(rich: type[Any], params: Any) -> None:
    nested = {"opt": {"head": {"learning_rate": {"kind": "constant", "value": 2.0}}}, "device": {"smoothing": 0.3}}
    hyper = bind(rich(), params, schedules=nested)
    assert set(bound(hyper)) == {"opt.head.learning_rate", "device.smoothing"}


def test_a_name_of_both_namespaces_is_ambiguous_and_the_error_shows_both_forms(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        momentum: Device[float] = 0.1

        def optimizer(self, group: str) -> Any:
            return optax.sgd

    with pytest.raises(ScheduleError) as caught:
        bind(E(), params, schedules={"momentum": 0.9})
    assert "'opt.momentum'" in str(caught.value)
    assert "'device.momentum'" in str(caught.value)
    hyper = bind(E(), params, schedules={"opt.momentum": 0.9, "device.momentum": 0.2})
    assert bound(hyper) == {"opt.momentum": ("default/momentum",), "device.momentum": ("device/momentum",)}


def test_a_gradient_rules_field_clashes_with_a_device_field(rich: type[Any], params: Any) -> None:
    class E(rich):  # type: ignore[valid-type, misc]
        def grad_rule(self) -> Any:
            return optim.SAM(0.05)

    with pytest.raises(ScheduleError, match=r"'device\.rho' or 'grad\.rho'"):
        bind(E(), params, schedules={"rho": 0.1})
    hyper = bind(E(), params, schedules={"grad.rho": 0.25})
    assert hyper.table(1, 1)[0][hyper.column("grad/rho")] == 0.25


def test_an_unknown_key_names_the_nearest(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        bind(rich(), params, schedules={"learning_rat": 0.1})
    assert "learning_rate" in caught.value.nearest
    with pytest.raises(ScheduleError) as caught:
        bind(rich(), params, schedules={"device.smothing": 0.1})
    assert "smoothing" in caught.value.nearest


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("width", "GraphConst"),
        ("verbose", "Host"),
        ("seed", "Host"),
        ("gradient_clip_norm", "Host"),
        ("weights", r"shape \(2,\)"),
    ],
)
def test_a_field_that_cannot_be_scheduled_is_refused_with_the_reason(
    rich: type[Any], params: Any, name: str, reason: str
) -> None:
    for key in (name, f"device.{name}"):
        with pytest.raises(ScheduleError, match=reason):
            bind(rich(), params, schedules={key: 0.1})


def test_a_group_that_no_leaf_is_in_is_refused_naming_the_groups(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError, match=r"'haed'[\s\S]*default, head") as caught:
        bind(rich(), params, schedules={"opt.haed.learning_rate": 0.1})
    assert caught.value.nearest == ("head",)


@pytest.mark.parametrize("hook", ["group_learning_rate", "group_weight_decay"])
def test_a_rate_or_decay_for_a_group_that_no_leaf_is_in_is_refused(base: type[Any], params: Any, hook: str) -> None:
    def ask(self: Any, group: str) -> float:
        return 0.5 if group == "backbone" else 0.25

    e = type("E", (base,), {hook: ask, "__module__": __name__})()
    with pytest.raises(OptimizerError, match=r"'backbone'[\s\S]*the groups are: default"):
        bind(e, params)


def test_a_rate_may_name_the_default_group_by_any_comparison(rich: type[Any], params: Any) -> None:
    class E(rich):  # type: ignore[valid-type, misc]
        def group_learning_rate(self, group: str) -> float:
            match group:
                case "head":
                    return 0.5
                case "default" | "frozen":
                    return 0.25
            return {"head": 1.0}.get(group, 2.0)

    hyper = bind(E(), params)
    assert {row.group: row.rate for row in hyper.groups} == {"default": "0.25", "head": "0.5"}


def test_the_names_of_other_libraries_are_understood_in_the_error(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        bind(rich(), params, schedules={"lr": 0.1})
    assert caught.value.nearest == ("learning_rate",)


def test_an_integer_device_field_takes_whole_numbers_only(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        depth: Device[int] = 3

    hyper = bind(E(), params, schedules={"depth": lambda total: lambda step: step})
    assert hyper.device_values(4, 1)["depth"].tolist() == [4.0]
    assert hyper.columns == bind(E(), params).columns
    hyper = bind(E(), params, schedules={"depth": lambda total: lambda step: step / 2})
    with pytest.raises(ScheduleError, match=r"is 0\.5 at step 1"):
        hyper.table(1, 1)


def test_two_spellings_of_one_value_are_refused(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError, match="bind the same value"):
        bind(rich(), params, schedules={"momentum": 0.9, "opt.momentum": 0.8})


def test_weight_decay_is_not_scheduled_over_a_groups_own(rich: type[Any], params: Any) -> None:
    class E(rich):  # type: ignore[valid-type, misc]
        def group_weight_decay(self, group: str) -> float:
            return 0.1 if group == "head" else self.weight_decay

    for key in ("weight_decay", "opt.weight_decay", "opt.head.weight_decay"):
        with pytest.raises(ScheduleError, match="group_weight_decay declares its own for: head"):
            bind(E(), params, schedules={key: 0.1})
    assert bind(E(), params, schedules={"opt.default.weight_decay": 0.5}).has_column("default/weight_decay")


def test_a_key_that_the_groups_own_optimizer_does_not_take_is_refused(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError, match=r"the optimizer of 'head' takes .*b1"):
        bind(rich(), params, schedules={"opt.head.momentum": 0.9})


def test_the_keyword_replaces_the_class_and_the_report_says_where_each_came_from(rich: type[Any], params: Any) -> None:
    class E(rich):  # type: ignore[valid-type, misc]
        def schedules(self) -> Any:
            return {"momentum": 0.9}

    assert [(row.key, row.origin) for row in bind(E(), params).bindings] == [("momentum", "class")]
    replaced = bind(E(), params, schedules={"b1": 0.5}, origin="keyword")
    assert [(row.key, row.origin) for row in replaced.bindings] == [("b1", "keyword")]
    assert bind(E(), params, schedules={}).bindings == ()


def test_what_varies_is_logged_per_group_and_constants_are_not(rich: type[Any], params: Any) -> None:
    schedules = {
        "learning_rate": optim.linear(1.0, 0.0),
        "momentum": lambda total: lambda step: 0.1 * step,
        "b1": 0.5,
        "smoothing": optax.linear_schedule(0.0, 1.0, 10),
    }
    hyper = bind(rich(), params, schedules=schedules)
    assert set(hyper.varying()) == {
        "schedule/default/learning_rate",
        "schedule/head/learning_rate",
        "schedule/default/momentum",
        "schedule/smoothing",
    }
    at = hyper.values_at(3)
    assert at["schedule/default/learning_rate"] == pytest.approx(0.8)
    assert at["schedule/head/learning_rate"] == pytest.approx(0.08)
    assert at["schedule/default/momentum"] == pytest.approx(0.3)
    assert at["schedule/smoothing"] == pytest.approx(0.2)


def test_one_group_logs_without_its_name_and_a_clash_of_names_is_qualified(base: type[Any], params: Any) -> None:
    class E(base):  # type: ignore[valid-type, misc]
        b1: Device[float] = 0.1

    ramp = optim.linear(0.0, 1.0)
    plain = bind(E(), params, schedules={"learning_rate": ramp})
    assert plain.varying() == ("schedule/learning_rate",)
    both = bind(E(), params, schedules={"opt.b1": ramp, "device.b1": ramp})
    assert set(both.varying()) == {"schedule/opt.b1", "schedule/device.b1"}


def test_a_table_is_float32_and_holds_each_steps_values_wherever_it_begins(rich: type[Any], params: Any) -> None:
    hyper = bind(rich(), params, schedules={"learning_rate": optim.cosine(0.3)}, total_steps=900)
    whole, part = hyper.table(1, 900), hyper.table(400, 300)
    assert whole.dtype == np.float32
    assert whole.shape == (900, len(hyper.columns))
    assert part.tobytes() == whole[399:699].tobytes()


def test_plateaus_scale_their_own_key_from_the_next_step_on(rich: type[Any], params: Any) -> None:
    schedules = {
        "learning_rate": optim.Plateau(0.5, patience=0),
        "momentum": optim.Plateau(0.8, metric="acc", mode="max", patience=0, factor=0.5),
    }
    hyper = bind(rich(), params, schedules=schedules, monitor=("loss", "min"))
    rate, momentum = hyper.column("default/learning_rate"), hyper.column("default/momentum")
    before, nothing = hyper.after(1, {"loss": 1.0, "acc": 0.1})
    hyper, said = before.after(2, {"loss": 1.0, "acc": 0.2})
    assert nothing == []
    assert len(said) == 1
    assert "learning_rate" in said[0]
    assert before.table(20, 1)[0][rate] == pytest.approx(0.5)
    row = hyper.table(20, 1)[0]
    assert row[rate] == pytest.approx(0.05)
    assert row[momentum] == pytest.approx(0.8)
    assert hyper.plateau_scales() == {"schedule/plateau/learning_rate": 0.1, "schedule/plateau/momentum": 1.0}
    assert hyper.values_at(20)["schedule/default/learning_rate"] == pytest.approx(0.05)

    resumed = bind(rich(), params, schedules=schedules, monitor=("loss", "min"))
    assert resumed.continued(hyper.state()).table(20, 5).tobytes() == hyper.table(20, 5).tobytes()


def test_a_plateau_without_a_metric_to_follow_is_refused(rich: type[Any], params: Any) -> None:
    with pytest.raises(ScheduleError, match="no monitor"):
        bind(rich(), params, schedules={"learning_rate": optim.Plateau(0.5)})


def test_a_plateau_under_another_metric_starts_fresh_with_a_warning(rich: type[Any], params: Any) -> None:
    schedules = {"learning_rate": optim.Plateau(0.5, patience=0)}
    old = bind(rich(), params, schedules=schedules, monitor=("loss", "min"))
    for epoch in (1, 2):
        old, _ = old.after(epoch, {"loss": 1.0})
    new = bind(rich(), params, schedules=schedules, monitor=("acc", "max"))
    with pytest.warns(UserWarning, match=r"loss \(min\), now acc \(max\)"):
        new = new.continued(old.state())
    assert new.plateau_scales() == {"schedule/plateau/learning_rate": 1.0}


def test_another_horizon_recomputes_the_curve_and_tells_the_jump(rich: type[Any], params: Any) -> None:
    schedules = {"learning_rate": optim.linear(1.0, 0.0), "momentum": lambda total: lambda step: 0.5}
    old = bind(rich(), params, schedules=schedules, total_steps=10)
    new = bind(rich(), params, schedules=schedules, total_steps=20)
    said = optim.horizon_jump(old, new, 5)
    assert len(said) == 2
    assert "schedule/default/learning_rate at step 6 is 0.75 over 20 steps; it was 0.5 over 10" in said
    assert optim.horizon_jump(old, bind(rich(), params, schedules=schedules, total_steps=10), 5) == []
