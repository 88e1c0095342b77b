"""Initial parameters as one program: hits, pretrained arrays, and the way op by op."""

import gc
import re
import weakref

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nitro_cli.errors import ConfigError, NitroWarning
from nitro_cli.programs import cache_reset, cache_stats, trace_model

X = np.ones((2, 4), np.float32)


def initialize(build, seed, values=None):
    return trace(build, seed, values).compute()


def trace(build, seed, values=None):
    return trace_model(build, seed, values, options={"xla_backend_optimization_level": 0})  # compiles sooner


def plain_function(params, state, x):
    return x, state


@pytest.fixture(autouse=True)
def _empty_cache():
    cache_reset()
    yield
    cache_reset()


@pytest.mark.parametrize("library", ["equinox", "function", "linen", "nnx"])
def test_a_model_is_built_in_one_program_and_the_second_time_nothing_compiles(library, builds):
    with jax.checking_leaks():
        first = initialize(builds[library], 3)
    second, other = initialize(builds[library], 3), initialize(builds[library], 4)
    assert (first.mode, first.reason) == ("program", None)
    stats = cache_stats()
    assert (stats.misses, stats.hits) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert any(
        not np.array_equal(*pair)
        for pair in zip(jax.tree.leaves(first.params), jax.tree.leaves(other.params), strict=True)
    )
    outputs, _ = second.adapted.apply(second.params, second.state, (X,), train=False, key=None)
    assert np.isfinite(outputs).all()
    assert second.adapted.params is None


def test_a_model_whose_arrays_come_from_elsewhere_computes_none_and_has_the_same_key(builds):
    traced = trace(builds["linen"], 3)
    assert cache_stats().misses == 0
    made = initialize(builds["linen"], 3)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (made.params, made.state))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (traced.params, traced.state)) == shapes
    assert (jax.random.key_data(traced.key()) == jax.random.key_data(made.key)).all()


def test_parameters_are_those_of_the_hook_with_the_seeds_own_key():
    def build(values, key):
        return plain_function, {"w": jax.random.uniform(key, (3,))}, {}

    np.testing.assert_allclose(initialize(build, 42).params["w"], jax.random.uniform(jax.random.key(42), (3,)))


def test_seeds_beyond_32_bits_are_seeds_of_their_own():
    def build(values, key):
        return plain_function, {"w": jax.random.normal(key, (3,))}, {}

    assert not np.array_equal(initialize(build, 5).params["w"], initialize(build, 2**40 + 5).params["w"])


def test_device_values_are_arguments_so_that_another_value_is_a_hit():
    def build(values, key):
        return plain_function, {"w": jnp.ones(3) * values["scale"]}, {}

    initialize(build, 0, {"scale": np.float32(2)})
    made = initialize(build, 0, {"scale": np.float32(5)})
    np.testing.assert_array_equal(made.params["w"], [5, 5, 5])
    assert cache_stats().hits == 1


def test_arrays_returned_as_they_are_do_not_pass_through_the_program():
    pretrained = np.arange(3000, dtype=np.float32)

    def build(values, key):
        return plain_function, {"old": pretrained, "new": jax.random.normal(key, (3,))}, {}

    made = initialize(build, 0)
    np.testing.assert_array_equal(made.params["old"], pretrained)
    assert isinstance(made.params["old"], jax.Array)
    assert [str(info.dtype) for info in jax.tree.leaves(made.program.compiled.out_info)] == ["float32", "key<fry>"]


def test_large_arrays_that_the_hook_computes_with_are_arguments_and_small_ones_constants():
    def build_with(weights):
        def build(values, key):
            return plain_function, {"w": jnp.asarray(weights) * 2, "b": jnp.asarray(np.arange(3.0)) + 1}, {}

        return build

    first = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    made = initialize(build_with(first), 0)
    np.testing.assert_array_equal(made.params["w"], first * 2)
    np.testing.assert_array_equal(made.params["b"], [1, 2, 3])
    assert (5000,) in [info.shape for info in jax.tree.leaves(made.program.compiled.args_info)]
    assert not re.search(r"f32\[5000\]\S* constant", made.program.compiled.as_text())
    other = initialize(build_with(first + 1), 0)
    np.testing.assert_array_equal(other.params["w"], (first + 1) * 2)
    assert other.program.source == "memory"


