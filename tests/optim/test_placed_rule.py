"""`grad_rule(self, hp)`: the gradient rule built for every step from the step's own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

from nitro_cli import Nitro, optim
from nitro_cli.errors import HookError, OptimizerError, ScheduleError
from nitro_cli.optim import SAM, Plateau, SingleGrad
from tests.tiny import Bare

RHO = 0.4


class Whole(Bare):
    """Eight steps of plain gradient descent."""

    learning_rate = 0.1
    checkpointer = None
    logger = None

    def optimizer(self, group: str) -> Any:
        return optax.sgd


class Placed(Whole):
    """A radius that warms up."""

    def grad_rule(self, hp: Any) -> Any:
        return SAM(RHO * hp.bind.warm)

    def schedules(self) -> Any:
        return {"bind.warm": lambda total: lambda step: step / total}


class ByField(Whole):
    """The same radius, as a schedule of the rule's own field."""

    def grad_rule(self) -> Any:
        return SAM(RHO)

    def schedules(self) -> Any:
        return {"rho": lambda total: lambda step: RHO * (step / total)}


def radii(e: Any, count: int = 4, **words: Any) -> list[float]:
    hyper = bound(e, **words)
    return hyper.table(1, count)[:, hyper.column("grad/rho")].tolist()


def bound(e: Any, schedules: Any = None, total: int = 4) -> optim.Hyper:
    layout = optim.build_layout(e, {"kernel": np.ones((2, 2), np.float32)})
    return optim.bind(e, layout, schedules=schedules, total_steps=total)


def test_the_rule_of_each_step_is_built_from_the_steps_numbers() -> None:
    assert radii(Placed()) == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-6)
    assert bound(Placed()).table(3, 2).tolist() == bound(Placed()).table(1, 4)[2:].tolist()


def test_it_trains_as_the_scheduled_field_does_and_its_number_is_logged(tmp_path: Any) -> None:
    placed, field, plain = (Nitro(cls(), run_dir=tmp_path).train() for cls in (Placed, ByField, Whole))
    for name, leaf in placed.params.items():
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(field.params[name]), rtol=1e-6)
        assert not np.array_equal(np.asarray(leaf), np.asarray(plain.params[name]))
    assert placed.plan.optim.hyper.varying() == ("schedule/warm",)
    (row,) = placed.report.as_json()["bindings"]
    assert (row["key"], row["bound"]) == ("bind.warm", "bind/warm")


def test_another_value_compiles_nothing(tmp_path: Any) -> None:
    from nitro_cli import cache_stats

    Nitro(Placed(), run_dir=tmp_path).train()
    before = cache_stats().by_name["train"].misses
    Nitro(Placed(), run_dir=tmp_path, schedules={"bind.warm": 0.125}).train()
    assert cache_stats().by_name["train"].misses == before


def test_scheduled_fields_come_by_name_and_nested_tables_bind_as_dotted_keys_do() -> None:
    class Both(Whole):
        def grad_rule(self, hp: Any) -> Any:
            return SAM(hp.rho * hp.bind.get("factor", 1.0))

    assert radii(Both(), 2, schedules={"rho": 0.5}) == [0.5, 0.5]
    assert radii(Both(), 2, schedules={"grad.rho": 0.5, "bind": {"factor": 0.5}}) == [0.25, 0.25]
    table = {"rho": {"kind": "linear", "init_value": 1.0, "end_value": 0.0}, "bind.factor": 2.0}
    assert radii(Both(), 2, schedules=table) == [2.0, 1.5]


def test_a_plateau_scales_what_is_bound() -> None:
    entry = {"bind.warm": Plateau(1.0, metric="m", mode="min", patience=0, factor=0.5)}
    hyper = bound(Placed(), entry)
    for value in (1.0, 1.0):
        hyper, _ = hyper.after(1, {"m": value})
    assert hyper.table(1, 1)[0, hyper.column("grad/rho")] == pytest.approx(RHO / 2, rel=1e-6)


def later(change: Any) -> type[Whole]:
    class Changing(Placed):
        def grad_rule(self, hp: Any) -> Any:
            return SAM(RHO) if hp.bind.warm < 0.6 else change(hp)

    return Changing


def fails(hp: Any) -> Any:
    raise KeyError("gone")


REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a number that nothing schedules": (Placed, {"bind.warn": 1.0}, OptimizerError, r"reads hp.bind.warm[\s\S]*warn"),
    "a number that the hook ignores": (
        Placed,
        {"bind.warm": 1.0, "bind.cold": 1.0},
        OptimizerError,
        "'bind.cold' has no effect",
    ),
    "a field that the hook ignores": (Placed, {"bind.warm": 1.0, "rho": 1.0}, OptimizerError, "'rho' has no effect"),
    "no such field": (Placed, {"bind.warm": 1.0, "roh": 1.0}, ScheduleError, "'roh' binds to nothing"),
    "a hook that takes no numbers": (ByField, {"bind.warm": 1.0}, ScheduleError, "its grad_rule takes none"),
    "another kind of rule later": (later(lambda hp: SingleGrad()), None, OptimizerError, "at step 3"),
    "a field that is not finite": (later(lambda hp: SAM(1e308 * 1e308)), None, OptimizerError, "must be 0 or more"),
    "a hook that raises later": (later(fails), None, HookError, r"failed at step 3[\s\S]*KeyError"),
    "no rule": (type("Odd", (Placed,), {"grad_rule": lambda self, hp: 3}), None, OptimizerError, "returned int"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_placed_is_refused(what: str) -> None:
    cls, schedules, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        bound(cls(), schedules).table(1, 4)


def test_manual_mode_refuses_it() -> None:
    class Manual(Placed):
        def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
            return optax.sgd(0.1).init(params)

        def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: Any) -> Any: ...

    with pytest.raises(OptimizerError, match=r"grad_rule\(self, hp\) has no effect in manual mode"):
        Nitro(Manual())
