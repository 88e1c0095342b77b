"""What `nitro predict` writes: outputs, what they mean where that is told, and what they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nitro_cli.errors import ConfigError

if TYPE_CHECKING:
    from nitro_cli.analysis import AbstentionPolicy, Calibrator, Prediction, PredictionOrigin
    from nitro_cli.cli.prediction_files import OutputFile
    from nitro_cli.cli.targets import Target
    from nitro_cli.run import Nitro, OutputMeaning, PredictedBatch, RowSource

__all__ = ["PredictionWriting"]


@dataclass(frozen=True)
class PredictionWriting:
    """What goes into a prediction file.

    Args:
        meaning: what the outputs mean.
        with_fields: further fields of the data.
        calibrator: whose probabilities are written too.
        policy: whose scores and verdicts are written too.
        override: a name under which artefacts of another model or other labels are accepted.

    Raises:
        ConfigError: a field has a name that the file itself uses.
    """

    meaning: OutputMeaning
    with_fields: tuple[str, ...]
    calibrator: Calibrator | None = None
    policy: AbstentionPolicy | None = None
    override: str | None = None

    def __post_init__(self) -> None:
        for name in self.with_fields:
            _check_name(name, "--with")

    def write(self, file: OutputFile, nitro: Nitro, target: Target, source: RowSource) -> int:
        """Predict and write all rows of a source; returns how many.

        Raises:
            NonFiniteOutputError: an output has no probability.
            DataError: there is no such output, or one has a name that the file itself uses.
        """
        from nitro_cli.analysis import PredictionMeta, meta_array
        from nitro_cli.run import LoadedFrom, predicted_batches, prediction_origin

        samples, loaded, spec = 0, target.checkpoint or nitro.checkpoint_source, self.meaning.spec
        weights = LoadedFrom(None if loaded is None else str(loaded), target.run)
        origin = prediction_origin(nitro.plan, nitro.run_state, source, weights)
        for batch in predicted_batches(nitro.plan, nitro.predict, source):
            file.write(self._arrays(batch, samples, origin))
            samples += len(next(iter(batch.outputs.values())))
        names = ("experiment", "run", "checkpoint", "model_id", "split", "data", "ids")
        known: dict[str, Any] = {name: getattr(origin, name) for name in names}
        if spec is not None:
            known |= {"task": {**(origin.task or {}), "ignore_index": origin.ignore_index}, "labels": spec.labels}
        for name, artefact in (("calibrator", self.calibrator), ("policy", self.policy)):
            known[name] = None if artefact is None else artefact.id
        file.write({"meta": meta_array(PredictionMeta(**known))})
        return samples

    def _arrays(self, batch: PredictedBatch, first: int, origin: PredictionOrigin) -> Mapping[str, np.ndarray]:
        from nitro_cli.run import read_prediction

        rows = batch.rows
        arrays = {} if rows.ids is None else {"ids": rows.ids}
        for name, leaf in batch.outputs.items():
            _check_name(name, "the outputs of forward")
            arrays[name] = leaf
        if rows.target is not None:
            arrays["target"] = rows.target
        for name in self.with_fields:
            if name in arrays:
                raise ConfigError(f"{name} is an output too", where="--with", fix="rename the field")
            arrays[name] = rows.kept[name]
        if self.meaning.spec is not None:
            made = read_prediction(batch, self.meaning, first, origin)
            if made.probabilities is not None:
                arrays["probabilities"] = made.probabilities
            arrays["decoded"] = made.decoded
            arrays |= self._judged(made)
        return arrays

    def _judged(self, made: Prediction) -> dict[str, np.ndarray]:
        """What calibrator and policy say of the rows."""
        arrays: dict[str, np.ndarray] = {}
        if self.calibrator is not None:
            arrays["calibrated_probabilities"] = self.calibrator.apply(
                made, override=self.override
            ).calibrated_probabilities
        if self.policy is not None:
            scored_by = self.calibrator if self.policy.calibrator is not None else None
            verdict = self.policy.apply(made, calibrator=scored_by, override=self.override)
            arrays["score"] = verdict.score.reshape(made.decoded.shape)
            arrays["accepted"] = verdict.accepted.reshape(made.decoded.shape)
        return arrays


def _check_name(name: str, where: str) -> None:
    from nitro_cli.analysis import FILE_NAMES

    if name in FILE_NAMES:
        raise ConfigError(
            f"{name} is a name that a prediction file itself uses",
            where=where,
            why=f"its own names are {', '.join(FILE_NAMES)}",
            fix="--target writes the target" if name == "target" else "give it another name",
        )
