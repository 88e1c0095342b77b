"""The in-memory program cache: what is a hit, what is not, and that nothing stale runs."""

import gc

import jax
import jax.experimental
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli.programs import cache_reset, cache_stats, compile_program

SCALE = 2.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@jax.jit
def jitted_helper(x):
    return x * SCALE


@pytest.fixture(autouse=True)
def _empty_cache():
    cache_reset()
    yield
    cache_reset()


def compile_(fn, *args, name="train", **keywords):
    return compile_program(name, fn, args, **keywords)


def test_another_function_with_the_same_program_is_a_hit_and_compiles_nothing():
    def make():
        return lambda x: jnp.tanh(x) + 1

    first, second = compile_(make(), X), compile_(make(), X)
    assert (first.source, second.source) == ("compiled", "memory")
    assert first.key == second.key
    assert second.seconds == 0.0
    np.testing.assert_allclose(second(X), np.tanh(X) + 1, rtol=1e-6)
    stats = cache_stats()
    assert (stats.hits, stats.misses, stats.entries) == (1, 1, 1)


def test_values_that_are_arguments_do_not_make_another_program():
    def step(x, rate):
        return x * rate

    compile_(step, X, np.float32(0.1))
    again = compile_(step, X + 1, np.float32(0.7))
    assert again.source == "memory"
    np.testing.assert_allclose(again(X, np.float32(0.5)), X * 0.5)


def test_a_changed_constant_of_a_module_is_another_program(monkeypatch):
    def step(x):
        return x * SCALE

    compile_(step, X)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    changed = compile_(step, X)
    assert changed.source == "compiled"
    np.testing.assert_allclose(changed(X), X * 5)


def test_a_changed_constant_behind_a_jitted_helper_is_another_program(monkeypatch):
    def step(x):
        return jitted_helper(x) + 1

    compile_(step, X)
    monkeypatch.setitem(globals(), "SCALE", 7.0)
    np.testing.assert_allclose(compile_(step, X)(X), X * 7 + 1)


def test_functions_that_differ_only_in_which_argument_they_use_stay_apart():
    first, second = compile_(lambda a, b: a + 1, X, X), compile_(lambda a, b: b + 1, X, X)
    np.testing.assert_allclose(first(X, 10 * X), X + 1)
    np.testing.assert_allclose(second(X, 10 * X), 10 * X + 1)


def test_equal_texts_with_other_result_structures_keep_their_own_structure():
    as_tuple = compile_(lambda x: (x + 1, x), X)
    as_list = compile_(lambda x: [x + 1, x], X)
    assert type(as_tuple(X)) is tuple
    assert type(as_list(X)) is list


def test_result_classes_that_print_alike_are_told_apart():
    def make_class():
        @jax.tree_util.register_pytree_node_class
        class Pair:
            def __init__(self, value):
                self.value = value

            def tree_flatten(self):
                return (self.value,), None

            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(*children)

        return Pair

    one, other = make_class(), make_class()
    compile_(lambda x: one(x + 1), X)
    assert type(compile_(lambda x: other(x + 1), X)(X)) is other


def test_weak_types_of_arguments_and_results_are_part_of_the_identity():
    weak = compile_(lambda x: x, 1.0)
    strong = compile_(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32))
    assert weak.key != strong.key
    assert (weak(1.0).weak_type, strong(np.float32(1)).weak_type) == (True, False)


def test_arrays_on_the_host_and_uncommitted_ones_are_one_program_and_a_committed_one_is_another():
    first, second = compile_(lambda x: x - 1, X), compile_(lambda x: x - 1, jnp.asarray(X))
    assert second.source == "memory"
    bound = compile_(lambda x: x - 1, jax.device_put(X, jax.devices()[0]))
    assert bound.key != first.key


def test_compile_options_and_static_text_are_part_of_the_identity():
    def double(x):
        return x * 2

    keys = {
        compile_(double, X).key,
        compile_(double, X, options={"xla_cpu_enable_fast_math": True}).key,
        compile_(double, X, static="mesh of 2").key,
    }
    assert len(keys) == 3


def test_donated_arguments_are_taken():
    program = compile_(lambda tree: {"w": tree["w"] + 1}, {"w": jnp.asarray(X)}, donate_argnums=(0,))
    given = {"w": jnp.asarray(X) + 0}
    np.testing.assert_allclose(program(given)["w"], X + 1)
    assert given["w"].is_deleted()


