"""Adapters: one net in four libraries behaves the same behind one call."""

import subprocess
import sys
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nitro_cli.errors import HookError
from nitro_cli.programs import BoundModel, adapt_model, adapt_returned

HIDDEN = 8
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
KEY = jax.random.key(7)


@pytest.fixture(scope="module", params=["equinox", "function", "linen", "nnx"])
def adapted(request, builds):
    return adapt_returned(builds[request.param](None, jax.random.key(0)))


@pytest.fixture(scope="module")
def train_step(adapted):
    @jax.jit
    def step(params, state, x, key):
        def loss(params):
            outputs, new_state = BoundModel(adapted, train=True, key=key)(params, state, x)
            return jnp.mean(outputs**2), (outputs, new_state)

        (value, (outputs, new_state)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), new_state, value, outputs

    return step


@pytest.fixture(scope="module")
def evaluate(adapted):
    return jax.jit(lambda params, state, x: BoundModel(adapted, train=False)(params, state, x))


def plain(tree):
    """A tree of dicts with text keys, whose leaves are arrays."""
    if isinstance(tree, dict):
        return all(isinstance(name, str) and plain(node) for name, node in tree.items())
    return isinstance(tree, (jax.Array, np.ndarray))


def test_params_and_state_are_plain_dicts_of_arrays(adapted):
    assert plain(adapted.params)
    assert plain(adapted.state)
    assert sum(leaf.size for leaf in jax.tree.leaves(adapted.params)) >= (4 + 2) * HIDDEN


def test_training_under_jit_and_grad_lowers_the_loss_and_updates_the_state(adapted, train_step):
    params, state = adapted.params, adapted.state
    losses = []
    for index in range(8):
        params, state, value, _ = train_step(params, state, X, jax.random.fold_in(KEY, index % 2))
        losses.append(float(value))
    assert losses[-2] < losses[0]
    assert losses[-1] < losses[1]
    assert jax.tree.structure(state) == jax.tree.structure(adapted.state)
    assert jax.tree.structure(params) == jax.tree.structure(adapted.params)


def test_the_running_mean_of_batch_normalisation_is_the_formulas(adapted, train_step):
    _, state, _, _ = train_step(adapted.params, adapted.state, X, KEY)
    first = adapted.params["first"] if "first" in adapted.params else adapted.params["Dense_0"]
    weight = first if not isinstance(first, dict) else first.get("kernel", first.get("weight"))
    hidden = X @ np.asarray(weight if weight.shape == (4, HIDDEN) else weight.T)
    if isinstance(first, dict):
        hidden = hidden + np.asarray(first["bias"])
    # Equinox takes the first batch's statistics whole, the others move 0.1 of the way from zero.
    wanted = hidden.mean(0) if adapted.library == "equinox" else 0.1 * hidden.mean(0)
    means = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (HIDDEN,)]
    assert any(np.allclose(leaf, wanted, atol=1e-5) for leaf in means)