@pytest.mark.parametrize(
    "reads",
    [
        lambda w: float(w[0]),
        lambda w: np.asarray(w),
        lambda w: bool(w[0] > 0),
        lambda w: int(w[0]),
        lambda w: w[w > 0],
        lambda w: w.tolist(),
    ],
    ids=["float", "numpy", "bool", "int", "mask", "tolist"],
)
def test_a_hook_that_reads_values_runs_op_by_op_and_says_why(reads):
    def build(values, key):
        weights = jnp.full((3,), 2.0)
        reads(weights)
        return plain_function, {"w": weights}, {}

    with pytest.warns(NitroWarning, match="op by op"):
        made = initialize(build, 0)
    assert (made.mode, made.program) == ("op by op", None)
    assert "test_initialization.py" in made.reason
    np.testing.assert_array_equal(made.params["w"], [2, 2, 2])


def test_a_model_that_keeps_an_array_of_the_trace_runs_op_by_op_and_works():
    class Net(nn.Module):
        table: object

        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x + self.table)

    def build(values, key):
        model = Net(jnp.arange(4.0))
        return model, model.init(key, X), None

    with pytest.warns(NitroWarning, match="table"):
        made = initialize(build, 0)
    outputs, _ = made.adapted.apply(made.params, made.state, (X,), train=True, key=None)
    assert outputs.shape == (2, 2)

    def build_closure(values, key):
        table = jnp.arange(4.0)
        return (lambda params, state, x: (x + table, state)), {"w": jnp.ones(1)}, {}

    with pytest.warns(NitroWarning, match="table"):
        assert initialize(build_closure, 0).mode == "op by op"


def test_an_nnx_model_made_before_is_taken_with_its_values():
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    made = initialize(lambda values, key: model, 0)
    assert made.mode == "program"
    np.testing.assert_array_equal(made.params["kernel"], model.kernel[...])


def test_an_nnx_model_made_before_and_changed_in_the_hook_runs_op_by_op():
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    def build(values, key):
        model.kernel[...] = model.kernel[...] * 0 + 1
        return model

    with pytest.warns(NitroWarning, match="op by op"):
        made = initialize(build, 0)
    np.testing.assert_array_equal(made.params["kernel"], np.ones((4, 2)))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_donating_the_parameters_leaves_the_hooks_own_arrays_alone(kind):
    kept = kind(np.arange(16, dtype=np.float32))
    made = initialize(lambda values, key: (plain_function, {"w": kept}, {}), 0)
    taken = jax.jit(lambda params: {"w": params["w"] * 0 - 1}, donate_argnums=0)(made.params)
    taken["w"].block_until_ready()
    assert made.params["w"].is_deleted()
    np.testing.assert_array_equal(kept, np.arange(16))


def test_python_numbers_become_arrays_and_weak_types_strong():
    def build(values, key):
        return plain_function, {"scalar": 0.5, "weak": jnp.asarray(1.0) * 2, "count": 3, "flag": True}, {}

    made = initialize(build, 0)
    kinds = {name: (leaf.dtype.name, leaf.weak_type) for name, leaf in made.params.items()}
    assert kinds == {
        "scalar": ("float32", False),
        "weak": ("float32", False),
        "count": ("int32", False),
        "flag": ("bool", False),
    }


def test_arrays_that_become_narrower_are_said():
    with pytest.warns(NitroWarning, match="float64 to float32"):
        made = initialize(lambda values, key: (plain_function, {"w": np.ones(3)}, {}), 0)
    assert made.params["w"].dtype == np.float32


def test_any_other_exception_of_the_hook_passes_unchanged():
    error = ValueError("mine")

    def build(values, key):
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        initialize(build, 0)
    assert caught.value is error


def test_the_model_of_the_trace_is_not_kept_alive():
    made_modules = []

    def build(values, key):
        model = nnx.Linear(4, 2, rngs=nnx.Rngs(key))
        made_modules.append(weakref.ref(model))
        return model

    kept = initialize(build, 0)
    gc.collect()
    assert made_modules[0]() is None
    assert kept.mode == "program"


@pytest.mark.parametrize("shape", [(10**20,), (2**40, 2**40)])
def test_an_array_larger_than_any_memory_is_refused_by_name(shape):
    def build(values, key):
        return plain_function, {"body": {"w": jax.random.normal(key, shape)}}, {}

    with pytest.raises(ConfigError, match="more than any memory holds") as caught:
        initialize(build, 0)
    assert caught.value.where == "build_model: body/w"