def test_donation_is_part_of_the_identity():
    plain = compile_(lambda x: x + 1, X)
    donating = compile_(lambda x: x + 1, X, donate_argnums=(0,))
    assert plain.key != donating.key


@pytest.mark.parametrize("kind", ["pure_callback", "io_callback", "debug.callback"])
def test_a_program_with_a_host_callback_is_compiled_for_each_handle_and_runs_its_own_callback(kind):
    def make(calls):
        def host(x):
            calls.append(1)
            return np.asarray(x)

        def step(x):
            if kind == "pure_callback":
                return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1
            if kind == "io_callback":
                return jax.experimental.io_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1
            jax.debug.callback(lambda x: calls.append(1), x)
            return x + 1

        return step

    first_calls, second_calls = [], []
    compile_(make(first_calls), X)
    second = compile_(make(second_calls), X)
    assert second.has_callback
    assert second.source == "compiled"
    np.testing.assert_allclose(second(X), X + 1)
    jax.effects_barrier()
    assert not first_calls
    assert len(second_calls) == 1
    stats = cache_stats()
    assert (stats.hits, stats.misses, stats.entries) == (0, 2, 0)


def test_on_compile_is_told_the_name_before_compiling_and_not_for_a_hit():
    told = []
    for _ in range(2):
        compile_(lambda x: x - 3, X, name="eval", on_compile=told.append)
    assert told == ["eval"]


def test_counts_are_kept_by_name():
    compile_(lambda x: x + 1, X, name="train")
    compile_(lambda x: x + 1, X, name="train")
    compile_(lambda x: x + 2, X, name="eval")
    by_name = cache_stats().by_name
    assert (by_name["train"].hits, by_name["train"].misses) == (1, 1)
    assert (by_name["eval"].hits, by_name["eval"].misses) == (0, 1)
    assert cache_stats().seconds > 0


def test_reset_forgets_programs_and_counts_but_programs_in_hand_still_run():
    program = compile_(lambda x: x + 1, X)
    cache_reset()
    stats = cache_stats()
    assert (stats.hits, stats.misses, stats.entries, stats.seconds) == (0, 0, 0, 0)
    np.testing.assert_allclose(program(X), X + 1)
    assert compile_(lambda x: x + 1, X).source == "compiled"


def test_other_shapes_than_compiled_for_are_refused():
    program = compile_(lambda x: x + 1, X)
    with pytest.raises(TypeError, match="compiled with"):
        program(np.zeros((5, 3), np.float32))


def test_an_exception_of_the_function_passes_unchanged():
    class Mine(Exception):
        pass

    def fails(x):
        raise Mine("here")

    with pytest.raises(Mine, match="here"):
        compile_(fails, X)


def test_cost_is_the_compilers_figures():
    a, b = np.zeros((8, 16), np.float32), np.zeros((16, 4), np.float32)
    cost = compile_(lambda a, b: a @ b, a, b).cost
    assert cost.flops == 2 * 8 * 16 * 4  # a multiplication and an addition per inner element
    assert cost.argument_bytes == a.nbytes + b.nbytes
    assert cost.output_bytes == 8 * 4 * 4
    assert cost.peak_bytes >= cost.argument_bytes + cost.output_bytes
    assert cost.as_dict()["flops"] == cost.flops


def live_traces():
    gc.collect()
    return sum(isinstance(held, jax.extend.core.Jaxpr) for held in gc.get_objects())


def test_what_was_traced_of_a_program_is_dropped_with_it():
    @jax.jit
    def inner(x):
        return jax.nn.log_softmax(jnp.where(x > 0, x, -x) @ jnp.ones((3, 3))).sum()

    def step(x):
        _, total = jax.lax.scan(lambda carry, row: (carry + inner(row[None]), carry), 0.0, x)
        return jnp.mean(total) + jax.random.normal(jax.random.key(0), ()) + jax.lax.reduce(x, 0.0, jax.lax.add, (0, 1))

    compile_(jax.grad(step), X)
    before = live_traces()
    for _ in range(3):
        compile_(jax.grad(step), X)
    assert live_traces() == before
