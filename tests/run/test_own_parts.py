"""A user's own object in the place of each part: a run trained with one, and what it lacks named before the run."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import ValidationError

from nitro_cli import (
    EMA,
    Average,
    Checkpointer,
    CheckpointRecord,
    ExportSpec,
    Last,
    Nitro,
    NitroError,
    Selector,
    register_phase_monitor,
    runs,
    set_progress_reporter,
)
from nitro_cli.cli.evaluation import open_handle
from nitro_cli.cli.output import Output
from nitro_cli.cli.targets import Target, find_weights
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, HookError, RunNotFoundError
from nitro_cli.export import find_backend
from nitro_cli.optim import PerturbRule
from nitro_cli.registry import resolved_of
from tests.tiny import Light, Quick, points, stop_after


class Small(Light):
    """One epoch of two steps."""

    checkpointer = None
    logger = None


class Lines:
    """A logger: the four verbs that a run calls, into a list."""

    def __init__(self, broken: bool = False) -> None:
        self.lines: list[tuple[str, Any]] = []
        self.broken = broken

    def log_params(self, params: Any) -> None:
        self.lines.append(("params", dict(params)))

    def log_metrics(self, metrics: Any, *, step: int, epoch: int, context: str) -> None:
        self.lines.append((context, {**metrics, "step": step}))

    def log_other(self, key: str, value: Any) -> None:
        self.lines.append((key, value))

    def finish(self, status: str) -> None:
        if self.broken:
            raise ConnectionError("the server is gone")
        self.lines.append(("finish", status))


def test_a_logger_of_ones_own_gets_every_line(tmp_path: Path) -> None:
    logger = Lines()
    Nitro(Small(), logger=logger, run_dir=tmp_path).train()
    kinds = [kind for kind, _ in logger.lines]
    assert kinds.count("train") == 2
    assert kinds.count("validate") == 1
    assert kinds[0] == "params"
    assert logger.lines[-1] == ("finish", "completed")
    assert "acc" in dict(logger.lines)["validate"]


def test_a_logger_that_fails_to_finish_ends_the_run_as_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="the server is gone"):
        Nitro(Small(), logger=Lines(broken=True), run_dir=tmp_path).train()
    assert [run.status for run in runs(tmp_path)] == ["error"]


class Shelf:
    """A checkpointer in memory: records as bytes, by name; the best by a lower score."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, bytes, float | None]] = {}
        self.asked: list[tuple[int, int, float | None]] = []
        self.takes = True

    def save(self, record: Any, *, epoch: int, step: int, score: float | None) -> Any:
        self.asked.append((epoch, step, score))
        if not self.takes:
            return False
        arrays = io.BytesIO()
        np.savez(arrays, **record.arrays)
        self.held[f"step {step}"] = (json.dumps(record.meta_as_json()), arrays.getvalue(), score)
        return None

    def load(self, source: str) -> Any:
        meta, arrays, _ = self.held[source]
        return CheckpointRecord.from_json(json.loads(meta), np.load(io.BytesIO(arrays)))

    def find_latest(self) -> str | None:
        return max(self.held, key=lambda name: int(name.split()[1]), default=None)

    def find_best(self) -> str | None:
        scored = {name: score for name, (_, _, score) in self.held.items() if score is not None}
        return min(scored, key=scored.__getitem__) if scored else None


class Shelved(Quick):
    """Dropout, momentum and layer state, kept on a shelf; lower scores are better, and the second epoch's is best."""

    samples = 16
    max_epochs = 3
    monitor = ("score", "min")

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        Shelved.calls += 1
        return {"score": abs(Shelved.calls - 2.0), **acc}


Shelved.calls = 0


def shelved(folder: Path, shelf: Any, calls: int = 0, **words: Any) -> Nitro:
    Shelved.calls = calls
    return Nitro(Shelved(), checkpointer=shelf, run_dir=folder, **words)


