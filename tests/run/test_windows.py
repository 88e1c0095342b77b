"""Several optimizer steps a call over batches from the host: nothing but the time may tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Checkpointer, Nitro, NoPrefetch, Prefetch, checkpoint_info, read_manifest
from nitro_cli.errors import DivergenceError, NitroWarning
from nitro_cli.experiment import Last
from nitro_cli.run import StepsDone, dispatch, producing, train_events
from nitro_cli.run.recording import Recorder
from nitro_cli.run.windows import window_plan
from tests.tiny import Bare, Quick, points, stop_after

BATCHES = 40
TOLERANCE = 1e-6


class Many(Quick):
    """Dropout, layer state, momentum, an average; forty steps an epoch, each with its line in the log."""

    max_epochs = 2
    log_every_n_steps = 1
    ema = {"beta": 0.8}  # noqa: RUF012
    checkpointer = Checkpointer(keep=(Last(9),))


def arrays(**words: Any) -> ArrayBatches:
    return ArrayBatches(points(8 * BATCHES, 1), 8, shuffle=True, resident=False, **words)


def same(batch: Any, rng: Any) -> Any:
    return batch


FEEDS = {
    "gathered at once": lambda **words: arrays() if not words else Prefetch(arrays(), **words),
    "one producer": lambda **words: Prefetch(arrays(), workers=1, **words),
    "three producers": lambda **words: Prefetch(arrays(), workers=3, host_batches=9, **words),
    "through a transform": lambda **words: Prefetch(arrays(transform=same), workers=2, **words),
}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Trains in a folder of the name, with so many seconds for a call; gives the handle and the sizes of its calls."""
    rows = dispatch.Pending.rows

    def train(name: str, train: Any, cls: Any = Many, until: int | None = None, **words: Any) -> tuple[Nitro, list]:
        monkeypatch.setattr(dispatch, "SECONDS", words.pop("seconds", 60.0))
        data = {"train": train} | ({} if cls is Shapeless else {"val": ArrayBatches(points(19, 2), 8)})
        nitro = Nitro(cls(), data=data, run_dir=tmp_path / name, **words)
        if until is not None:
            stop_after(nitro, until)
        sizes: list[int] = []

        def counted(pending: dispatch.Pending) -> np.ndarray:
            sizes.append(pending.count)
            return rows(pending)

        monkeypatch.setattr(dispatch.Pending, "rows", counted)
        return nitro.train(), sizes

    return train


def row(nitro: Nitro) -> dict[str, Any]:
    """What the report says of calls, but for what follows the clock."""
    (found,) = [row for band in nitro.report.bands if band.title == "dispatch" for row in band.rows]
    return {name: value for name, value in found.items() if name != "now"}


def assert_close(one: Nitro, other: Nitro) -> None:
    for ours, theirs in zip(jax.tree.leaves(one.train_state), jax.tree.leaves(other.train_state), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=TOLERANCE)


def test_windows_of_any_size_are_the_same_run(trained: Any, log_lines: Any) -> None:
    alone, ones = trained("1", FEEDS["gathered at once"](window=1))
    assert set(ones) == {1}
    assert row(alone) == {"steps in one call": "1", "because": "window=1"}
    for window, most in ((2, 2), (7, 7), (None, 32)):
        many, sizes = trained(f"{window}", FEEDS["gathered at once"](window=window))
        assert max(sizes) == most
        assert sum(sizes) == 2 * BATCHES
        assert row(many)["steps in one call"] == f"up to {most}"
        assert_close(many, alone)
        ours, theirs = log_lines(many, "train"), log_lines(alone, "train")
        assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, 2 * BATCHES + 1))
        losses = [[line["loss"] for line in lines] for lines in (ours, theirs)]
        np.testing.assert_allclose(*losses, atol=TOLERANCE)


def test_however_the_batches_come_and_the_steps_are_grouped_no_bit_differs(
    trained: Any, bits: Any, log_lines: Any
) -> None:
    first, sizes = trained("first", FEEDS["gathered at once"]())
    assert max(sizes) == 32
    for name, feed in FEEDS.items():
        for seconds in (0.0, 60.0):
            other, _ = trained(f"{name} {seconds}", feed(), seconds=seconds)
            assert bits(other.train_state) == bits(first.train_state)
            assert log_lines(other, "train", "validate") == log_lines(first, "train", "validate")


