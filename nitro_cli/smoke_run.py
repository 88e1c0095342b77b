"""A tiny run through everything a real one goes through, in a temporary folder."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from nitro_cli.checkpoints import average_checkpoints
from nitro_cli.data import Dist, first_of_splits
from nitro_cli.errors import ConfigError, HookError, IncompatibleError
from nitro_cli.experiment import Average, Checkpointer, HookTable, JSONLogger, Last
from nitro_cli.export import load_bundle
from nitro_cli.nitro import Nitro
from nitro_cli.optim.named_schedules import NamedSchedule
from nitro_cli.registry import read_config, resolved_of
from nitro_cli.run import set_progress_reporter

if TYPE_CHECKING:
    from nitro_cli.experiment import Experiment
    from nitro_cli.registry import Resolved

__all__ = ["SmokeResult", "smoke"]

_EPOCHS = 2


@dataclass
class SmokeResult:
    """What became of one experiment under one preset.

    Args:
        experiment: its name.
        preset: the preset's name.
        steps: per step its name, the seconds it took, and what there is to say.
        failed: the exception that ended it.
        failed_in: the step it ended in.
    """

    experiment: str
    preset: str | None
    steps: list[tuple[str, float, str]] = field(default_factory=list)
    failed: BaseException | None = None
    failed_in: str = ""

    @property
    def name(self) -> str:
        """`Experiment` or `Experiment preset`."""
        return f"{self.experiment} {self.preset}" if self.preset else self.experiment

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.failed is None


def smoke(experiment: Experiment | Resolved) -> SmokeResult:
    """Take an experiment through everything a real run goes through, small: `nitro smoke` in Python.

    Two epochs of two optimizer steps on the first batches of its data, in a temporary folder: train, stop by SIGTERM,
    resume, evaluate, average, reload and export. What fails ends it, and is in the result; it is not raised. To be
    called in the main thread, which signals reach.

    Args:
        experiment: the experiment; as a `Resolved`, with its schedules, its preset and the origin of each value.

    Raises:
        ConfigError: `experiment` is none.

    Example:
        >>> smoke(MnistMLP.from_preset("baseline")).ok  # doctest: +SKIP
        True
    """
    resolved = resolved_of(experiment)
    result = SmokeResult(resolved.name, resolved.preset)
    with tempfile.TemporaryDirectory(prefix="nitro-smoke-") as folder:
        run = _Smoke(resolved, Path(folder))
        for name, step in run.steps():
            started = time.monotonic()
            try:
                detail = step()
            except (Exception, SystemExit) as error:
                result.failed, result.failed_in = error, name
                break
            result.steps.append((name, time.monotonic() - started, detail))
    return result


class _Smoke:
    """The steps, sharing one run directory."""

    def __init__(self, resolved: Resolved, folder: Path) -> None:
        self._root = folder / "runs"
        self._small = _small(resolved, self._root)
        self._trained: Nitro | None = None

    def steps(self) -> list[tuple[str, Callable[[], str]]]:
        return [
            ("train", self._train),
            ("resume", self._resume),
            ("evaluate", self._evaluate),
            ("average", self._average),
            ("reload", self._reload),
            ("export", self._export),
        ]

    def _handle(self, resolved: Resolved | None = None, *, data: Any = None, **words: Any) -> Nitro:
        resolved = resolved or self._small
        e = resolved.experiment
        if data is None:
            data = first_of_splits(HookTable(e).call(e, "build_data", Dist()), e.accum)
        return Nitro(resolved, data=data, **words)

    def _train(self) -> str:
        nitro = self._handle()
        if "train" not in nitro.plan.splits:
            raise HookError("build_data returned no `train` split", fix="a smoke run trains")
        with _signal_after_a_step():
            nitro.train()
        if nitro.stop_reason != "requested":
            return f"{nitro.stop_reason} before the signal was served"
        _expect(nitro.state_saved, f"SIGTERM stopped the run at step {nitro.step}, and the state was not saved")
        return f"stopped by SIGTERM at step {nitro.step}"

    def _resume(self) -> str:
        nitro = self._handle(resume="latest:latest").train()
        _expect(
            nitro.stop_reason in ("completed", "early_stop"),
            f"the resumed run ended with {nitro.stop_reason} at epoch {nitro.epoch} of {_EPOCHS}",
        )
        self._trained = nitro
        return f"{nitro.stop_reason} at epoch {nitro.epoch}, step {nitro.step}"

    def _evaluate(self) -> str:
        nitro = self._finished
        names = [name for name in nitro.plan.splits if name != "train"]
        for name in names:
            nitro.evaluate(name)
        return ", ".join(names) or "no split but train"

    def _average(self) -> str:
        target = self._root.parent / "average"
        averaged_from = average_checkpoints(self._root, "latest", Average(Last(2)), save=target).meta.averaged_from
        assert averaged_from is not None
        self._handle(weights=str(target))
        return f"{len(averaged_from.epochs)} checkpoints"

    def _reload(self) -> str:
        """Rebuild the experiment from the run's configuration, load its newest checkpoint, and predict the same."""
        nitro = self._finished
        assert nitro.run_path is not None
        resolved = read_config(nitro.run_path / "config.toml", cls=nitro.resolved.cls)
        again = self._handle(resolved, data={}, weights="latest:latest")
        split = next((s for name, s in nitro.plan.splits.items() if name != "train"), nitro.plan.splits["train"])
        batch = {name: split.example[name] for name in nitro.plan.forward_fields if name in split.example}
        before, after = nitro.predict(batch), again.predict(batch)
        same = jax.tree.map(lambda a, b: bool(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)), before, after)
        _expect(all(jax.tree.leaves(same)), "the reloaded run predicts other outputs than the trained one")
        return "predicts the same"

    def _export(self) -> str:
        """Write a bundle from the newest checkpoint, load it, and run it on three samples.

        What nothing says how to export, and cannot be exported from its batches alone, is passed over, said.
        """
        nitro = self._handle(self._small.with_values({"n_devs": 1}), data={}, weights="latest:latest")
        try:
            written = nitro.export("bundle", dir=self._root.parent / "export", name="smoke")
        except (ConfigError, IncompatibleError) as error:
            if HookTable(self._small.experiment).has("export_inputs"):
                raise
            return f"skipped: without export hooks {error.what}"
        bundle = load_bundle(written, raw=True)
        wire = {spec["name"]: np.zeros((3, *spec["shape"][1:]), spec["dtype"]) for spec in bundle.manifest["inputs"]}
        outputs = bundle(**wire)
        _expect(all(len(array) == 3 for array in outputs.values()), "the bundle gives outputs of another batch size")
        return f"bundle with {', '.join(outputs)}"

    @property
    def _finished(self) -> Nitro:
        assert self._trained is not None
        return self._trained


