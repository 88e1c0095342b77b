"""What a step tells the host: one vector of numbers, and where each stands in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nitro_cli.experiment import Term

__all__ = ["LossParts", "Outcome", "Pair", "ReadbackLayout", "StepNumbers", "quotients", "wide"]

Pair = tuple[float, float]
"""A sum, and what it is divided by."""


class Outcome(IntEnum):
    """What became of a step."""

    DIVERGED = 0
    """Its loss or gradient is not finite, and no later step changes anything."""
    TAKEN = 1
    EMPTY = 2
    """Every entry of every loss term is masked: nothing changed."""
    NONFINITE = 3
    """Its loss or gradient is not finite: nothing changed, and training goes on."""


class LossParts(NamedTuple):
    """What a loss hook returned.

    Attributes:
        value: the scalar; None where the loss is made of terms.
        terms: by name. Beside a scalar they are plain numbers to report, which the loss is not made of.
        traced_weights: the terms whose weight is computed in the program.
    """

    value: jax.Array | None
    terms: dict[str, Term]
    traced_weights: tuple[str, ...] = ()


class StepNumbers(NamedTuple):
    """The numbers of a step while it is traced.

    Attributes:
        means: plain numbers by name, f32[], whose mean over the micro-batches counts.
        sums: numerators and denominators by name, f32[] or wider, which add up over the micro-batches; a plain sum has
            None.
        weights: of the loss terms, which stand in `sums` too; empty for a scalar loss, which stands in `means`.
    """

    means: dict[str, jax.Array]
    sums: dict[str, tuple[jax.Array, jax.Array | None]]
    weights: dict[str, jax.Array]

    @classmethod
    def of_loss(cls, parts: LossParts) -> StepNumbers:
        """What a loss hook gives the line of a step."""
        named = {f"loss/{name}": term for name, term in parts.terms.items()}
        if parts.value is not None:
            means = {"loss": parts.value, **{name: term.numerator for name, term in named.items()}}
            return cls({name: value.astype(jnp.float32) for name, value in means.items()}, {}, {})
        return cls({}, {}, {name: wide(term.weight) for name, term in named.items()}).beside(
            {}, {name: (term.numerator, term.denominator) for name, term in named.items()}
        )

    def beside(self, means: dict[str, jax.Array], sums: dict[str, tuple[jax.Array, jax.Array | None]]) -> StepNumbers:
        """These and more."""
        means = {name: value.astype(jnp.float32) for name, value in means.items()}
        return StepNumbers(self.means | means, self.sums | jax.tree.map(wide, sums), self.weights)

    def added(self, other: StepNumbers) -> StepNumbers:
        """Those of two micro-batches together; a weight is the same for all."""
        means, sums = jax.tree.map(jnp.add, (self.means, self.sums), (other.means, other.sums))
        return StepNumbers(means, sums, self.weights)

    def over(self, micro_batches: int | jax.Array) -> StepNumbers:
        """The numbers of the step, the means divided."""
        return self._replace(means=jax.tree.map(lambda x: x / micro_batches, self.means))

    def where(self, there: jax.Array) -> StepNumbers:
        """The same of a micro-batch that is there, zeros of one that is padding."""
        means, sums = jax.tree.map(lambda x: jnp.where(there, x, 0), (self.means, self.sums))
        return StepNumbers(means, sums, self.weights)

    def divided_by(self, totals: dict[str, jax.Array]) -> StepNumbers:
        """The same with other denominators, by name."""
        return self._replace(sums={name: (over, totals.get(name, under)) for name, (over, under) in self.sums.items()})

    @property
    def loss(self) -> jax.Array:
        """The loss of the step: a scalar's mean, or the weighted terms, those left out of which all is masked."""
        if not self.weights:
            return self.means["loss"]
        shares = [_share(*self.sums[name], weight) for name, weight in self.weights.items()]
        return sum(shares[1:], shares[0])

    @property
    def empty(self) -> jax.Array | None:
        """Whether all is masked, so that no term is left; None where that cannot be."""
        under = [self.sums[name][1] for name in self.weights]
        zeros = [total == 0 for total in under if total is not None]
        return jnp.all(jnp.stack(zeros)) if zeros and len(zeros) == len(under) else None


