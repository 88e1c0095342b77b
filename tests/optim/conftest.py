"""A base class for the small experiments of these tests, and their parameters."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from nitro_cli.experiment import Experiment


class Small(Experiment):
    def build_data(self, dist: Any) -> Any: ...

    def build_model(self, rng: Any) -> Any: ...

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any: ...

    def loss(self, outputs: Any, *, y: Any) -> Any: ...


@pytest.fixture
def base() -> type[Small]:
    """A class with the four required hooks, to be subclassed."""
    return Small


@pytest.fixture
def params() -> Any:
    """Two modules of a matrix and a vector each."""
    return {
        "body": {"kernel": jnp.asarray([[0.5, -1.0], [2.0, 0.25]]), "bias": jnp.asarray([0.1, -0.2])},
        "head": {"kernel": jnp.asarray([[1.5], [-0.75]]), "bias": jnp.asarray([0.3])},
    }


@pytest.fixture
def grads() -> Any:
    """A gradient for `params`."""
    return {
        "body": {"kernel": jnp.asarray([[0.2, -0.4], [1.0, 0.0]]), "bias": jnp.asarray([-0.5, 0.3])},
        "head": {"kernel": jnp.asarray([[-0.6], [0.8]]), "bias": jnp.asarray([2.0])},
    }
