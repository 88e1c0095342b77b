"""The hooks' defaults."""

from __future__ import annotations

import functools

import matplotlib
import numpy as np
import pytest

from nitro_cli.errors import ConfigError, HookError, RoutingError
from nitro_cli.experiment import (
    HOOKS,
    Experiment,
    HookTable,
    check_hooks,
    default_no_decay,
    sanitize_metric_name,
)


class Four(Experiment):
    def build_data(self, dist): ...
    def build_model(self, rng): ...
    def forward(self, model, params, state, *, image): ...
    def loss(self, outputs, *, label): ...


def test_four_hooks_are_enough_and_a_missing_one_is_named():
    check_hooks(HookTable(Four()), Four())

    class Three(Experiment):
        def build_data(self, dist): ...
        def build_model(self, rng): ...
        def forwrd(self, model, params, state): ...
        def loss(self, outputs): ...

    with pytest.raises(ConfigError, match="forward") as caught:
        check_hooks(HookTable(Three()), Three())
    assert caught.value.nearest == ("forwrd",)


def test_a_hook_counts_only_when_a_subclass_writes_it():
    written = [name for name in HOOKS if HookTable(Four()).has(name)]
    assert written == ["build_data", "build_model", "forward", "loss"]

    class More(Four):
        optimizer = functools.partial(min)

        def no_decay(self, path, leaf):
            return True

        def train_step(self, model, params, opt_state, state, *, image): ...

    class Again(More):
        pass

    table = HookTable(Again())
    assert {name: table.owner(name) for name in ("optimizer", "no_decay", "train_step", "loss", "metrics")} == {
        "optimizer": "More",
        "no_decay": "More",
        "train_step": "More",
        "loss": "Four",
        "metrics": "default",
    }
    assert table.manual(Again())
    assert not HookTable(Four()).manual(Four())
    with pytest.raises(ConfigError) as refused:
        table.has("forwrd")
    assert refused.value.nearest == ("forward",)


def test_a_table_calls_the_hook_of_the_view_it_is_given_with_the_fields_it_declares():
    class Adds(Four):
        offset: float = 1.0

        def metrics(self, outputs, *, label, weight=10):
            return outputs + label + weight + self.offset

    table = HookTable(Adds())
    assert table.call(Adds(offset=0.5), "metrics", 100, batch={"label": 1000, "unused": 0}) == 1110.5
    assert table.call(Adds(), "finalize_metrics", {"a": 1}, "val") == {"a": 1}
    with pytest.raises(RoutingError, match="declares 'label'"):
        table.call(Adds(), "metrics", 100, batch={"weight": 1})
    with pytest.raises(HookError, match="Adds has no hook visualize"):
        table.call(Adds(), "visualize", None)


def test_defaults():
    e = Four(learning_rate=0.5, weight_decay=0.1)
    matrix, vector, scalar = np.zeros((2, 2)), np.zeros(2), np.zeros(())
    assert e.derive({}) == {}
    assert e.schedules() == {}
    assert e.grad_rule() is None
    assert e.optimizer is None
    assert e.param_group(("dense", "kernel")) == "default"
    assert (e.group_learning_rate("g"), e.group_weight_decay("g"), e.decay_anchor("g")) == (0.5, 0.1, "zero")
    assert [e.no_decay((), x) for x in (matrix, vector, scalar)] == [False, True, True]
    assert [default_no_decay((), x) for x in (matrix, vector)] == [False, True]
    assert [e.adaptive_perturb((), x) for x in (matrix, vector)] == [True, False]
    assert [e.adaptive_perturb(("query", name), matrix) for name in ("kernel", "bias")] == [True, False]
    assert e.no_perturb((), vector) is False
    assert (e.metrics_residency("train_metrics"), e.metrics_residency("metrics")) == ("device", "host")
    assert e.finalize_metrics({"a": 1}, "val") == {"a": 1}


@pytest.mark.parametrize(
    ("metric", "score", "name"),
    [
        ("loss", 0.0416831, "epoch-0006-step-4500-loss=0.0416831"),
        ("loss", 0.04168312345, "epoch-0006-step-4500-loss=0.0416831"),
        ("val/acc @1", 1234567.0, "epoch-0006-step-4500-val_acc__1=1.23457e+06"),
        ("../../x", 1.0, "epoch-0006-step-4500-.._.._x=1"),
        (None, None, "epoch-0006-step-4500"),
        ("loss", None, "epoch-0006-step-4500"),
    ],
)
def test_the_name_of_a_checkpoint(metric, score, name):
    assert Four().checkpoint_filename(epoch=6, step=4500, metric=metric, score=score) == name
    assert "/" not in sanitize_metric_name(metric or "")


def test_save_figure_writes_a_matplotlib_figure_as_png(tmp_path):
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    path = Four().save_figure(Figure(), str(tmp_path / "a"))
    assert path.endswith("a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(HookError, match="no savefig"):
        Four().save_figure("text", str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("path", "spared"),
    [
        (("attention", "query", "bias"), True),
        (("attention", "query", "kernel"), False),
        (("LayerNorm_0", "scale"), True),
        (("ln_1", "weight"), True),
        (("norms", 0, "weight"), True),
        (("norms", "0", "weight"), True),
        (("weight_norm", "kernel"), False),
        (("lnet", "weight"), False),
        (("encoder", "weight"), False),
        (("head", "b"), True),
        (("lora", "lora_b"), False),
        (("embedding",), False),
        ((3,), False),
        ((), False),
    ],
)
def test_biases_and_scales_of_any_rank_are_known_by_their_names(path, spared):
    assert default_no_decay(path, np.zeros((2, 2))) is spared
    assert default_no_decay(path, np.zeros(2))
