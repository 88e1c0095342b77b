"""What a handle holds and says of itself: where its run stands, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nitro_cli.experiment import Experiment
from nitro_cli.metrics import History
from nitro_cli.programs import Program, TrainState
from nitro_cli.registry import Resolved
from nitro_cli.run.compiling import Compiler
from nitro_cli.run.components import ResumeStatus
from nitro_cli.run.handle_text import facts_html, facts_line, facts_rich, facts_text, handle_facts
from nitro_cli.run.phases import Phase, PhaseState
from nitro_cli.run.plan import Plan
from nitro_cli.run.report import SetupReport
from nitro_cli.run.state import RunState, eval_params
from nitro_cli.run.stopping import StopRequest
from nitro_cli.run.training import Training

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["HeldRun"]


class HeldRun:
    """A run in hand, to be asked; `Handle` makes it and acts on it."""

    plan: Plan
    compiler: Compiler
    phases: PhaseState
    stop: StopRequest
    stop_reason: str | None
    _built = False
    _title: str
    _first_state: RunState
    _training: Training | None
    _metrics: dict[str, Any]
    _sealed: str | None

    @property
    def run_state(self) -> RunState:
        """Where the run stands; its arrays are given to the next step that is trained."""
        return self._training.state if self._training is not None else self._first_state

    @run_state.setter
    def run_state(self, state: RunState) -> None:
        if self._training is not None:
            self._training.state = state
        else:
            self._first_state = state

    @property
    def train_state(self) -> TrainState:
        """Parameters, layer state, optimizer state, average and counters, on the device."""
        return self.run_state.train

    @train_state.setter
    def train_state(self, train: TrainState) -> None:
        self.run_state = self.run_state._replace(train=train)

    @property
    def experiment(self) -> Experiment:
        """The experiment with this run's knobs and the derived values; Device fields as host arrays."""
        return self.run_state.host_view()

    @property
    def resolved(self) -> Resolved:
        """The configuration as the run records it: the values that are used, derived ones included, and their origins.

        A `max_time` given to this handle alone is not in it.
        """
        return self.plan.settings.recorded

    @property
    def run_dir(self) -> Path:
        """Where its runs lie."""
        return self.plan.settings.run_dir

    @property
    def data(self) -> dict[str, Any]:
        """The named sources, as `build_data` or `data=` gave them; `train()` releases them at its end."""
        return dict(self.plan.data.sources)

    @property
    def params(self) -> Any:
        """The parameters, as the model library's tree of device arrays.

        They are the training state itself: the next `train()` gives their memory to the new ones and leaves these
        deleted. `jax.tree.map(np.array, handle.params)` is a copy to keep.
        """
        return self.train_state.params

    @property
    def state(self) -> Any:
        """The layer state (running statistics and the like), until the next `train()`; copied as `params` are."""
        return self.train_state.state

    @property
    def ema(self) -> Any:
        """The parameters' moving average, float32 or wider, or None; until `train()`, copied as `params` are."""
        return self.train_state.ema

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.run_state.position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress or just ended; 0 before the first."""
        return self.run_state.position.epoch

    @property
    def history(self) -> History:
        """One row per trained epoch."""
        return self.run_state.history

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of the last validation while training; empty before the first."""
        return (self._training.metrics if self._training is not None else None) or self._metrics

    @property
    def report(self) -> SetupReport:
        """What setup decided."""
        return self.plan.report

    @property
    def programs(self) -> Mapping[str, Program]:
        """The first program of each purpose that was compiled: `train`, `eval`, `metrics`, ..."""
        return self.compiler.programs

    @property
    def monitor(self) -> Any:
        """The metric the run is judged by, or None."""
        return self.plan.settings.monitor

    @property
    def phase(self) -> Phase:
        """What the handle is doing, or how its last work ended."""
        return self.phases.current

    @property
    def logger(self) -> Any:
        """The live logger, or None before training and without logging."""
        return self._training.logger if self._training is not None else None

    @property
    def run_id(self) -> str | None:
        """The id of the run this handle writes, or None before the first `train()`."""
        return self._training.run_id if self._training is not None else None

    @property
    def run_path(self) -> Path | None:
        """The directory of the run this handle writes, or None before the first `train()`."""
        return self._training.run_path if self._training is not None else None

    @property
    def best(self) -> dict[str, Any] | None:
        """Score, metric, mode and path of the best checkpoint of this handle's run, or None."""
        return self._training.best() if self._training is not None else None

    @property
    def state_saved(self) -> bool:
        """Whether the state that the last `train()` ended in is in a checkpoint."""
        return self._training is not None and self._training.state_saved

    @property
    def stop_cause(self) -> str | None:
        """What asked for a stop: `sigint`, `sigterm`, `sigusr1`, `max_time`, `request`; None when nothing did."""
        return self.stop.cause

    def eval_params(self) -> Any:
        """The parameters that evaluation reads: the EMA when there is one, unless `eval_weights` is `raw`."""
        return eval_params(self.plan.experiment, self.train_state)

    @property
    def resume_status(self) -> ResumeStatus:
        """How the handle began: from what, where that stood, and which components went on from it."""
        return self.run_state.rules.began

    @property
    def restored(self) -> str | None:
        """The checkpoint or average whose weights `train()` ended on (`restore_best`), or None."""
        return self._sealed

    def __str__(self) -> str:
        return facts_text(self._facts(), self.report) if self._built else repr(self)

    def __repr__(self) -> str:
        return facts_line(self._facts()) if self._built else f"<Nitro {self._title}, in setup>"

    def __rich__(self) -> Text:
        return facts_rich(self._facts(), self.report)

    def _repr_html_(self) -> str:
        return facts_html(self._facts(), self.report)

    def _facts(self) -> dict[str, str]:
        return handle_facts(
            self.plan,
            self.run_state,
            run_id=self.run_id,
            restored=self._sealed,
            doing=self.stop_reason or str(self.phase).lower(),
            metrics=self.metrics,
            best=self.best,
        )