@pytest.mark.parametrize("until", [1, 23, 40, 66])
@pytest.mark.parametrize("feed", ["gathered at once", "three producers"])
def test_a_run_stopped_inside_a_window_resumes_bit_for_bit(
    feed: str, until: int, trained: Any, bits: Any, log_lines: Any
) -> None:
    whole, _ = trained("whole", FEEDS[feed]())
    stopped, _ = trained("stopped", FEEDS[feed](), until=until)
    assert (stopped.step, stopped.state_saved) == (until, True)
    resumed, _ = trained("stopped", FEEDS[feed](), resume="auto")
    assert bits(resumed.train_state) == bits(whole.train_state)
    assert log_lines(resumed, "train", "validate") == log_lines(whole, "train", "validate")


class Stateful:
    """Iterates by itself, and says after each batch where it stands."""

    skips_on_reentry = False

    def __init__(self) -> None:
        self.batches = list(arrays())
        self.entered: list[Any] = []

    def __len__(self) -> int:
        return len(self.batches)

    def iterate(self, epoch: int, seed: int, start: int, state: Any) -> tuple[Iterator[Any], int]:
        self.entered.append((start, state))
        return Walk(self.batches, 0 if state is None else state["at"]), 0 if state is None else state["at"]


class Walk:
    def __init__(self, batches: list[Any], at: int) -> None:
        self.batches, self.at = batches, at

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]

    def state(self) -> dict[str, int]:
        return {"at": self.at}


def test_a_source_with_a_state_of_its_own_is_entered_again_behind_the_last_step(trained: Any, bits: Any) -> None:
    whole, sizes = trained("whole", Stateful())
    assert max(sizes) > 1
    trained("stopped", Stateful(), until=13)
    again = Stateful()
    resumed, _ = trained("stopped", again, resume="auto")
    assert again.entered[-2] == (13, {"at": 13})
    assert bits(resumed.train_state) == bits(whole.train_state)


