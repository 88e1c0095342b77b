"""`Optim`: optimizers by name, their options, L2, and rows of groups."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import Nitro, cache_stats, optim
from nitro_cli.errors import ConfigError, IncompatibleError, OptimizerError, ScheduleError
from nitro_cli.experiment import compile_view, graphconst_fingerprint
from nitro_cli.optim import OPTIMIZERS, Optim, constant, linear, register_optimizer
from nitro_cli.registry import read_config, resolve
from tests.optim.test_levels import FACTORIES, REFUSED
from tests.tiny import Light

STEPS = 50


class Trained(Light):
    """`Light` with an optimizer by name."""

    optimizer = None
    optim: Optim = Optim("sgd", momentum=0.9)


@pytest.fixture
def named(base: type[Any]) -> Any:
    class E(base):  # type: ignore[valid-type, misc]
        optim: Optim
        learning_rate = 0.05

    return E


def made(e: Any, params: Any, schedules: Any = None) -> optim.Optimizer:
    layout = optim.build_layout(e, params)
    return optim.Optimizer(e, layout, optim.bind(e, layout, schedules=schedules, total_steps=STEPS), supplies_loss=True)


def gradients(params: Any) -> list[Any]:
    rng = np.random.default_rng(7)
    shapes = jax.tree.map(lambda p: p.shape, params)
    one = lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return [jax.tree.map(one, shapes, is_leaf=lambda x: isinstance(x, tuple)) for _ in range(STEPS)]


def trained(e: Any, params: Any, schedules: Any = None) -> Any:
    optimizer = made(e, params, schedules)
    rows = optimizer.hyper.table(1, STEPS)
    state = optimizer.init(params, rows[0])
    step = jax.jit(lambda g, s, p, row: optimizer.update(g, s, p, row)[:2])
    for grads, row in zip(gradients(params), rows, strict=True):
        params, state = step(grads, state, params, jnp.asarray(row))
    return params


def by_hand(chain: Any, params: Any) -> Any:
    state = chain.init(params)

    @jax.jit
    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = chain.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for grads in gradients(params):
        params, state = step(grads, state, params)
    return params


@pytest.mark.parametrize(
    ("part", "chain"),
    [
        (Optim("adam", b1=0.8, eps=1e-6), optax.adam(0.05, b1=0.8, eps=1e-6)),
        (Optim("adamw", weight_decay=0.02, decay="all"), optax.adamw(0.05, weight_decay=0.02)),
        (Optim("sgd", momentum=0.9, nesterov=True), optax.sgd(0.05, momentum=0.9, nesterov=True)),
        (Optim("nadam", b2=0.99), optax.adam(0.05, b2=0.99, nesterov=True)),
        (Optim("lion", b1=0.85, decay="all"), optax.lion(0.05, b1=0.85)),
    ],
    ids=["adam", "adamw", "sgd", "nadam", "lion"],
)
def test_fifty_steps_equal_those_of_optax_by_hand(named: Any, params: Any, part: Optim, chain: Any) -> None:
    found, wanted = trained(named(optim=part), params), by_hand(chain, params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def torch_adam(w: np.ndarray, grads: list[np.ndarray], lr: float, decay: float) -> np.ndarray:
    """PyTorch's Adam with `weight_decay`, from its documentation."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(grads, 1):
        g = gradient + decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def torch_sgd(w: np.ndarray, grads: list[np.ndarray], lr: float, decay: float) -> np.ndarray:
    """PyTorch's SGD with `momentum=0.9` and `weight_decay`, from its documentation."""
    b = np.zeros_like(w)
    for t, gradient in enumerate(grads, 1):
        g = gradient + decay * w
        b = g if t == 1 else 0.9 * b + g
        w = w - lr * b
    return w


@pytest.mark.parametrize(
    ("part", "rule"), [(Optim("adam"), torch_adam), (Optim("sgd", momentum=0.9), torch_sgd)], ids=["adam", "sgd"]
)
def test_l2_on_all_parameters_is_the_weight_decay_of_pytorch(named: Any, params: Any, part: Optim, rule: Any) -> None:
    found = trained(named(optim=part.replace(l2=0.01, decay="all"), learning_rate=0.01), params)
    steps = [jax.tree.leaves(g) for g in gradients(params)]
    for index, (a, w) in enumerate(zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True)):
        wanted = rule(np.asarray(w, np.float64), [np.asarray(g[index], np.float64) for g in steps], 0.01, 0.01)
        np.testing.assert_allclose(a, wanted, rtol=1e-5, atol=1e-6)