def test_one_key_gives_one_dropout_mask_and_another_key_another(adapted, train_step):
    first, again, other = (
        train_step(adapted.params, adapted.state, X, key)[3] for key in (KEY, KEY, jax.random.key(8))
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_samples_of_a_batch_have_masks_of_their_own(adapted, train_step):
    outputs = train_step(adapted.params, adapted.state, np.stack([X[0], X[1]] * 3), KEY)[3]
    assert not np.allclose(outputs[0], outputs[2])


def test_evaluation_is_deterministic_per_sample_and_leaves_the_state(adapted, train_step, evaluate):
    params, state, *_ = train_step(adapted.params, adapted.state, X, KEY)
    outputs, same = evaluate(params, state, X)
    again, _ = evaluate(params, state, X)
    np.testing.assert_array_equal(outputs, again)
    jax.tree.map(np.testing.assert_array_equal, same, state)
    # With running statistics no sample sees the others.
    np.testing.assert_allclose(evaluate(params, state, np.concatenate([X[:3]] * 2))[0][:3], outputs[:3], rtol=1e-5)


def test_a_second_call_within_one_forward_draws_with_another_key():
    model = BoundModel(adapt_model(lambda params, state, key: jax.random.key_data(key), {}, {}), train=True, key=KEY)
    first, second = model({}, {})[0], model({}, {})[0]
    np.testing.assert_array_equal(first, jax.random.key_data(KEY))
    assert not np.array_equal(first, second)


def test_without_arrays_holds_none(adapted):
    bare = adapted.without_arrays()
    assert (bare.params, bare.state) == (None, None)
    outputs, _ = bare.apply(adapted.params, adapted.state, (X,), train=False, key=None)
    assert outputs.shape == (6, 2)


# linen


def test_linen_variables_may_come_whole_or_as_params_and_state(builds):
    model, variables, _ = builds["linen"](None, KEY)
    whole = adapt_model(model, variables, None)
    split = adapt_model(model, variables["params"], {"batch_stats": variables["batch_stats"]})
    pair = adapt_returned((model, variables))
    for other in (split, pair):
        assert jax.tree.structure((other.params, other.state)) == jax.tree.structure((whole.params, whole.state))
    assert sorted(whole.state) == ["batch_stats"]


@pytest.mark.parametrize(
    ("argument", "training"),
    [("train", True), ("training", True), ("deterministic", False), ("use_running_average", False)],
)
def test_linen_mode_arguments_are_filled_by_name(argument, training):
    namespace = {}
    exec(f"def __call__(self, x, {argument}): return x if {argument} else -x", namespace)
    model = type("Net", (nn.Module,), {"__call__": namespace["__call__"], "__annotations__": {}})()
    one = adapt_model(model, {}, None)
    for train in (True, False):
        outputs, _ = one.apply({}, {}, (X,), train=train, key=None)
        np.testing.assert_array_equal(outputs, X if training is train else -X)


def test_linen_mode_argument_given_by_the_user_stands(builds):
    model, variables, _ = builds["linen"](None, KEY)
    one = adapt_model(model, variables, None)
    bound = BoundModel(one, train=True, key=KEY)
    by_keyword, _ = bound(one.params, one.state, X, train=False)
    by_position, _ = bound(one.params, one.state, X, False)
    evaluated, _ = BoundModel(one, train=False)(one.params, one.state, X)
    np.testing.assert_array_equal(by_keyword, evaluated)
    np.testing.assert_array_equal(by_position, evaluated)


def test_linen_serves_every_random_stream_a_module_asks_for():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jax.random.normal(self.make_rng("noise"), x.shape), nn.Dropout(0.5, deterministic=False)(x)

    one = adapt_model(Net(), {}, None)
    noise, _ = one.apply({}, {}, (X,), train=True, key=KEY)[0]
    again, _ = one.apply({}, {}, (X,), train=True, key=KEY)[0]
    other, _ = one.apply({}, {}, (X,), train=True, key=jax.random.key(8))[0]
    np.testing.assert_array_equal(noise, again)
    assert not np.allclose(noise, other)


def test_linen_method_can_be_chosen():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(3)

        def __call__(self, x):
            return self.dense(x)

        def encode(self, x, train):
            return self.dense(x) if train else x

    model = Net()
    one = adapt_model(model, model.init(KEY, X), None)
    for method in ("encode", Net.encode):
        outputs, _ = BoundModel(one, train=False)(one.params, one.state, X, method=method)
        np.testing.assert_array_equal(outputs, X)


def test_linen_partitioned_parameters_are_unboxed():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, kernel_init=nn.with_partitioning(nn.initializers.ones, (None, "model")))(x)

    model = Net()
    one = adapt_model(model, model.init(KEY, X), None)
    assert plain(one.params)
    outputs, _ = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    np.testing.assert_allclose(outputs, np.repeat(X.sum(1, keepdims=True), 3, 1), rtol=1e-5)


def test_linen_without_variables_is_refused():
    with pytest.raises(HookError, match="Dense with params of type NoneType"):
        adapt_returned(nn.Dense(2))


# nnx


def test_nnx_may_come_alone_with_empty_trees_or_split(builds):
    model = builds["nnx"](None, KEY)
    alone = adapt_returned(model)
    with_none = adapt_returned((model, None, {}))
    split = adapt_returned(nnx.split(model, nnx.Param, ...))
    state = adapt_returned((model, nnx.state(model, nnx.Param), None))
    for other in (with_none, split, state):
        jax.tree.map(np.testing.assert_array_equal, (other.params, other.state), (alone.params, alone.state))