def bits(handle: Nitro) -> list[bytes]:
    return [
        np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((handle.params, handle.state, handle.train_state.opt))
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """The run of three epochs that was never stopped."""
    return shelved(tmp_path_factory.mktemp("whole"), Shelf()).train()


def test_a_checkpointer_of_ones_own_is_given_every_epoch_and_writes_nothing_into_the_run(whole: Nitro) -> None:
    shelf = whole.plan.experiment.checkpointer
    assert shelf.asked == [(1, 2, 1.0), (2, 4, 0.0), (3, 6, 1.0)]
    (run,) = runs(whole.run_dir)
    assert (run.status, run.checkpoints, whole.best, whole.state_saved) == ("completed", (), None, True)
    assert list((run.path / "checkpoints").iterdir()) == []
    meta = shelf.load("step 6").meta
    assert (meta.epoch, meta.step, meta.stop_reason, meta.run) == (3, 6, "completed", run.id)
    assert len(list(whole.history)) == 3


@pytest.mark.parametrize("steps", [2, 3])
def test_a_resume_from_it_continues_the_run_bit_for_bit(steps: int, whole: Nitro, tmp_path: Path) -> None:
    shelf = Shelf()
    first = shelved(tmp_path, shelf)
    stop_after(first, steps)
    first.train()
    assert first.stop_reason == "requested"
    assert shelf.asked[-1] == (1 if steps == 2 else 2, steps, None)
    again = shelved(tmp_path, shelf, calls=0 if steps == 2 else 1, resume="auto").train()
    assert (again.run_id, again.stop_reason, again.epoch) == (first.run_id, "completed", 3)
    assert bits(again) == bits(whole)
    assert list(again.history) == list(whole.history)
    lines = [json.loads(line) for line in (again.run_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("context") == "train"] == [1, 2, 3, 4, 5, 6]
    assert len(runs(tmp_path)) == 1


@pytest.mark.parametrize("source", [("latest", "best"), "latest:best"])
def test_weights_and_a_resume_name_its_best(source: Any, whole: Nitro) -> None:
    shelf = whole.plan.experiment.checkpointer
    held = shelf.load("step 4").arrays["params/body/kernel"]
    for named in (source, (whole, "best")):
        warm = shelved(whole.run_dir, shelf, weights=named)
        np.testing.assert_array_equal(np.asarray(warm.params["body"]["kernel"]), held)
        assert (warm.step, warm.checkpoint_source) == (0, "Shelf: step 4")
    branched = shelved(whole.run_dir, shelf, resume=source, calls=2).train()
    assert branched.run_id != whole.run_id
    assert bits(branched) == bits(whole)


def test_the_command_line_leaves_a_pair_to_it_and_reads_its_averages(whole: Nitro, tmp_path: Path) -> None:
    shelf = whole.plan.experiment.checkpointer
    assert find_weights(resolved_of(Shelved(checkpointer=shelf)), "latest:best") is None
    averaging = Shelved(checkpointer=Shelf(), ema=EMA(0.5), max_epochs=1)
    trained = Nitro(averaging, run_dir=tmp_path).train()
    opened = open_handle(Output(), Target(resolved_of(averaging), "latest:latest"))
    jax.tree.map(np.testing.assert_array_equal, opened.params, trained.ema)


def test_restore_best_ends_with_its_best(tmp_path: Path) -> None:
    nitro = shelved(tmp_path, Shelf(), restore_best=True).train()
    held = nitro.plan.experiment.checkpointer.load("step 4").arrays["params/body/kernel"]
    np.testing.assert_array_equal(np.asarray(nitro.params["body"]["kernel"]), held)


def test_a_checkpointer_ranks_by_a_metric_of_its_own(tmp_path: Path) -> None:
    class Ranked(Shelf):
        metric, mode = "acc", "max"

    shelf = Ranked()
    nitro = shelved(tmp_path, shelf).train()
    assert [score for _, _, score in shelf.asked] == [row["acc"] for row in nitro.history]
    with pytest.raises(ConfigError, match="has metric 'acc' and mode None"):
        shelved(tmp_path, type("Half", (Shelf,), {"metric": "acc"})())


def test_what_a_checkpointer_of_ones_own_cannot_give_is_said(whole: Nitro, tmp_path: Path) -> None:
    shelf = whole.plan.experiment.checkpointer
    with pytest.raises(CheckpointNotFoundError, match="Shelf has no latest record"):
        shelved(tmp_path, Shelf(), resume=("latest", "latest"))
    with pytest.warns(UserWarning, match='resume="auto": Shelf has no latest record, starting fresh'):
        assert shelved(tmp_path, Shelf(), resume="auto").step == 0
    with pytest.raises(RunNotFoundError, match="not of 00000000"):
        shelved(tmp_path, shelf, weights="00000000:best")
    for source in ("all:best", ("latest", Average(Last(2)))):
        with pytest.raises(ConfigError, match="keeps no list of runs"):
            shelved(tmp_path, shelf, weights=source)
    with pytest.raises(ConfigError, match="Shelf gives its best and its latest only"):
        shelved(tmp_path, shelf, restore_best=Average(Last(2)))
    broken = type("Broken", (Shelf,), {"load": lambda self, source: {"meta": {}}, "find_best": lambda self: "x"})
    with pytest.raises(HookError, match=r"`Broken.load` returned dict"):
        shelved(tmp_path, broken(), weights=("latest", "best"))
    broken.load = lambda self, source: CheckpointRecord({"step": 2}, {})
    with pytest.raises(HookError, match=r"CheckpointRecord with a dict as metadata") as caught:
        shelved(tmp_path, broken(), weights=("latest", "best"))
    assert "CheckpointRecord.from_json(meta, arrays)" in caught.value.fix


def test_a_checkpointer_may_decline_and_what_it_raises_ends_the_run(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.takes = False
    nitro = shelved(tmp_path / "declined", shelf).train()
    assert (len(shelf.asked), shelf.held, nitro.state_saved) == (3, {}, False)

    class Full(Shelf):
        def save(self, record: Any, *, epoch: int, step: int, score: float | None) -> Any:
            raise BufferError("no room")

    with pytest.raises(BufferError, match="no room"):
        shelved(tmp_path / "full", Full()).train()
    assert [run.status for run in runs(tmp_path / "full")] == ["error"]


class Counted:
    """A data source: the two methods that one needs, each batch a number that forward multiplies."""

    def __init__(self, n: int = 2) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Any:
        for index in range(self.n):
            batch = points(8, index)
            yield batch


def test_a_data_source_of_ones_own_feeds_a_run(tmp_path: Path) -> None:
    nitro = Nitro(Small(), data={"train": Counted(3), "val": Counted()}, run_dir=tmp_path).train()
    assert (nitro.step, nitro.plan.splits["val"].batches) == (3, 2)
    assert set(nitro.data) == {"train", "val"}


def test_a_stop_rule_of_ones_own_ends_a_run(tmp_path: Path) -> None:
    class Enough:
        def should_stop(self, epoch: int, metrics: Any) -> bool:
            return epoch == 2 and "acc" in metrics

    nitro = Nitro(Small(max_epochs=5, early_stop=Enough()), run_dir=tmp_path).train()
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", 2)


class Odd(Selector):
    def select(self, entries: Any, mode: Any = None) -> Any:
        return [entry for entry in entries if entry.epoch % 2]


def test_a_selector_of_ones_own_decides_what_is_kept(tmp_path: Path) -> None:
    Nitro(Small(max_epochs=5, checkpointer=Checkpointer(keep=(Odd(), Last(1)))), run_dir=tmp_path).train()
    assert runs(tmp_path)[0].epochs == (1, 3, 5)


@dataclasses.dataclass(frozen=True)
class SignStep(PerturbRule):
    """Moves each weight by a fixed amount along its gradient."""

    rho: float = 0.01

    def perturbation(self, grads: Any, params: Any, adaptive: Any) -> Any:
        return {name: self.rho * jnp.sign(grad) for name, grad in grads.items()}


def test_a_gradient_rule_of_ones_own_perturbs_the_step(tmp_path: Path) -> None:
    class Perturbed(Small):
        def grad_rule(self) -> Any:
            return SignStep(0.5)

    plain, moved = (Nitro(cls(), run_dir=tmp_path).train() for cls in (Small, Perturbed))
    assert not np.array_equal(np.asarray(plain.params["kernel"]), np.asarray(moved.params["kernel"]))


def test_a_schedule_and_an_optimizer_factory_of_ones_own_give_the_step(tmp_path: Path) -> None:
    def ramp(total: int) -> Any:
        return lambda step: step / total

    def plain(learning_rate: Any, doubled: bool = True) -> Any:
        return optax.sgd(2 * learning_rate if doubled else learning_rate)

    class Ramped(Small):
        def schedules(self) -> Any:
            return {"learning_rate": ramp}

        def optimizer(self, group: str) -> Any:
            return plain

        def loss(self, outputs: Any, *, y: Any) -> Any:
            return jnp.sum(outputs) * 0.0 + self.slope(outputs)

        def slope(self, outputs: Any) -> Any:
            return jnp.mean(outputs, axis=0).sum()

    nitro = Nitro(Ramped(), run_dir=tmp_path)
    before = np.asarray(nitro.params["bias"]).copy()
    nitro.train()
    # The slope of each bias is 1; the rates of the two steps are 1/2 and 1, doubled.
    np.testing.assert_allclose(np.asarray(nitro.params["bias"]), before - 3.0, rtol=1e-6)


def test_a_progress_reporter_and_a_phase_monitor_of_ones_own_are_told(tmp_path: Path) -> None:
    class Told:
        def __init__(self) -> None:
            self.verbs: list[str] = []

        def __getattr__(self, verb: str) -> Any:
            if verb not in ("begin", "step", "end", "phase", "note", "line", "done"):
                raise AttributeError(verb)
            return lambda *args: self.verbs.append(verb)

    told, seen = Told(), []
    before = set_progress_reporter(told)
    try:
        nitro = Nitro(Small(), run_dir=tmp_path)
        nitro.register_phase_monitor(lambda phase, step, epoch, info: seen.append(str(phase)))
        nitro.train()
    finally:
        set_progress_reporter(before)
    assert {"begin", "step", "end", "phase", "done"} <= set(told.verbs)
    assert seen[-2:] == ["Done", "Idle"]
    assert "Training" in seen


def test_an_export_backend_of_ones_own_writes_the_artefact(tmp_path: Path) -> None:
    class Listing:
        suffix = ".txt"

        def write(self, job: Any) -> Path:
            job.target.write_text(", ".join(spec.name for spec in job.served.contract.outputs))
            return job.target

    class Wired(Small):
        def export_inputs(self) -> Any:
            return [ExportSpec("x", "float32", (1, 6))]

        def export_outputs(self) -> Any:
            return [ExportSpec("scores")]

    path = Nitro(Wired(), data={}).export(Listing(), dir=tmp_path)
    assert path.read_text() == "scores"


def lacking(cls: type, *names: str) -> Any:
    """An object with the methods of a class but for some."""
    return type(cls.__name__, (), {n: v for n, v in vars(cls).items() if callable(v) and n not in names})()


LACKING: dict[str, tuple[Any, str]] = {
    "a checkpointer": (lambda: Small(checkpointer=lacking(Shelf, "load", "find_best")), "no load.* and no find_best"),
    "a logger": (lambda: Small(logger=lacking(Lines, "log_other")), "no log_other"),
    "a stop rule": (lambda: Small(early_stop=Shelf()), "no should_stop"),
    "a selector": (lambda: Checkpointer(keep=(type("Nothing", (Selector,), {})(),)), "Nothing is no selector.*select"),
    "a selector to average": (lambda: Average(type("Nothing", (Selector,), {})()), "Nothing is no selector.*select"),
    "a data source": (lambda: Nitro(Small(), data={"train": lacking(Counted, "__len__")}), "__len__"),
    "a gradient rule": (
        lambda: Nitro(type("Bare", (Small,), {"grad_rule": lambda self: type("Rule", (PerturbRule,), {})()})()),
        "Rule has no method `perturbation`",
    ),
    "a schedule": (lambda: Nitro(Small(), schedules={"learning_rate": Shelf()}), "Shelf, which is not a schedule"),
    "an optimizer": (
        lambda: Nitro(type("Bare", (Small,), {"optimizer": lambda self, group: Shelf()})()),
        "the optimizer hook returned Shelf",
    ),
    "a progress reporter": (lambda: set_progress_reporter(Shelf()), "Shelf lacks the methods begin, step"),
    "a phase monitor": (lambda: register_phase_monitor(Shelf()), "Shelf, which cannot be called"),
    "an export backend": (lambda: find_backend(Shelf()), "Shelf has no method `write`"),
    "an export backend's suffix": (
        lambda: find_backend(type("Half", (), {"write": print})()),
        "Half has no attribute `suffix`",
    ),
}


@pytest.mark.parametrize("part", LACKING)
def test_what_a_part_lacks_is_named_before_anything_runs(part: str) -> None:
    make, words = LACKING[part]
    with pytest.raises((NitroError, ValidationError), match=words):
        make()