def _small(resolved: Resolved, root: Path) -> Resolved:
    """The experiment with two epochs, a run directory of its own, checkpoints on and nothing logged elsewhere."""
    e = resolved.experiment
    keep = e.checkpointer.keep if isinstance(e.checkpointer, Checkpointer) else ()
    checkpointer = Checkpointer(keep=(*keep, Last(2)))
    if isinstance(e.checkpointer, Checkpointer):
        checkpointer = e.checkpointer.model_copy(update={"keep": (*keep, Last(2))})
    changed: dict[str, Any] = {"max_epochs": _EPOCHS, "run_dir": root, "checkpointer": checkpointer, "max_time": None}
    if e.logger is not None:
        changed["logger"] = JSONLogger()
    small = resolved.with_values(changed)
    schedules = resolved.schedules
    if schedules is None:
        schedules = HookTable(e).call(e, "schedules") if HookTable(e).has("schedules") else None
    if not isinstance(schedules, Mapping):
        return small
    short = {key: _short_warmup(one) for key, one in schedules.items()}
    return small if all(short[key] is one for key, one in schedules.items()) else small.with_schedules(short)


def _short_warmup(schedule: Any) -> Any:
    """The schedule, with a warm-up that ends within a smoke run's steps."""
    named = isinstance(schedule, NamedSchedule)
    table = schedule.schedule.model_dump() if named else schedule
    steps = table.get("warmup_steps") if isinstance(table, Mapping) else None
    if not isinstance(steps, int) or steps <= _EPOCHS:
        return schedule
    if named:
        return NamedSchedule(schedule.schedule.model_copy(update={"warmup_steps": _EPOCHS}))
    return {**table, "warmup_steps": _EPOCHS}


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise HookError(otherwise)


class _signal_after_a_step:
    """While inside, SIGTERM is raised in this process after the first finished training step."""

    def __enter__(self) -> None:
        self._reporter = _SignallingReporter()
        self._reporter.inner = set_progress_reporter(self._reporter)

    def __exit__(self, *exc: object) -> None:
        set_progress_reporter(self._reporter.inner)


class _SignallingReporter:
    """Passes everything on to the reporter it replaces, and raises SIGTERM after the first training step."""

    inner: Any = None

    def __init__(self) -> None:
        self._label = ""
        self._raised = False

    def begin(self, label: str, total: int, epoch: int, max_epochs: int) -> None:
        self._label = label
        self._pass("begin", label, total, epoch, max_epochs)

    def step(self, n: int, values: Mapping[str, float] | None) -> None:
        self._pass("step", n, values)
        if self._label == "train" and not self._raised:
            self._raised = True
            signal.raise_signal(signal.SIGTERM)

    def end(self, values: Mapping[str, Any] | None) -> None:
        self._pass("end", values)

    def phase(self, name: str | None) -> None:
        self._pass("phase", name)

    def note(self, text: str | None) -> None:
        self._pass("note", text)

    def line(self, text: str) -> None:
        self._pass("line", text)

    def done(self, text: str) -> None:
        self._pass("done", text)

    def _pass(self, verb: str, *args: Any) -> None:
        if self.inner is not None:
            getattr(self.inner, verb)(*args)
