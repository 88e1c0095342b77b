"""Every wrong key, group, kind, range and clash of the optimization page, with its error and the nearest names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import optim
from nitro_cli.errors import ConfigError, HookError, NitroError, OptimizerError, ScheduleError
from nitro_cli.experiment import EMA, Device, Experiment, GraphConst


class Whole(Experiment):
    """Two groups, fields of every kind, momentum."""

    width: GraphConst[int] = 4
    temperature: Device[float] = 1.0
    offsets: Device[Any] = np.zeros(3)
    switch: Device[bool] = True
    momentum_of_data: Device[float] = 0.5
    folder: str = "data"

    def build_data(self, dist: Any) -> Any: ...

    def build_model(self, rng: Any) -> Any: ...

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any: ...

    def loss(self, outputs: Any, *, y: Any) -> Any: ...

    def param_group(self, path: Any) -> str:
        return "default" if path[0] == "body" else "head"

    def optimizer(self, group: str) -> Any:
        return functools.partial(optax.sgd, momentum=0.9)


def having(**hooks: Any) -> Experiment:
    """`Whole` with some hooks replaced by functions of what the hook is given."""
    methods = {name: _method(name, hook) if callable(hook) else hook for name, hook in hooks.items()}
    return type("Changed", (Whole,), {"__module__": __name__, **methods})()


def _method(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    if name == "optimizer":  # whose parameters say its level
        return lambda self, group: hook(group)
    return lambda self, *words: hook(*words)


def scheduled(**entries: Any) -> Experiment:
    return having(schedules=lambda: {key.replace("__", "."): value for key, value in entries.items()})


def level_2(build: Callable[[Any], Any], **hooks: Any) -> Experiment:
    def optimizer(self: Any, group: str, hp: Any) -> Any:
        return build(hp)

    e = having(**hooks)
    return type("Built", (type(e),), {"__module__": __name__, "optimizer": optimizer})()


def chained(hp: Any) -> Any:
    return optax.chain(optax.scale_by_learning_rate(hp.learning_rate), optim.decay(hp))


def set_up(e: Experiment, params: Any) -> None:
    """What setup does with the hooks of this page."""
    layout = optim.build_layout(e, params)
    hyper = optim.bind(e, layout, total_steps=20)
    hyper.table(1, 20)
    optimizer = optim.Optimizer(e, layout, hyper, supplies_loss=True)
    optimizer.anchors(params)


class Clash(Whole):
    momentum: Device[float] = 0.5

    def schedules(self) -> Any:
        return {"momentum": 0.3}


class ClashOfRule(Whole):
    rho: Device[float] = 0.5

    def grad_rule(self) -> Any:
        return optim.SAM(0.1)

    def schedules(self) -> Any:
        return {"rho": 0.3}


def anchor(tree: Any) -> Experiment:
    return having(decay_anchor=lambda group: tree if group == "head" else "zero")


HEAD = {"head": {"kernel": jnp.zeros((2, 1))}}

# what is wrong: how it is made, the error, what its text holds, and the nearest names it must give
TABLE: dict[str, tuple[Callable[[], Any], type[NitroError], tuple[str, ...], tuple[str, ...]]] = {
    # keys
    "an unknown key": (lambda: scheduled(learning_rte=0.1), ScheduleError, ("learning_rte",), ("learning_rate",)),
    "the name of another library": (lambda: scheduled(lr=0.1), ScheduleError, ("'lr'",), ("learning_rate",)),
    "a key of no group's optimizer": (lambda: scheduled(b1=0.9), ScheduleError, ("'b1'", "momentum"), ()),
    "an unknown key of a group": (
        lambda: scheduled(opt__head__momentun=0.9),
        ScheduleError,
        ("opt.head.momentun",),
        ("momentum",),
    ),
    "an unknown Device field": (
        lambda: scheduled(device__temprature=1.0),
        ScheduleError,
        ("device.temprature",),
        ("temperature",),
    ),
    "a field that the gradient rule lacks": (
        lambda: having(grad_rule=lambda: optim.SAM(0.1), schedules=lambda: {"grad.rh": 1.0}),
        ScheduleError,
        ("grad.rh",),
        ("rho",),
    ),
    "a key of the rule without a rule": (lambda: scheduled(rho=0.1), ScheduleError, ("'rho'",), ()),
    "a key in two spellings": (
        lambda: having(schedules=lambda: {"momentum": 0.1, "opt.momentum": 0.2}),
        ScheduleError,
        ("'momentum'", "'opt.momentum'"),
        (),
    ),
    "a key given twice": (
        lambda: having(schedules=lambda: {"opt.momentum": 0.1, "opt": {"momentum": 0.2}}),
        ScheduleError,
        ("given twice",),
        (),
    ),
    "a key that is not text": (lambda: having(schedules=lambda: {3: 0.1}), ScheduleError, ("not text",), ()),
    "schedules that are no mapping": (lambda: having(schedules=lambda: [0.1]), ScheduleError, ("list",), ()),
    # clashes
    "a key of both namespaces": (Clash, ScheduleError, ("ambiguous", "'opt.momentum'", "'device.momentum'"), ()),
    "a key of the rule and a field": (ClashOfRule, ScheduleError, ("ambiguous", "'grad.rho'", "'device.rho'"), ()),
    "a factory's own decay and the framework's": (
        lambda: having(optimizer=lambda group: optax.adamw, group_weight_decay=lambda group: 0.1),
        OptimizerError,
        ("decay twice", "leave weight_decay at 0", "optax.adam for adamw"),
        (),
    ),
    "a factory's own decay and a scheduled one": (
        lambda: having(optimizer=lambda group: optax.adamw, schedules=lambda: {"weight_decay": 0.1}),
        OptimizerError,
        ("decay twice", "a schedule"),
        (),
    ),
    "decay scheduled over a group's own": (
        lambda: having(
            group_weight_decay=lambda group: 0.1 if group == "head" else 0.0, schedules=lambda: {"weight_decay": 0.1}
        ),
        ScheduleError,
        ("weight_decay", "head"),
        (),
    ),
    # kinds
    "a Host field": (lambda: scheduled(folder=0.1), ScheduleError, ("folder", "Host field", "mark it Device"), ()),
    "a run knob": (lambda: scheduled(max_epochs=3), ScheduleError, ("max_epochs", "Host field"), ()),
    "a GraphConst field": (lambda: scheduled(width=3), ScheduleError, ("width", "GraphConst", "recompiles"), ()),
    "a Device array": (lambda: scheduled(offsets=0.1), ScheduleError, ("offsets", "scalar"), ()),
    "a Device switch": (lambda: scheduled(device__switch=1.0), ScheduleError, ("switch", "bool"), ()),
    # groups
    "a schedule of a group that no leaf is in": (
        lambda: scheduled(opt__hed__learning_rate=0.1),
        ScheduleError,
        ("'hed'", "default, head"),
        ("head",),
    ),
    "a rate for a group that no leaf is in": (
        lambda: having(group_learning_rate=lambda group: 0.1 if group == "hed" else 1e-3),
        OptimizerError,
        ("'hed'", "default, head"),
        ("head",),
    ),
    "a decay for a group that no leaf is in": (
        lambda: having(group_weight_decay=lambda group: 0.1 if group == "hed" else 0.0),
        OptimizerError,
        ("'hed'", "default, head"),
        ("head",),
    ),
    "an anchor for a group that no leaf is in": (
        lambda: having(decay_anchor=lambda group: "w0" if group == "hed" else "zero"),
        OptimizerError,
        ("'hed'", "default, head"),
        ("head",),
    ),
    "nothing that trains": (
        lambda: having(param_group=lambda path: "frozen"),
        OptimizerError,
        ("no parameter trains",),
        (),
    ),
    "a group that is no name": (lambda: having(param_group=lambda path: 3), OptimizerError, ("param_group", "3"), ()),
    "a base rate of zero": (
        lambda: having(learning_rate=0.0),
        OptimizerError,
        ("learning_rate is 0", "ratios"),
        (),
    ),
    # decay
    "a negative decay": (
        lambda: having(group_weight_decay=lambda group: -0.1),
        OptimizerError,
        ("-0.1", "grows the weights"),
        (),
    ),
    "an anchor of no known name": (lambda: anchor("W0"), OptimizerError, ("'W0'",), ("w0",)),
    "no anchor": (lambda: anchor(None), OptimizerError, ("None", "'zero'"), ()),
    "an anchor without a leaf": (lambda: anchor({"head": {}}), OptimizerError, ("head/kernel",), ()),
    "an anchor with a leaf too many": (
        lambda: anchor({"head": {**HEAD["head"], "kernal": jnp.zeros(1)}}),
        OptimizerError,
        ("head/kernal",),
        ("head/kernel",),
    ),
    "an anchor of another shape": (
        lambda: anchor({"head": {"kernel": jnp.zeros((3, 1))}}),
        OptimizerError,
        ("(3, 1)", "(2, 1)"),
        (),
    ),
    "an exclusion that is no answer": (
        lambda: having(no_decay=lambda path, leaf: None),
        OptimizerError,
        ("no_decay", "NoneType"),
        (),
    ),
    # optimizers
    "a scheduled entry that the chain ignores": (
        lambda: level_2(chained, schedules=lambda: {"opt.momentum": 0.9}),
        OptimizerError,
        ("ignores", "'momentum'", "hp.momentum"),
        (),
    ),
    "a decay that the chain ignores": (
        lambda: level_2(lambda hp: optax.sgd(hp.learning_rate), group_weight_decay=lambda group: 0.1),
        OptimizerError,
        ("ignores its weight decay", "decay(hp)"),
        (),
    ),
    "a decay that is not the last": (
        lambda: level_2(lambda hp: optax.chain(optim.decay(hp), optax.scale(-1.0))),
        OptimizerError,
        ("decay(hp) is not the last",),
        (),
    ),
    "an entry that nothing provides": (
        lambda: level_2(lambda hp: optax.sgd(hp.learning_rte)),
        OptimizerError,
        ("hp.learning_rte",),
        ("learning_rate",),
    ),
    "a built optimizer": (
        lambda: having(optimizer=lambda group: optax.adam(1e-3)),
        OptimizerError,
        ("built transformation",),
        (),
    ),
    "a forgotten return": (
        lambda: having(optimizer=lambda group: None),
        OptimizerError,
        ("the optimizer hook returned None", "return a factory"),
        (),
    ),
    # ranges
    "a negative clip norm": (lambda: having(gradient_clip_norm=-1.0), ConfigError, ("gradient_clip_norm",), ()),
    "an average that is none": (lambda: having(ema=EMA(beta=1.5)), ConfigError, ("beta",), ()),
    "an average at no step": (lambda: having(ema=EMA(0.9, every=0)), ConfigError, ("every",), ()),
    "a negative radius": (lambda: having(grad_rule=lambda: optim.SAM(-0.1)), OptimizerError, ("rho", "-0.1"), ()),
    "a negative eta": (
        lambda: having(grad_rule=lambda: optim.ASAM(0.1, eta=-1.0)),
        OptimizerError,
        ("eta", "-1.0"),
        (),
    ),
    "a rule's class": (lambda: having(grad_rule=lambda: optim.SAM), OptimizerError, ("the class SAM",), ()),
    # schedules
    "what is no schedule": (lambda: scheduled(momentum="cosine"), ScheduleError, ("'momentum'", "str"), ()),
    "a constant that is not finite": (lambda: scheduled(momentum=float("nan")), ScheduleError, ("nan",), ()),
    "a value that is not finite": (
        lambda: scheduled(momentum=lambda total: lambda step: 1.0 if step < 5 else float("inf")),
        ScheduleError,
        ("inf at step 5",),
        (),
    ),
    "a factory that fails": (
        lambda: scheduled(momentum=lambda total: 1 / 0),
        HookError,
        ("'momentum'", "20 steps", "ZeroDivisionError"),
        (),
    ),
    "a warmup longer than the run": (
        lambda: scheduled(learning_rate=optim.warmup_cosine(0.1, warmup_steps=30)),
        ScheduleError,
        ("'learning_rate'", "30", "20"),
        (),
    ),
    "a table of no known kind": (
        lambda: scheduled(learning_rate={"kind": "cosin", "init_value": 0.1}),
        ScheduleError,
        ("learning_rate", "cosin"),
        ("cosine",),
    ),
    "a table with an unknown parameter": (
        lambda: scheduled(learning_rate={"kind": "cosine", "init_valu": 0.1}),
        ScheduleError,
        ("init_valu",),
        ("init_value",),
    ),
    "a plateau with nothing to follow": (
        lambda: scheduled(momentum=optim.Plateau(0.9)),
        ScheduleError,
        ("'momentum'", "monitor"),
        (),
    ),
    "a plateau that grows": (
        lambda: scheduled(momentum=optim.Plateau(0.9, factor=1.5)),
        ScheduleError,
        ("factor",),
        (),
    ),
    "a plateau around a plateau": (
        lambda: scheduled(momentum=optim.Plateau(optim.Plateau(0.9))),
        ScheduleError,
        ("Plateau",),
        (),
    ),
}


@pytest.mark.parametrize("what", TABLE)
def test_what_is_wrong_is_refused_with_its_reason_and_the_nearest_names(what: str, params: Any) -> None:
    make, error, fragments, nearest = TABLE[what]
    with pytest.raises(error) as caught:
        set_up(make(), params)
    text = str(caught.value)
    for fragment in fragments:
        assert fragment in text
    if nearest:
        assert set(nearest) <= set(caught.value.nearest), text
        assert nearest[0] in text.partition("did you mean")[2]


def test_the_class_they_are_made_from_is_right(params: Any) -> None:
    set_up(Whole(), params)
    set_up(level_2(chained), params)
    set_up(anchor({"head": {"kernel": jnp.zeros((2, 1))}}), params)