def test_nnx_given_params_replace_the_models_own(builds):
    model = builds["nnx"](None, KEY)
    zeros = jax.tree.map(jnp.zeros_like, adapt_returned(model).params)
    one = adapt_model(model, zeros, None)
    assert all(not leaf.any() for leaf in jax.tree.leaves(one.params))
    with pytest.raises(HookError, match="do not fit it"):
        adapt_model(model, {"other": X}, None)


def test_nnx_random_streams_are_no_part_of_the_state_and_sown_values_neither():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.rngs = rngs
            self.scale = nnx.Param(jnp.ones(4))

        def __call__(self, x):
            self.seen = nnx.Intermediate(x)
            return x * self.scale + jax.random.normal(self.rngs.noise(), x.shape)

    one = adapt_returned(Net(nnx.Rngs(0, noise=1)))
    assert one.state == {}
    outputs, state = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    again, _ = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    assert state == {}
    np.testing.assert_array_equal(outputs, again)


def test_nnx_streams_split_over_layers_are_reseeded_each_with_its_own_key():
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def make(rngs):
        return nnx.Dropout(0.5, rngs=rngs)

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = make(rngs)

        def __call__(self, x):
            return nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(self.layers, x)

    one = adapt_returned(Net(nnx.Rngs(0)))
    outputs, _ = one.apply(one.params, one.state, (np.ones((4, 8), np.float32),), train=True, key=KEY)
    assert outputs.shape == (3, 4, 8)
    assert not np.allclose(outputs[0], outputs[1])


def test_nnx_variables_made_in_a_call_are_refused_by_name():
    class Net(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.ones(4))

        def __call__(self, x):
            self.cache = nnx.Cache(x)
            return x * self.scale

    one = adapt_returned(Net())
    with pytest.raises(HookError, match="changed its own structure") as caught:
        one.apply(one.params, one.state, (X,), train=True, key=KEY)
    assert "made cache" in str(caught.value)


def test_nnx_shared_layers_stay_shared():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(4, 4, rngs=rngs)
            self.b = self.a

        def __call__(self, x):
            return self.b(self.a(x))

    one = adapt_returned(Net(nnx.Rngs(0)))
    assert len(jax.tree.leaves(one.params)) == 2
    kernel = np.asarray(one.params["a"]["kernel"])
    outputs, _ = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    np.testing.assert_allclose(outputs, X @ kernel @ kernel, rtol=1e-4, atol=1e-5)


# equinox


def test_equinox_state_is_named_by_the_layer_that_owns_it(builds):
    one = adapt_returned(builds["equinox"](None, KEY))
    assert sorted(one.state) == ["layers"]
    assert sorted(one.state["layers"]) == ["norm"]


def test_equinox_model_and_state_may_come_as_a_pair_and_params_as_the_array_half(builds):
    model, _, state = builds["equinox"](None, KEY)
    triple, pair = adapt_returned((model, None, state)), adapt_returned((model, state))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    halves = adapt_returned((static, arrays, state))
    for other in (pair, halves):
        jax.tree.map(np.testing.assert_array_equal, (other.params, other.state), (triple.params, triple.state))


