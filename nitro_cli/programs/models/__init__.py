"""Adapters: a model of any JAX library in one form, `apply(params, state, inputs, train=, key=)`."""

from __future__ import annotations

from nitro_cli.programs.models.adapt import adapt_model, adapt_returned
from nitro_cli.programs.models.adapted import AdaptedModel, BoundModel

__all__ = ["AdaptedModel", "BoundModel", "adapt_model", "adapt_returned"]
