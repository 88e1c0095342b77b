"""The optimizer of a run: clipping, a rule per group, decoupled decay; all of it traceable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nitro_cli.errors import OptimizerError
from nitro_cli.optim.accumulators import accumulator_dtype, in_accumulators
from nitro_cli.optim.anchors import anchor_arrays, anchor_checksums, anchored_groups
from nitro_cli.optim.clipping import clip_factor
from nitro_cli.optim.gradient_rules import PerturbRule, rule_fields, with_fields
from nitro_cli.optim.group_rule import build_transformation
from nitro_cli.optim.hyper_table import Hyper
from nitro_cli.optim.hyperparameters import HyperParams, decayed
from nitro_cli.optim.layout import ParamLayout
from nitro_cli.optim.trial import try_rule

__all__ = ["Optimizer"]


class Optimizer:
    """The groups' rules with their hyperparameters as traced inputs.

    Args:
        e: the experiment; its `optimizer` and `decay_anchor` hooks are called.
        layout: of its parameters.
        hyper: of `bind`.
        supplies_loss: the caller gives `update` the loss as `value`; factories that need it are refused without.

    Raises:
        OptimizerError: a factory cannot take traced hyperparameters, needs what the framework does not supply, or
            ignores a scheduled one.
    """

    def __init__(self, e: Any, layout: ParamLayout, hyper: Hyper, *, supplies_loss: bool = False) -> None:
        self.layout = layout
        self.hyper = hyper
        self._e = e
        self._anchored = anchored_groups(e, layout)
        self._decay_mask = {g: {leaf.text: leaf.decays for leaf in layout.of_group(g)} for g in layout.groups}
        reads_loss = {group: self._try(group, supplies_loss) for group in layout.groups}
        self.wants_loss = any(reads_loss.values())

    def _try(self, group: str, supplies_loss: bool) -> bool:
        if self.hyper.rules[group].level == 0 and not self.hyper.scheduled_of_group(group):
            return False
        shapes = {
            leaf.text: jax.ShapeDtypeStruct(leaf.shape, accumulator_dtype(leaf.dtype))
            for leaf in self.layout.of_group(group)
        }
        anchor = None
        if group in self._anchored:
            anchor = {text: shape for text, shape in shapes.items() if self._decay_mask[group][text]}
        return try_rule(
            self._e, self.hyper, group, shapes, anchor, self._decay_mask[group], supplies_loss=supplies_loss
        )

    @property
    def rule(self) -> PerturbRule | None:
        """The perturbing gradient rule, or None for the plain gradient."""
        return self.hyper.rule

    def init(self, params: Any, row: Any = None) -> dict[str, Any]:
        """Optimizer state: group to optax state over a flat dict of its leaves by path text. Traceable.

        A rule sees parameters and gradients of less than 32 bits as float32, so its averages have that precision.

        Args:
            params: the parameters.
            row: f32[K] of the first step, for the few rules whose state starts from a rate; None takes it from the
                schedules, as constants.
        """
        first = self.hyper.table(1, 1)[0] if row is None else row
        flat = in_accumulators(self.layout.flatten(params))
        state: dict[str, Any] = {}
        for group in self.layout.groups:
            hp, scheduled = self._hyperparameters(group, first, {})
            transformation = build_transformation(self._e, self.hyper.rules[group], hp, scheduled)
            state[group] = transformation.init({leaf.text: flat[leaf.text] for leaf in self.layout.of_group(group)})
        return state

    def clip(self, grads: Any, row: Any) -> tuple[jax.Array, jax.Array]:
        """What the gradient is multiplied by for the norm to stay below the row's `clip_norm`, and that norm.

        Args:
            grads: tree like the parameters.
            row: f32[K], this step's hyperparameters.

        Returns:
            The factor and the global norm before clipping, both f32[]; frozen leaves are not counted.
        """
        return clip_factor(self._trained(grads), row[self.hyper.column("clip_norm")])

    def _trained(self, grads: Any) -> dict[str, jax.Array]:
        gradient = self.layout.flatten(grads)
        return {leaf.text: gradient[leaf.text] for leaf in self.layout.trained}

    def update(
        self,
        grads: Any,
        opt_state: Mapping[str, Any],
        params: Any,
        row: Any,
        anchors: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        value: Any = None,
        device: Mapping[str, Any] | None = None,
        clip: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[Any, dict[str, Any], jax.Array]:
        """One step: clip by the global norm, update each group, decay. Traceable.

        Args:
            grads: tree like `params`; frozen leaves' entries are not read and may be None.
            opt_state: of `init` or of the step before.
            params: the parameters.
            row: f32[K], this step's hyperparameters.
            anchors: of `anchors(w0)`; needed only when a group is anchored.
            value: the loss, f32[], for rules that read it.
            device: traced Device fields by name, for a level 2 hook that reads them.
            clip: what `clip` gave for these gradients; None asks it.

        Returns:
            New parameters (frozen leaves untouched), new state, and the global gradient norm before clipping (f32[],
            frozen leaves not counted).
        """
        given, anchors = self.layout.flatten(params), anchors or {}
        factor, norm = self.clip(grads, row) if clip is None else clip
        gradient = in_accumulators(self._trained(grads))
        clipped = {text: g * factor.astype(g.dtype) for text, g in gradient.items()}
        e = self._e if not device else self._e.model_copy(update=dict(device))
        new, new_state = dict(given), {}
        for group in self.layout.groups:
            weights = in_accumulators({leaf.text: given[leaf.text] for leaf in self.layout.of_group(group)})
            hp, scheduled = self._hyperparameters(group, row, anchors)
            transformation = build_transformation(e, self.hyper.rules[group], hp, scheduled)
            extra = {"value": value} if value is not None else {}
            updates, state = transformation.update(
                {text: clipped[text] for text in weights}, opt_state[group], weights, **extra
            )
            new_state[group] = jax.tree.map(_in_dtype_of, opt_state[group], state)
            for text, weight in weights.items():
                new[text] = self._moved(group, text, weight, updates[text], hp).astype(given[text].dtype)
        return self.layout.unflatten(new, params), new_state, norm

    def _moved(self, group: str, text: str, weight: jax.Array, update: jax.Array, hp: HyperParams) -> jax.Array:
        rule = self.hyper.rules[group]
        if rule.level != 2 and not rule.own_decay and self._decay_mask[group][text]:
            anchor = None if hp["anchor"] is None else hp["anchor"][text]
            update = jnp.asarray(decayed(update, weight, hp["learning_rate"], hp["weight_decay"], anchor))
        return weight + update

    def _hyperparameters(
        self, group: str, row: Any, anchors: Mapping[str, Mapping[str, Any]]
    ) -> tuple[HyperParams, dict[str, Any]]:
        def entry(name: str) -> Any:
            return row[self.hyper.column(f"{group}/{name}")]

        scheduled = {name: entry(name) for name in self.hyper.scheduled_of_group(group)}
        coefficient = entry("weight_decay") if self.hyper.has_column(f"{group}/weight_decay") else jnp.float32(0.0)
        anchor = None
        if group in self._anchored:
            anchor = in_accumulators(dict(anchors.get(group, {})))
        return HyperParams(entry("learning_rate"), coefficient, anchor, self._decay_mask[group], scheduled), scheduled

    def perturb(self, rule: PerturbRule, grads: Any, params: Any, row: Any) -> Any:
        """The parameters at which a perturbing rule takes the gradient. Traceable.

        Args:
            rule: of `rule`; its fields are replaced by the row's values.
            grads: gradient at `params`, a tree like it.
            params: the parameters.
            row: f32[K].

        Raises:
            OptimizerError: the rule returned other leaves or shapes than it was given.
        """
        traced = {name: row[self.hyper.column(f"grad/{name}")] for name in rule_fields(rule)}
        moved = [leaf for leaf in self.layout.trained if leaf.perturbs]
        flat, gradient = self.layout.flatten(params), self.layout.flatten(grads)
        active = with_fields(rule, traced)
        assert isinstance(active, PerturbRule)
        added = active.perturbation(
            in_accumulators({leaf.text: gradient[leaf.text] for leaf in moved}),
            in_accumulators({leaf.text: flat[leaf.text] for leaf in moved}),
            {leaf.text: leaf.adaptive for leaf in moved},
        )
        for leaf in moved:
            if leaf.text not in added or jnp.shape(added[leaf.text]) != leaf.shape:
                found = f"shape {jnp.shape(added[leaf.text])}" if leaf.text in added else "nothing"
                raise OptimizerError(
                    f"the gradient rule {type(rule).__name__} returned {found} for {leaf.text}",
                    why=f"perturbation returns one array per entry of grads; this one has shape {leaf.shape}",
                )
            flat[leaf.text] = (flat[leaf.text] + added[leaf.text]).astype(leaf.dtype)
        return self.layout.unflatten(flat, params)

    @property
    def anchored(self) -> bool:
        """Whether the decay of some group pulls to something else than zero."""
        return bool(self._anchored)

    def anchors(self, w0: Any) -> dict[str, dict[str, Any]]:
        """What the anchored groups decay toward, an argument of the train program: group to path text to array.

        Args:
            w0: the parameters as `build_model` returned them, or what stands for them. Its arrays are returned, not
                copied: they must not be donated with the parameters.
        """
        return anchor_arrays(self._anchored, self.layout, w0)

    def anchor_checksums(self, w0: Any) -> dict[str, str]:
        """SHA-256 per anchored group, for a checkpoint to compare on resume; empty without anchors."""
        return anchor_checksums(self.anchors(w0))


def _in_dtype_of(old: Any, new: Any) -> Any:
    """Keep a state's dtype: float32 hyperparameters would widen what a rule keeps narrower (`mu_dtype`)."""
    return new.astype(old.dtype) if hasattr(new, "astype") and new.dtype != old.dtype else new
