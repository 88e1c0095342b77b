"""What an evaluation adds up, in one vector per dtype: combined as the values themselves would be."""

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.experiment import Term
from nitro_cli.metrics import Concat, Max, Mean, Min, Sum
from nitro_cli.programs import PackedSums


def batch(i):
    return {
        "metrics": {
            "acc": Mean(jnp.asarray(3 + i), jnp.asarray(4)),
            "seen": Sum({"table": jnp.full((2, 2), 2**31 - 1 - i, jnp.int32), "flag": jnp.asarray(i == 1)}),
            "high": Max(jnp.asarray([1.5, -float(i)], jnp.float32)),
            "low": Min(jnp.asarray(-i, jnp.bfloat16)),
        },
        "loss": {"loss/a": Term(jnp.asarray(0.1 * i, jnp.float32), jnp.asarray(2.0), jnp.asarray(0.5))},
    }


def test_sums_add_extremes_stay_a_weight_is_the_same_and_integers_are_exact():
    packed = PackedSums.of(jax.eval_shape(lambda: batch(0)))
    vectors = [jax.tree.map(np.asarray, packed.pack(batch(i))) for i in range(3)]
    assert set(vectors[0]) == {"float32", "int32"}
    found = packed.combined(vectors)
    metrics, term = found["metrics"], found["loss"]["loss/a"]
    assert (metrics["acc"].value, metrics["acc"].count) == (12, 12)
    assert metrics["seen"].value["table"].tolist() == [[3 * (2**31 - 1) - 3] * 2] * 2
    assert metrics["seen"].value["flag"] == 1
    assert metrics["high"].value.tolist() == [1.5, 0]
    assert metrics["low"].value == -2
    assert term.numerator == sum(np.float64(np.float32(0.1 * i)) for i in range(3))
    assert (term.denominator, term.weight) == (6, 0.5)


def test_what_is_kept_per_sample_is_not_packed():
    assert PackedSums.of({"metrics": {"x": Concat(jnp.zeros(3))}}) is None
