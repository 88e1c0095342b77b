"""Adapters: a model of any JAX library in one form, `apply(params, state, inputs, train=, key=)`."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.programs.models.adapt import adapt_model, adapt_returned
    from nitro_cli.programs.models.adapted import AdaptedModel, BoundModel