def test_a_call_ends_where_a_checkpoint_is_due(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = Recorder.save

    def noted(recorder: Recorder, state: Any, **words: Any) -> Any:
        saved.append(int(state.train.step))
        return save(recorder, state, **words)

    monkeypatch.setattr(Recorder, "save", noted)
    _, sizes = trained("run", arrays(), checkpoint_every_n_steps=7, max_epochs=1)
    assert saved == [7, 14, 21, 28, 35, 40]
    assert max(sizes) <= 7


def test_accumulation_takes_whole_steps_out_of_a_window(trained: Any) -> None:
    one, ones = trained("one", Prefetch(arrays(), window=1), accum=4)
    many, sizes = trained("many", arrays(), accum=4)
    assert set(ones) == {1}
    assert max(sizes) > 1
    assert many.step == one.step == 20
    assert_close(many, one)
    few, _ = trained("few", Prefetch(arrays(), window=7), accum=4)
    assert row(few) == {"steps in one call": "1", "because": "window=7 holds no two steps of 4 batches"}


def test_a_divergence_inside_a_window_names_its_step_and_batch(trained: Any, bits: Any, log_lines: Any) -> None:
    good, _ = trained("good", ArrayBatches(points(8 * BATCHES, 1), 8, resident=False), Bare, until=25)
    sick = points(8 * BATCHES, 1)
    sick["x"][8 * 25 + 3, 2] = np.nan
    nitro = Nitro(Bare(), data={"train": ArrayBatches(sick, 8, resident=False)}, run_dir=good.run_dir / "again")
    with pytest.raises(DivergenceError, match="step 26, epoch 1, batch 25") as raised:
        nitro.train()
    assert "batch field x (1 of 48 values)" in str(raised.value)
    assert bits(nitro.params) == bits(good.params)
    assert (nitro.step, int(nitro.train_state.step)) == (25, 25)
    assert [line["step"] for line in log_lines(nitro, "train")] == list(range(1, 26))


def test_the_mode_is_in_the_record_and_a_resumed_run_keeps_it(trained: Any) -> None:
    alone, _ = trained("one", Prefetch(arrays(), window=1), max_epochs=1)
    resumed, sizes = trained("one", arrays(), resume="auto")
    assert row(resumed) == {"steps in one call": "1", "because": "as the run began"}
    assert set(sizes) == {1}
    many, _ = trained("many", Prefetch(arrays(), window=7), max_epochs=1)
    entries = [read_manifest(nitro.run_dir).entries[0] for nitro in (alone, many)]
    metas = [checkpoint_info(n.run_dir / e.path).meta for n, e in zip((alone, many), entries, strict=True)]
    assert [meta.steps_per_dispatch for meta in metas] == [1, 7]
    back, _ = trained("many", Prefetch(arrays(), window=1), resume="auto")
    assert "the run began with several" in row(back)["because"]


class Pausing:
    """Each batch but the first waits until the step of the one before was dispatched."""

    max_workers = 1

    def __init__(self, batches: int) -> None:
        self.batches = list(ArrayBatches(points(8 * batches, 1), 8))
        self.steps = threading.Semaphore(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def begin_epoch(self, epoch: int, seed: int) -> None:
        return None

    def batch_at(self, index: int, plan: None) -> Any:
        assert index == 0 or self.steps.acquire(timeout=120), "the batches before are held back"
        return self.batches[index]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_slow_source_is_not_held_back_every_step_is_taken_as_its_batch_comes(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Pausing(6)
    nitro = Nitro(Bare(logger=None, checkpointer=None), data={"train": source}, run_dir=tmp_path, max_epochs=1)
    if ahead:  # as on a device that batches are moved to
        monkeypatch.setattr("nitro_cli.run.devices.Placement.on_host", False)
    source.steps = threading.Semaphore(0)
    steps = []
    for event, state in train_events(nitro.plan, nitro.run_state, nitro.compiler, nitro.stop):
        steps.append(state.position.step)
        if isinstance(event, StepsDone):
            source.steps.release()
    assert steps[-1] == 6
    assert row(nitro)["steps in one call"] == "up to 32"


class Shapeless(Bare):
    """A mean over the points of a sample, however many there are."""

    max_epochs = 1

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        return model(params, state, x.mean(axis=1))


class Varying:
    """Forty batches of which one has samples of another length."""

    def __init__(self, odd: int) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 40

    def begin_epoch(self, epoch: int, seed: int) -> None:
        return None

    def batch_at(self, index: int, plan: None) -> Any:
        batch = points(8, index)
        return {"x": np.repeat(batch["x"][:, None], 5 if index == self.odd else 4, axis=1), "y": batch["y"]}


@pytest.mark.parametrize("accum", [1, 2])
def test_batches_of_varying_shapes_are_stepped_one_by_one_from_the_first_on_that_differs(
    accum: int, trained: Any, bits: Any
) -> None:
    with pytest.warns(NitroWarning, match=r"another shape: x: \(8, 4, 6\) <f4 before, \(8, 5, 6\) <f4 now"):
        whole, sizes = trained("whole", Varying(31), Shapeless, accum=accum)
    assert row(whole) == {"steps in one call": "1", "because": "the shapes of the batches vary"}
    assert max(sizes) > 1
    assert sum(sizes) == 40 // accum
    alone, _ = trained("alone", Prefetch(Varying(31), window=1), Shapeless, accum=accum)
    assert_close(whole, alone)
    for until in (12, 17):
        trained(f"{until}", Varying(31), Shapeless, accum=accum, until=until)
        resumed, _ = trained(f"{until}", Varying(31), Shapeless, accum=accum, resume="auto")
        assert bits(resumed.train_state) == bits(whole.train_state)


class Wide(Bare):
    """Numbers that the device narrows."""

    max_epochs = 1

    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        assert x.dtype == jnp.float32
        return model(params, state, x)


def test_wide_numbers_reach_the_steps_as_they_do_one_by_one(trained: Any) -> None:
    wide = {"x": points(80, 1)["x"].astype(np.float64) / 3, "y": points(80, 1)["y"].astype(np.int64)}
    alone, _ = trained("alone", Prefetch(ArrayBatches(wide, 8), window=1), Wide)
    many, sizes = trained("many", ArrayBatches(wide, 8, resident=False), Wide)
    assert max(sizes) > 1
    assert_close(many, alone)


class OnHost(Many):
    def train_metrics(self, outputs: Any, *, y: Any) -> dict[str, float]:
        return {"hits": float((outputs.argmax(-1) == y).mean())}

    def metrics_residency(self, hook: str) -> str:
        return "host"


class Convolving(Bare):
    def forward(self, model: Any, params: Any, state: Any, *, x: jax.Array) -> Any:
        smooth = jax.vmap(lambda row: jnp.convolve(row, jnp.ones(3), mode="same"))(x)
        return model(params, state, smooth)


class Manual(Bare):
    """The whole step by the experiment."""

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return {}

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda p: self.loss(model(p, state, x)[0], y=y))(params)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), state, opt_state, {"seen": x.mean()}


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(OnHost, "train metrics are computed on the host"), (Convolving, "a convolution in a loop is slow on cpu")],
)
def test_what_cannot_share_a_call_is_said(cls: Any, reason: str, trained: Any) -> None:
    nitro, sizes = trained("run", arrays(), cls, max_epochs=1)
    assert row(nitro) == {"steps in one call": "1", "because": reason}
    assert set(sizes) == {1}