def wide(value: jax.Array) -> jax.Array:
    """A number in float32, or float64 where it is."""
    return value.astype(jnp.promote_types(value.dtype, jnp.float32))


def _share(numerator: jax.Array, denominator: jax.Array | None, weight: jax.Array) -> jax.Array:
    """What a term adds to the loss: weight * numerator / denominator, 0 for a denominator of 0."""
    if denominator is None:
        return weight * numerator
    total = jax.lax.stop_gradient(denominator)
    there = total != 0
    return jnp.where(there, weight / jnp.where(there, total, 1), 0) * numerator


def quotients(pairs: Mapping[str, Pair]) -> dict[str, float | None]:
    """What the pairs come to; None where there is nothing to divide by."""
    return {name: over / under if under else None for name, (over, under) in pairs.items()}


@dataclass(frozen=True)
class ReadbackLayout:
    """Where the numbers of a step stand in its readback, f32[R].

    The loss comes first, then the `Outcome`, then what the processes wish, where they tell each other; then the numbers
    by name, the denominators of those that have one, and the weights of the loss terms.

    Attributes:
        names: of the numbers: loss terms and train metrics.
        divided: those with a denominator of their own.
        terms: those that the loss is made of; none for a scalar loss.
        metrics: those of `train_metrics`.
        shares_wishes: whether a wish is among them.
    """

    names: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    shares_wishes: bool = False

    OUTCOME = 1
    WISH = 2

    @classmethod
    def of(cls, numbers: StepNumbers, *, of_metrics: bool, shares_wishes: bool) -> ReadbackLayout:
        """The layout of a traced step's numbers.

        Args:
            numbers: of the step.
            of_metrics: whether those that are not of the loss are train metrics, which an epoch sums up.
            shares_wishes: whether several processes train.
        """
        names = tuple(sorted(name for name in (*numbers.means, *numbers.sums) if name != "loss"))
        divided = tuple(name for name in names if numbers.sums.get(name, (None, None))[1] is not None)
        terms = tuple(name for name in names if name in numbers.weights)
        metrics = tuple(name for name in names if of_metrics and not name.startswith("loss/"))
        return cls(names, divided, terms, metrics, shares_wishes)

    def packed(self, outcome: jax.Array, wish: jax.Array | None, numbers: StepNumbers) -> jax.Array:
        """The readback of a step. Traceable."""
        sums = {name: pair[0] for name, pair in numbers.sums.items()}
        values: list[jax.Array | None] = [numbers.loss, outcome, *([] if wish is None else [wish])]
        values += [(numbers.means | sums)[name] for name in self.names]
        values += [numbers.sums[name][1] for name in self.divided]
        values += [numbers.weights[name] for name in self.terms]
        return jnp.stack([jnp.asarray(value).astype(jnp.float32) for value in values])

    def line(self, row: Sequence[float]) -> dict[str, float | None]:
        """The numbers of a step by name, the loss among them; None for one of which all is masked.

        Args:
            row: its readback, as Python numbers.
        """
        pairs = self._pairs(row)
        line: dict[str, float | None] = {"loss": row[0]}
        line |= quotients(pairs)
        if self.terms and not any(pairs[name][1] for name in self.terms):
            line["loss"] = None
        return line

    def totals(self, row: Sequence[float]) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """What a step adds to the epoch: loss terms, their weight in the sum, and train metrics.

        Args:
            row: its readback, as Python numbers.
        """
        if not (self.terms or self.metrics):
            return {}, {}
        pairs = self._pairs(row)
        weights = dict(zip(self.terms, row[len(row) - len(self.terms) :], strict=True))
        terms = {name: (weight * pairs[name][0], pairs[name][1]) for name, weight in weights.items()}
        return terms, {name: pairs[name] for name in self.metrics}

    def _pairs(self, row: Sequence[float]) -> Mapping[str, Pair]:
        first = self.WISH + self.shares_wishes
        after = first + len(self.names)
        under = dict(zip(self.divided, row[after : after + len(self.divided)], strict=True))
        return {name: (value, under.get(name, 1.0)) for name, value in zip(self.names, row[first:after], strict=True)}
