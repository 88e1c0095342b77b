"""What the command line says of a calibrator and a policy that are applied to a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nitro_cli.cli.declared_outputs import DeclaredOutputs
from nitro_cli.cli.prediction_subject import analysis_folder, load_calibrator, load_policy
from nitro_cli.cli.targets import Target
from nitro_cli.errors import ConfigError

__all__ = ["AppliedArtefacts"]


@dataclass(frozen=True)
class AppliedArtefacts:
    """Which artefacts, and what the outputs mean.

    Args:
        declared: what the outputs mean.
        calibrator, policy: their paths, or `latest` of the run.
        override: a name under which those of another model or other labels are accepted.
    """

    declared: DeclaredOutputs
    calibrator: str | None = None
    policy: str | None = None
    override: str | None = None

    def words(self, target: Target, *, judged: bool) -> dict[str, Any]:
        """The words of `Nitro.evaluate` and `export` for a target; none where neither artefact is named.

        Args:
            target: what they are applied to.
            judged: whether targets are needed.

        Raises:
            ConfigError: nothing says what the outputs mean, or which field is the target.
        """
        if self.calibrator is None and self.policy is None:
            return {}
        meaning, folder = self.declared.needed(target.resolved.experiment), analysis_folder(target)
        if judged and meaning.target is None:
            raise ConfigError("nothing says what was to be predicted", fix="name the field of the batches: --target F")
        return {
            "calibrator": load_calibrator(self.calibrator, folder),
            "policy": load_policy(self.policy, folder),
            "override": self.override,
            "spec": meaning,
        }
