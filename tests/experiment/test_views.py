"""The views hooks receive."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli.errors import ConfigError, HostFieldError
from nitro_cli.experiment import Device, Experiment, GraphConst, StrippedHost, compile_view, host_view


class Viewed(Experiment):
    width: GraphConst[int] = 3
    scale: Device[float] = 2.0
    offset: Device[np.ndarray] = np.zeros(2, np.float32)
    dataset: np.ndarray | None = None
    max_epochs = 7

    def loss(self, outputs, *, label):
        return jnp.sum(outputs) * self.scale + self.width

    def reads_host(self, x):
        return x * self.max_epochs

    @functools.cached_property
    def cached(self):
        return self.max_epochs


def test_host_fields_are_stripped_and_the_others_kept():
    e = Viewed()
    view = compile_view(e)
    assert isinstance(view, Viewed)
    assert (view.width, view.scale) == (3, 2.0)
    assert isinstance(view.max_epochs, StrippedHost)
    assert isinstance(view.learning_rate, StrippedHost)
    assert isinstance(view.dataset, StrippedHost)
    assert e.max_epochs == 7


def test_hooks_run_under_jit_with_device_values_traced():
    e = Viewed()
    traces = []

    @jax.jit
    def step(scale, x):
        traces.append(1)
        return compile_view(e, {"scale": scale}).loss(x, label=None)

    assert step(np.float32(2.0), jnp.ones(4)) == 4 * 2.0 + 3
    assert step(np.float32(5.0), jnp.ones(4)) == 4 * 5.0 + 3
    assert len(traces) == 1
    gradient = jax.grad(step)(2.0, jnp.ones(4))
    assert gradient == 4.0


def test_a_traced_hook_that_reads_a_host_field_raises_naming_class_and_field():
    view = compile_view(Viewed())
    with pytest.raises(HostFieldError) as caught:
        jax.jit(view.reads_host)(1.0)
    assert "Viewed.max_epochs" in caught.value.where


def test_a_cached_property_of_the_experiment_does_not_leak_host_values_into_the_view():
    e = Viewed()
    assert e.cached == 7
    assert isinstance(compile_view(e).cached, StrippedHost)


def test_a_view_holds_the_very_arrays_and_never_copies_them():
    e = Viewed(offset=np.ones(5, np.float32), dataset=np.ones(5))
    assert compile_view(e).offset is e.offset
    assert host_view(e, {}).dataset is e.dataset


def test_a_host_view_keeps_host_fields_and_replaces_device_values():
    view = host_view(Viewed(), {"scale": jnp.float32(9.0)})
    assert view.max_epochs == 7
    assert float(view.scale) == 9.0
    assert Viewed().scale == 2.0


@pytest.mark.parametrize(("name", "says"), [("width", "graphconst"), ("max_epochs", "host"), ("scal", "no such field")])
def test_only_device_fields_can_be_replaced(name, says):
    with pytest.raises(ConfigError, match=says):
        compile_view(Viewed(), {name: 1})


def test_replace_on_a_view_is_refused_with_the_reason():
    with pytest.raises(HostFieldError, match="view"):
        compile_view(Viewed()).replace(width=3)


def test_a_view_can_be_shown_compared_and_hashed():
    view = compile_view(Viewed())
    assert "StrippedHost('dataset')" in repr(view)
    assert view == compile_view(Viewed())
    assert isinstance(hash(view), int)


def test_a_view_of_a_subclass_strips_the_subclass_fields():
    class Wider(Viewed):
        extra: int = 1

    assert isinstance(compile_view(Wider()).extra, StrippedHost)
    assert isinstance(compile_view(Viewed()).max_epochs, StrippedHost)
