"""The experiment as researchers subclass it: `nitro_cli.Experiment`."""

from __future__ import annotations

from typing import Any, Self

from nitro_cli.experiment import Experiment

__all__ = ["PresetExperiment"]


class PresetExperiment(Experiment):
    __doc__ = Experiment.__doc__

    @classmethod
    def from_preset(cls, name: str, **values: Any) -> Self:
        """The experiment of a preset, `values` winning over the preset's.

        Raises:
            PresetNotFoundError: there is no preset of this name.
            PresetError: the preset does not fit the experiment.
        """
        from nitro_cli.registry.resolution import from_preset

        loaded = from_preset(cls, name, **values).experiment
        assert isinstance(loaded, cls)
        return loaded
