"""What `nitro predict` writes: outputs, what they mean where that is told, and what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nitro_cli.analysis import AbstentionPolicy, Calibrator, OutputFile, Prediction
    from nitro_cli.cli.targets import Target
    from nitro_cli.nitro import Nitro
    from nitro_cli.run import OutputMeaning, RowSource

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
        from nitro_cli.analysis import check_file_name

        for name in self.with_fields:
            check_file_name(name, "--with")

    def write(self, file: OutputFile, nitro: Nitro, target: Target, source: RowSource) -> int:
        """Predict and write all rows of a source; returns how many.

        Raises:
            NonFiniteOutputError: an output has no probability.
            DataError: there is no such output, or one has a name that the file itself uses.
        """
        from nitro_cli.run import LoadedFrom, predicted_batches, prediction_origin, write_predictions

        loaded = target.checkpoint or nitro.checkpoint_source
        weights = LoadedFrom(None if loaded is None else str(loaded), target.run)
        return write_predictions(
            file,
            predicted_batches(nitro.plan, nitro.predict, source),
            self.meaning,
            prediction_origin(nitro.plan, nitro.run_state, source, weights),
            self.with_fields,
            self._judged,
            calibrator=None if self.calibrator is None else self.calibrator.id,
            policy=None if self.policy is None else self.policy.id,
        )

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
