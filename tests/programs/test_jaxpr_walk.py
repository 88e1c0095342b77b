"""A walk over a jaxpr: calls are entered, short scans unrolled, the rest is an operation for the consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli.programs import JaxprWalk
from nitro_cli.programs.locate import first_nonfinite


class Counted(JaxprWalk[jax.Array]):
    """Computes with arrays and notes the operations."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def constant(self, array: Any) -> jax.Array:
        return array

    def operation(self, equation: Any, inputs: list[jax.Array]) -> list[jax.Array]:
        self.seen.append(equation.primitive.name)
        found = equation.primitive.bind(*inputs, **equation.params)
        return list(found) if equation.primitive.multiple_results else [found]

    def row(self, stacked: jax.Array, index: int) -> jax.Array:
        return stacked[index]

    def stack(self, rows: list[jax.Array]) -> jax.Array:
        return jnp.stack(rows)


@jax.custom_jvp
def by_jvp(x: jax.Array) -> jax.Array:
    return jnp.log(x)


by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), tangents[0] / primals[0]))


@jax.custom_vjp
def by_vjp(x: jax.Array) -> jax.Array:
    return jnp.log(x)


by_vjp.defvjp(lambda x: (by_vjp(x), x), lambda x, g: (g / x,))

CALLS = {"jit": jax.jit(jnp.log), "remat": jax.checkpoint(lambda x: jnp.log(x)), "jvp": by_jvp, "vjp": by_vjp}


def scanned(length: int, reverse: bool) -> Callable[..., Any]:
    def turn(carry: jax.Array, row: jax.Array) -> Any:
        return carry * 0.5 + jnp.log(row), carry

    return lambda x: jax.lax.scan(turn, jnp.zeros(2), jnp.tile(x, (length, 1)) + jnp.ones((length, 1)), reverse=reverse)


def walked(function: Any, x: jax.Array) -> tuple[list[Any], list[str]]:
    walk = Counted()
    return walk.walk(jax.make_jaxpr(function)(x), [x]), walk.seen


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_walked_through(call: str) -> None:
    x = jnp.array([1.0, 2.0])
    (found,), seen = walked(lambda x: CALLS[call](x) * 2, x)
    assert seen == ["log", "mul"]
    np.testing.assert_allclose(found, 2 * np.log([1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_short_scan_is_taken_turn_by_turn_and_a_long_one_is_an_operation(reverse: bool) -> None:
    x = jnp.array([1.0, 2.0])
    for length, inside in ((3, True), (600, False)):
        found, seen = walked(scanned(length, reverse), x)
        assert ("scan" not in seen, seen.count("log")) == ((True, length) if inside else (False, 0))
        for ours, theirs in zip(found, scanned(length, reverse)(x), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_no_output_needs_is_left_out() -> None:
    def function(x: jax.Array) -> jax.Array:
        jnp.exp(x)
        return jnp.sin(x)

    assert walked(function, jnp.ones(2))[1] == ["sin"]


def test_what_is_not_finite_is_found_inside_a_scan_and_a_remat() -> None:
    rows = jnp.array([[1.0, 1.0], [2.0, -3.0]])

    def turn(carry: jax.Array, row: jax.Array) -> Any:
        return carry + jnp.log(row), None

    for function in (lambda x: jax.lax.scan(turn, jnp.zeros(2), x)[0], jax.checkpoint(lambda x: turn(x, x)[0])):
        assert (first_nonfinite(function, rows) or "").startswith("the operation log")