def test_a_step_by_the_experiment_goes_in_windows_too(trained: Any, log_lines: Any) -> None:
    alone, _ = trained("alone", Prefetch(arrays(), window=1), Manual, max_epochs=1, log_every_n_steps=1)
    many, sizes = trained("many", arrays(), Manual, max_epochs=1, log_every_n_steps=1)
    assert max(sizes) > 1
    assert_close(many, alone)
    seen = [[line["seen"] for line in log_lines(nitro, "train")] for nitro in (many, alone)]
    np.testing.assert_allclose(*seen, atol=TOLERANCE)


def test_a_window_is_as_large_as_the_report_says_and_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 8 rows of 6 float32 and one int32: 224 bytes a batch.
    monkeypatch.setattr("nitro_cli.run.windows.WINDOW_BYTES", 224 * 5 + 223)
    nitro = Nitro(Bare(), data={"train": arrays()}, run_dir=tmp_path, max_epochs=1).train()
    assert row(nitro)["window"] == "5 batches, 1,120 bytes"
    assert row(nitro)["steps in one call"] == "up to 5"
    monkeypatch.setattr("nitro_cli.run.windows.WINDOW_BYTES", 400)
    assert window_plan(nitro.plan) == "the batches of a step, 224 bytes, are enough for a call"


def test_what_is_ready_is_read_and_at_most_two_calls_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(ready: bool) -> list[int]:
        monkeypatch.setattr(dispatch.Pending, "ready", ready)
        data = {"train": NoPrefetch(ArrayBatches(points(64, 1), 8))}
        nitro = Nitro(Bare(logger=None, checkpointer=None), data=data, run_dir=tmp_path, max_epochs=1)
        unread, steps = [], []
        for event, state in train_events(nitro.plan, nitro.run_state, nitro.compiler, nitro.stop):
            if isinstance(event, StepsDone):
                steps += range(event.first, event.first + len(event.numbers))
                unread.append(state.position.step - len(steps))
        assert steps == list(range(1, 9))
        return unread

    assert read(ready=False) == [1, 2, 2, 2, 2, 2, 2, 2, 1, 0]
    assert read(ready=True) == [0] * 8


class Built:
    """Stands for a stream, of which only what it built is asked."""

    built = (0, 0.0)


@pytest.mark.parametrize(("batch_seconds", "pays"), [(0.001, False), (0.004, False), (0.006, True), (0.05, True)])
def test_producers_are_used_where_a_batch_takes_more_than_half_a_step(
    batch_seconds: float, pays: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nitro = Nitro(Bare(), data={"train": arrays()}, run_dir=tmp_path)
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    found, stream, switched = producing.Producing(nitro.plan.splits["train"], True), Built(), []
    for step in range(1, 101):
        now += max(0.01, batch_seconds)
        stream.built = (step, step * batch_seconds)
        switched.append(found.stepped(stream))
    found.ended(stream)
    assert found.threads is pays
    assert any(switched) is pays
    asked = producing.Producing(Nitro(Bare(), data={"train": Prefetch(arrays(), workers=1)}).plan.splits["train"], True)
    stream.built = (0, 0.0)
    assert not any(asked.stepped(stream) for _ in range(3))
    assert asked.threads is None


def test_an_epoch_goes_on_with_producers_once_they_pay(
    trained: Any, bits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = trained("whole", arrays())
    threads: list[int] = []

    class Noted(ArrayBatches):
        def fill(self, *args: Any) -> None:
            threads.append(threading.get_ident())
            super().fill(*args)

    monkeypatch.setattr(producing, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(producing.Producing, "_decide", lambda self, stream, now: setattr(self, "threads", True))
    source = Noted(points(8 * BATCHES, 1), 8, shuffle=True, resident=False)
    nitro, sizes = trained("switched", source)
    assert threads
    assert set(threads) == {threading.get_ident()}
    assert len(threads) < len(sizes)
    assert bits(nitro.train_state) == bits(whole.train_state)
