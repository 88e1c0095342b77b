"""A short real run, taken apart: where its time goes, and the profiler's trace of a window of its steps."""

from nitro_cli.profiling.measurement import PhaseTime, Profile, profile

__all__ = ["PhaseTime", "Profile", "profile"]