def test_equinox_models_without_key_or_state_work_and_may_come_alone():
    one = adapt_returned(eqx.nn.MLP(4, 2, 8, 1, key=KEY))
    assert one.state == {}
    outputs, state = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    assert outputs.shape == (6, 2)
    assert state == {}

    class Bare(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return self.weight * x

    bare = adapt_returned(Bare(jnp.full(4, 2.0)))
    np.testing.assert_allclose(bare.apply(bare.params, {}, (X,), train=True, key=KEY)[0], 2 * X)


def test_equinox_sequential_passes_state_and_key():
    model, state = eqx.nn.make_with_state(eqx.nn.Sequential)(
        [eqx.nn.Linear(4, 8, key=KEY), eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.Dropout(0.5)]
    )
    one = adapt_returned((model, state))
    outputs, new_state = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    assert outputs.shape == (6, 8)
    assert jax.tree.structure(new_state) == jax.tree.structure(one.state)
    zeros = np.asarray(outputs == 0)
    assert 0 < zeros.mean() < 1


def test_equinox_state_that_changes_in_every_call_changes_in_train_mode_only():
    class Counter(eqx.Module):
        calls: eqx.nn.StateIndex

        def __init__(self):
            self.calls = eqx.nn.StateIndex(jnp.zeros((), jnp.int32))

        def __call__(self, x, state):
            return x, state.set(self.calls, state.get(self.calls) + 1)

    one = adapt_returned(eqx.nn.make_with_state(Counter)())
    assert one.params == {}
    _, trained = one.apply({}, one.state, (X,), train=True, key=KEY)
    _, evaluated = one.apply({}, trained, (X,), train=False, key=None)
    assert (int(one.state["layers"]["calls"]), int(trained["layers"]["calls"])) == (0, 1)
    assert int(evaluated["layers"]["calls"]) == 1


def test_equinox_arrays_that_are_not_inexact_are_buffers_and_not_trained():
    class Net(eqx.Module):
        weight: jax.Array
        order: jax.Array

        def __call__(self, x):
            return x[self.order] * self.weight

    one = adapt_returned(Net(jnp.ones(4), jnp.asarray([3, 2, 1, 0])))
    assert sorted(one.params) == ["weight"]
    outputs, state = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    np.testing.assert_array_equal(outputs, X[:, ::-1])
    np.testing.assert_array_equal(state["buffers"]["order"], [3, 2, 1, 0])


def test_equinox_params_that_are_no_half_of_the_model_are_refused():
    with pytest.raises(HookError, match="carries its own parameters"):
        adapt_model(eqx.nn.Linear(4, 2, key=KEY), {"weight": X}, None)


# functions


def test_a_function_gets_train_and_key_only_if_it_takes_them():
    outputs, state = adapt_model(lambda params, state, x: (params["w"] * x, state), {"w": 2.0}, {}).apply(
        {"w": 2.0}, {}, (X,), train=True, key=KEY
    )
    np.testing.assert_allclose(outputs, 2 * X)
    assert state == {}
    seen = adapt_model(lambda params, state, x, **rest: (sorted(rest), state), {}, {})
    assert seen.apply({}, {}, (X,), train=True, key=KEY)[0] == ["key", "train"]


def test_a_function_with_no_state_may_return_its_outputs_alone():
    one = adapt_model(lambda params, state, x: x + 1, {}, None)
    outputs, state = one.apply(one.params, one.state, (X,), train=True, key=KEY)
    np.testing.assert_allclose(outputs, X + 1)
    assert state == {}


@pytest.mark.parametrize("returned", [X, (X, X), (X, {}, {})], ids=["outputs", "two outputs", "three"])
def test_a_function_that_loses_its_state_is_refused(returned):
    one = adapt_model(lambda params, state, x: returned, {}, {"mean": X})
    with pytest.raises(HookError, match="not \\(outputs, new_state\\)"):
        one.apply({}, {"mean": X}, (X,), train=True, key=KEY)


# what is no model


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (("model", {}, {}), "a model of type builtins.str"),
        ((nn.Dense, None, None), "the class Dense, not a model"),
        ((1, 2, 3, 4), "a tuple of 4"),
        ((lambda p, s, x: x, {"w": "text"}, {}), "leaf of the model's params is no array"),
        ((lambda p, s, x: x, {}, {"words": np.array(["a"])}), "leaf of the model's state is no array"),
    ],
    ids=["text", "class", "four", "text leaf", "array of text"],
)
def test_what_is_no_model_is_refused_saying_what_is_accepted(returned, said):
    with pytest.raises(HookError, match=said):
        adapt_returned(returned)


def test_the_error_for_an_unknown_model_names_the_accepted_kinds():
    with pytest.raises(HookError) as caught:
        adapt_model(object(), {}, {})
    for kind in ("linen", "nnx", "equinox", "function"):
        assert kind in str(caught.value)


def test_no_model_library_is_imported_for_a_plain_function():
    code = (
        "import sys, numpy as np\n"
        "from nitro_cli.programs import BoundModel, adapt_model\n"
        "model = adapt_model(lambda params, state, x: (x + 1, state), {}, {})\n"
        "BoundModel(model, train=True)({}, {}, np.ones(3))\n"
        "print([name for name in ('flax', 'equinox') if name in sys.modules])\n"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert run.stdout.strip() == "[]"