def test_l2_is_added_to_the_clipped_gradient_of_what_decays(named: Any, params: Any, grads: Any) -> None:
    e = named(optim=Optim("sgd", l2=0.5), learning_rate=1.0, gradient_clip_norm=1.0)
    optimizer = made(e, params)
    row = jnp.asarray(optimizer.hyper.table(1, 1)[0])
    new, _, norm = jax.jit(lambda p: optimizer.update(grads, optimizer.init(p, row), p, row))(params)
    w, g = params["body"]["kernel"], grads["body"]["kernel"] / norm
    np.testing.assert_allclose(new["body"]["kernel"], w - (g + 0.5 * w), rtol=1e-6)
    np.testing.assert_allclose(new["body"]["bias"], params["body"]["bias"] - grads["body"]["bias"] / norm, rtol=1e-6)


ROWS = (
    {"match": "enc/**/bias", "scale": 0.01, "weight_decay": 0.0},
    {"match": "enc/**", "scale": 0.01},
    {"match": "**/bias", "weight_decay": 0.0},
)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_first_row_that_matches_a_parameter_says_its_rate_and_decay(named: Any, name: str) -> None:
    layer = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    params = {"enc": {"one": layer, "bias": jnp.ones(2)}, "head": layer}
    e = named(optim=Optim(name, groups=ROWS), learning_rate=1e-3, weight_decay=5e-4)
    layout = optim.build_layout(e, params)
    hyper = optim.bind(e, layout, total_steps=2)
    row = hyper.table(1, 1)[0]
    read = {
        leaf.text: tuple(float(row[hyper.column(f"{leaf.group}/{n}")]) for n in ("learning_rate", "weight_decay"))
        for leaf in layout.leaves
    }
    assert {text: pytest.approx(numbers, rel=1e-6) for text, numbers in read.items()} == {
        "enc/bias": (1e-5, 0.0),
        "enc/one/bias": (1e-5, 0.0),
        "enc/one/kernel": (1e-5, 5e-4),
        "head/bias": (1e-3, 0.0),
        "head/kernel": (1e-3, 5e-4),
    }


