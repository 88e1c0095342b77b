"""What traced code may and may not do with a Host field."""

from __future__ import annotations

import copy
import math
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli.errors import HostFieldError
from nitro_cli.experiment import StrippedHost

USES = {
    "attribute": lambda s: s.shape,
    "hasattr": lambda s: hasattr(s, "dtype"),
    "method": lambda s: s.items(),
    "assignment": lambda s: setattr(s, "x", 1),
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "index": operator.index,
    "round": round,
    "floor": math.floor,
    "str": str,
    "format": lambda s: f"{s}",
    "bytes": bytes,
    "numpy": np.asarray,
    "numpy array": np.array,
    "numpy ufunc": lambda s: np.add(np.ones(2), s),
    "numpy function": np.sum,
    "numpy operator": lambda s: np.ones(2) * s,
    "jax": jnp.asarray,
    "jax function": jnp.sin,
    "jax operator": lambda s: jnp.ones(2) * s,
    "jax operator reflected": lambda s: s * jnp.ones(2),
    "jax compare": lambda s: jnp.ones(2) < s,
    "getitem": lambda s: s[0],
    "setitem": lambda s: operator.setitem(s, 0, 1),
    "as an index": lambda s: [1, 2][s],
    "iter": iter,
    "unpack": lambda s: [*s],
    "next": next,
    "contains": lambda s: 1 in s,
    "len": len,
    "add": lambda s: s + 1,
    "radd": lambda s: 1 + s,
    "rsub": lambda s: 1.0 - s,
    "mul": lambda s: s * 2,
    "pow": lambda s: 2**s,
    "matmul": lambda s: s @ s,
    "neg": operator.neg,
    "abs": abs,
    "and": lambda s: s & 1,
    "shift": lambda s: 1 << s,
    "eq": lambda s: s == 1,
    "ne": lambda s: s != 1,
    "reflected eq": lambda s: s == 1,
    "lt": lambda s: s < 1,
    "reflected lt": lambda s: s > 1,
    "range": range,
    "call": lambda s: s(),
    "branch": lambda s: 1 if s else 2,
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_the_value_raises_and_names_the_field(use):
    with pytest.raises(HostFieldError) as caught:
        USES[use](StrippedHost("rates", "MyExp"))
    error = caught.value
    assert "'rates'" in error.what
    assert error.where.startswith("MyExp.rates")


@pytest.mark.parametrize("use", ["float", "jax function", "add", "branch"])
def test_a_use_inside_a_traced_function_raises_the_same_error(use):
    sentinel = StrippedHost("rates")

    @jax.jit
    def traced(x):
        USES[use](sentinel)
        return x

    with pytest.raises(HostFieldError, match="rates"):
        traced(1.0)


def test_the_error_offers_the_three_fixes():
    with pytest.raises(HostFieldError) as caught:
        StrippedHost("rates", "MyExp") + 1
    assert "rates: GraphConst[...]" in caught.value.fix
    assert "rates: Device[...]" in caught.value.fix
    assert "on the host" in caught.value.fix


def test_for_a_run_knob_the_fixes_are_for_a_field_of_another_name():
    with pytest.raises(HostFieldError) as caught:
        StrippedHost("max_epochs", "MyExp", knob=True) + 1
    assert "my_max_epochs: GraphConst[...]" in caught.value.fix


def test_storing_passing_and_looking_are_silent():
    sentinel = StrippedHost("rates")
    assert repr(sentinel) == "StrippedHost('rates')"
    assert {sentinel: 1}[sentinel] == 1
    assert (lambda x: x)(sentinel) is sentinel
    assert copy.deepcopy([sentinel])[0] is sentinel
    assert not isinstance(sentinel, dict)
    assert sentinel is not None
    assert repr(pickle.loads(pickle.dumps(sentinel))) == repr(sentinel)


def test_in_a_pytree_it_is_one_leaf():
    sentinel = StrippedHost("rates")
    leaves, structure = jax.tree.flatten({"a": sentinel, "b": 1.0})
    assert leaves[0] is sentinel
    assert jax.tree.unflatten(structure, leaves)["a"] is sentinel
