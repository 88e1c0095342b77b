"""A calibrator and a policy that leave with the weights: what they say is computed in the program itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_cli.analysis import AbstentionPolicy, Calibrator, PredictionOrigin, Probabilities, scores_of, softmax
from nitro_cli.errors import ConfigError
from nitro_cli.export.default_contract import ONE_OUTPUT
from nitro_cli.run import OutputMeaning, weights_id
from nitro_cli.text import path_text

if TYPE_CHECKING:
    from nitro_cli.run import Handle

__all__ = ["CALIBRATOR_FILE", "POLICY_FILE", "JudgedHead", "held_by"]

CALIBRATOR_FILE, POLICY_FILE = "calibrator.json", "policy.json"


@dataclass(frozen=True)
class JudgedHead:
    """What is added to the outputs.

    Args:
        meaning: what the outputs are; with a spec.
        model_id: the digest of the weights that are exported.
        calibrator: gives `calibrated_probabilities`.
        policy: gives `score` and `accepted`.
        override: a name under which artefacts of another model or other labels are accepted.
    """

    meaning: OutputMeaning
    model_id: str | None
    calibrator: Calibrator | None = None
    policy: AbstentionPolicy | None = None
    override: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs that are added."""
        calibrated = ("calibrated_probabilities",) if self.calibrator is not None else ()
        return (*calibrated, *(("score", "accepted") if self.policy is not None else ()))

    def files(self) -> dict[str, str]:
        """The artefacts as files."""
        held = {CALIBRATOR_FILE: self.calibrator, POLICY_FILE: self.policy}
        return {name: artefact.text() for name, artefact in held.items() if artefact is not None}

    def provenance(self) -> dict[str, Any]:
        """Which artefacts they are, how they read the outputs, and what was accepted of them."""
        spec = self.meaning.spec
        assert spec is not None
        labels = None if spec.labels is None else list(spec.labels)
        reads = {"kind": spec.kind, "class_axis": spec.class_axis, "labels": labels, "output": self.meaning.output}
        ids = {"calibrator": self.calibrator, "policy": self.policy}
        held: dict[str, Any] = {name: artefact.id for name, artefact in ids.items() if artefact is not None}
        return {"artefacts": {**held, "reads": reads, "override": self.override}}

    def added(self, outputs: Any, made: Any) -> dict[str, Any]:
        """Inside a traced function: what leaves, with what calibrator and policy say.

        Args:
            outputs: what `forward` returned.
            made: what leaves without them.

        Raises:
            ConfigError: an output has the name of one that is added, or the artefacts do not go together.
            MismatchError: an artefact is of other weights or labels.
            DataError: the outputs are not what they are said to be.
        """
        leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
        logits = self.meaning.of({path_text(path) or ONE_OUTPUT: leaf for path, leaf in leaves})
        self._check(logits.shape[1:])
        named = dict(made) if isinstance(made, Mapping) else _by_path(made)
        clash = sorted(set(named) & set(self.names))
        if clash:
            raise ConfigError(f"an output is called {clash[0]} already", fix="give it another name")
        return {**named, **self._judged(jnp.asarray(logits))}

    def _check(self, shape: tuple[int, ...]) -> None:
        """Refuse artefacts that do not fit, on made-up logits of the right shape."""
        spec = self.meaning.spec
        assert spec is not None
        made = spec.predict(np.zeros((1, *shape), np.float32), origin=PredictionOrigin(model_id=self.model_id))
        if self.calibrator is not None:
            self.calibrator.apply(made, override=self.override)
        if self.policy is not None:
            self.policy.apply(made, calibrator=self._scored_by, override=self.override)

    @property
    def _scored_by(self) -> Calibrator | None:
        return self.calibrator if self.policy is not None and self.policy.calibrator is not None else None

    def _judged(self, logits: jax.Array) -> dict[str, jax.Array]:
        spec = self.meaning.spec
        assert spec is not None
        wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        last = wide[:, None] if wide.ndim == 1 else jnp.moveaxis(wide, spec.class_axis, -1)
        rows = last if last.ndim == 2 else last.reshape(-1, last.shape[-1])
        found: dict[str, jax.Array] = {}
        shares: Any = None
        if self.calibrator is not None:
            shares = self.calibrator.probabilities(rows)
            back = shares if last.ndim == 2 else shares.reshape(last.shape)
            found["calibrated_probabilities"] = (
                back[:, 0] if wide.ndim == 1 else jnp.moveaxis(back, -1, spec.class_axis)
            )
        if self.policy is not None:
            score = scores_of(shares if self._scored_by is not None else softmax(rows), self.policy.score)
            score = score if last.ndim == 2 else score.reshape(last.shape[:-1])
            found |= {"score": score, "accepted": score >= self.policy.threshold}
        return found


def _by_path(made: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(made)[0]
    return {path_text(path) or ONE_OUTPUT: leaf for path, leaf in leaves}


def held_by(
    nitro: Handle,
    calibrator: Calibrator | None,
    policy: AbstentionPolicy | None,
    override: str | None,
    spec: Probabilities | OutputMeaning | None,
) -> JudgedHead | None:
    """The head of an export with a calibrator, a policy or both; None without.

    Args:
        nitro: the handle.
        calibrator, policy: the artefacts.
        override: a name under which those of another model or other labels are accepted.
        spec: what the outputs mean; None asks the task.

    Raises:
        ConfigError: nothing says what the outputs mean.
        MismatchError: the policy scores probabilities of another calibrator.
    """
    if calibrator is None and policy is None:
        return None
    if policy is not None:
        policy.check_calibrator(calibrator if policy.calibrator is not None else None)
    return JudgedHead(nitro.output_meaning(spec), weights_id(nitro.plan, nitro.run_state), calibrator, policy, override)