def test_a_row_may_have_a_rate_a_name_and_a_rule_of_its_own(named: Any, params: Any) -> None:
    rows = [{"match": "head", "learning_rate": 0.5, "name": "top", "rule": {"name": "sgd", "momentum": 0.5}}]
    e = named(optim=Optim("adam", b1=0.8, groups=rows))
    found = trained(e, params)
    labels = {"body": "adam", "head": "sgd"}
    chain = optax.partition({"adam": optax.adam(0.05, b1=0.8), "sgd": optax.sgd(0.5, momentum=0.5)}, labels)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(by_hand(chain, params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
    groups = {row.group: row.rule for row in made(e, params).hyper.groups}
    assert groups == {"default": "adam(b1=0.8)", "top": "sgd(momentum=0.5)"}


@pytest.mark.parametrize(
    ("pattern", "near"), [("haed/**", "head"), ("body/kernal", "body/kernel"), ("bias", "body/bias")]
)
def test_a_pattern_without_a_match_lists_near_paths(named: Any, params: Any, pattern: str, near: str) -> None:
    with pytest.raises(ConfigError, match="no parameter matches") as refused:
        made(named(optim=Optim("adam", groups=[{"match": pattern, "scale": 2.0}])), params)
    assert near in refused.value.nearest
    assert refused.value.where == "optim.groups[0].match"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"groups": [{"match": "a", "scale": 1.0, "learning_rate": 1.0}]}, "give one"),
        ({"groups": [{"match": "a"}, {"match": "a"}]}, "two rows of groups are called a"),
        ({"groups": [{"match": "a", "name": "frozen"}]}, "none of default, frozen"),
        ({"groups": [{"mach": "a"}]}, "match"),
        ({"learning_rate": 0.1}, "learning_rate is a field of the experiment"),
        ({"decay": "none"}, "decay"),
        ({"l2": -1.0}, "l2"),
    ],
)
def test_what_a_declaration_cannot_mean_is_refused_where_it_is_written(values: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Optim("adam", **values)


def test_an_unknown_optimizer_or_option_is_refused_with_the_nearest(named: Any, params: Any) -> None:
    with pytest.raises(ConfigError) as unknown:
        made(named(optim=Optim("adamm")), params)
    assert "adam" in unknown.value.nearest
    with pytest.raises(ConfigError, match="adam takes no momentun") as option:
        made(named(optim=Optim("adam", momentun=0.9)), params)
    assert option.value.where == "optimizer of the group 'default': adam"
    with pytest.raises(ConfigError, match="dpsgd needs l2_norm_clip, noise_multiplier, seed"):
        made(named(optim=Optim("dpsgd")), params)
    with pytest.raises(OptimizerError, match="other weights than they train"):
        made(named(optim=Optim("schedule_free_sgd")), params)


def test_a_decay_of_the_options_and_one_of_the_experiment_are_refused(named: Any, params: Any) -> None:
    with pytest.raises(ConfigError, match="two weight decays"):
        made(named(optim=Optim("adamw", weight_decay=0.1), weight_decay=0.2), params)
    with pytest.raises(ConfigError, match="adam takes no weight_decay"):
        made(named(optim=Optim("adam", weight_decay=0.1)), params)


def test_a_factory_that_decays_by_itself_keeps_its_default_and_spares_biases(named: Any, params: Any) -> None:
    chain = optax.adamw(0.05, mask=jax.tree.map(lambda p: p.ndim > 1, params))
    found = trained(named(optim=Optim("adamw")), params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(by_hand(chain, params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def test_a_group_of_nothing_but_biases_needs_no_decay_in_its_chain(named: Any, params: Any) -> None:
    rows = [{"match": "**/bias", "scale": 2.0}]
    optimizer = made(named(optim=Optim("sgd", groups=rows), weight_decay=0.1), params)
    assert [row.decay for row in optimizer.hyper.groups] == ["0.1", "0.1"]


def test_the_list_has_what_level_one_takes(recwarn: Any) -> None:
    listed = {entry.id for entry in OPTIMIZERS.entries() if entry.distribution == "optax"}
    taken = {name.rpartition(".")[2] for name, _ in FACTORIES if name not in REFUSED}
    # The loss, which the last two read, is there in a run.
    assert listed >= taken | {"nadam", "momo", "momo_adam"}
    assert not listed & {name.rpartition(".")[2] for name, why in REFUSED.items() if why != "reads the loss"}
    assert not recwarn.list


def test_a_number_that_the_factory_needs_is_baked_in_and_said(named: Any, params: Any) -> None:
    e = named(optim=Optim("adafactor", min_dim_size_to_factor=64, decay_rate=0.7, momentum=0.5))
    (row,) = made(e, params).hyper.groups
    assert row.rule == "adafactor(min_dim_size_to_factor=64 baked in, decay_rate=0.7, momentum=0.5)"
    with pytest.raises(ScheduleError, match="binds to nothing"):
        made(e, params, {"min_dim_size_to_factor": linear(64, 128)})


def test_a_schedule_reaches_options_given_or_not_and_l2(named: Any, params: Any) -> None:
    e = named(optim=Optim("adam", b1=0.8))
    plain = trained(named(optim=Optim("adam", b1=0.5, b2=0.9, l2=0.1)), params)
    scheduled = trained(e, params, {"b1": constant(0.5), "b2": constant(0.9), "l2": constant(0.1)})
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(scheduled), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def registered() -> Any:
    @register_optimizer("heavy_ball", version=2)
    def heavy_ball(hp: Any, *, momentum: float = 0.9, idle: float = 0.0, flip: bool = False) -> Any:
        chain = [optax.trace(momentum), optax.scale_by_learning_rate(hp.learning_rate, flip_sign=not flip)]
        return optax.chain(*chain, optim.decay(hp))

    yield heavy_ball
    OPTIMIZERS._held.pop(("heavy_ball", 2))


def test_a_registered_function_is_called_with_the_hyperparameters_and_its_options(
    named: Any, params: Any, registered: Any
) -> None:
    e = named(optim=Optim("heavy_ball", version=2, momentum=0.5, l2=0.1), weight_decay=0.2)
    same = named(optim=Optim("sgd", momentum=0.5, l2=0.1), weight_decay=0.2)
    for a, b in zip(*(jax.tree.leaves(trained(x, params)) for x in (e, same)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    with pytest.raises(OptimizerError, match="ignores the scheduled 'idle'"):
        made(e, params, {"idle": linear(0.0, 1.0)})
    with pytest.raises(ConfigError, match="heavy_ball") as unknown:
        made(named(optim=Optim("heavy_ball")), params)
    assert "version 2" in str(unknown.value)


def test_another_number_compiles_nothing_and_keeps_the_identity(tmp_path: Path) -> None:
    Nitro(Trained(optim=Optim("sgd", momentum=0.9, l2=0.1)), run_dir=tmp_path).train()
    before = cache_stats()
    e = Trained(optim=Optim("sgd", momentum=0.5, l2=0.2))
    Nitro(e, run_dir=tmp_path).train()
    after = cache_stats()
    assert (after.misses, after.disk_hits) == (before.misses, before.disk_hits)
    assert graphconst_fingerprint(e) == graphconst_fingerprint(Trained(optim=Optim("sgd", momentum=0.1)))


def test_a_resume_takes_other_numbers_and_refuses_another_name_version_option_or_row(tmp_path: Path) -> None:
    Nitro(Trained(), run_dir=tmp_path, max_epochs=1).train()
    others = [
        Optim("adam"),
        Optim("sgd", version=2, momentum=0.9),
        Optim("sgd", momentum=0.9, nesterov=True),
        Optim("sgd", momentum=0.9, decay="all"),
        Optim("sgd", momentum=0.9, groups=[{"match": "bias"}]),
    ]
    for other in others:
        with pytest.raises(IncompatibleError, match="GraphConst") as refused:
            Nitro(Trained(optim=other), run_dir=tmp_path, max_epochs=2, resume="auto")
        assert "optim: {'name'" in str(refused.value)
    resumed = Nitro(Trained(optim=Optim("sgd", momentum=0.4, l2=0.1)), run_dir=tmp_path, max_epochs=2, resume="auto")
    assert resumed.train().epoch == 2


def test_presets_and_set_reach_options_and_the_record_rebuilds_it(tmp_path: Path) -> None:
    sets = ("optim.nesterov=true", "optim.momentum=0.3", 'optim.groups=[{match="bias", scale=2.0}]')
    resolved = resolve(Trained, None, sets)
    assert resolved.experiment.optim == Optim(
        "sgd", momentum=0.3, nesterov=True, groups=[{"match": "bias", "scale": 2.0}]
    )
    nitro = Nitro(resolved, run_dir=tmp_path, max_epochs=1).train()
    assert nitro.run_path is not None
    assert read_config(nitro.run_path / "config.toml", cls=Trained).experiment.optim == resolved.experiment.optim
    hooks = {row["hook"]: row["of"] for row in nitro.report.as_json()["hooks"]}
    assert hooks["optimizer"] == hooks["param_group"] == "optim (sgd)"
    assert Trained().replace(**{"optim.momentum": 0.1}).optim.options == {"momentum": 0.1}


def test_a_class_that_writes_the_hook_wins_and_may_call_the_part(params: Any) -> None:
    class Own(Trained):
        def param_group(self, path: Any) -> str:
            return "own" if path[-1] == "bias" else self.optim.param_group(path)

    e = Own(optim=Optim("sgd", groups=[{"match": "kernel"}]))
    tree = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "rest": jnp.ones(2)}
    assert optim.build_layout(e, tree).groups == ("default", "own", "kernel")
    with pytest.raises(ConfigError, match="is not used"):
        resolve_unused()


def resolve_unused() -> Any:
    class Unused(Trained):
        def optimizer(self, group: str) -> Any:
            return optax.sgd

        def group_weight_decay(self, group: str) -> float:
            return 0.0

    return Nitro(Unused())


def test_traced_hooks_see_its_name_and_none_of_its_numbers() -> None:
    view = compile_view(Trained())
    assert view.optim.name == "sgd"
    with pytest.raises(Exception, match=r"optim\.options"):
        bool(view.optim.options)


def test_it_is_declared_without_jax() -> None:
    import subprocess

    code = "import sys; from nitro_cli.optim import Optim; Optim('adam', b1=0.5); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_installed_distribution_brings_one(
    named: Any, params: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nitro.optimizers]\nplain = plain_rules:plain\n")
    (tmp_path / "plain_rules.py").write_text(
        "import optax\nfrom nitro_cli.optim import decay, register_optimizer\n"
        "@register_optimizer('plain')\ndef plain(hp, *, factor=1.0):\n"
        "    return optax.chain(optax.scale(factor), optax.scale_by_learning_rate(hp.learning_rate), decay(hp))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NITRO_NO_PLUGINS", "0")
    importlib.invalidate_caches()
    try:
        (row,) = made(named(optim=Optim("plain", factor=2.0)), params).hyper.groups
        assert row.rule == "plain(factor=2.0)"
    finally:
        sys.modules.pop("plain_rules", None)
        OPTIMIZERS._held.pop(("plain", 1), None)
