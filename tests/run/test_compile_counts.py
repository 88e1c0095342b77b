"""What compiles and what does not, by the counters of the program cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import EMA, Device, GraphConst, Nitro, cache_stats
from nitro_cli.optim import linear
from nitro_cli.run import PhaseName
from tests.tiny import Light, points

REPOSITORY = Path(__file__).resolve().parents[2]


class Averaged(Light):
    """With everything whose value must not be baked in: an average, a clip norm, a Device field."""

    width: GraphConst[int] = 8
    smoothing: Device[float] = 0.0
    ema = EMA(0.9)
    gradient_clip_norm = 1.0
    weight_decay = 0.01
    checkpointer = None
    logger = None

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x / self.width)

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return super().loss(outputs, y=y) * (1 - self.smoothing)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        return Nitro(Averaged(), run_dir=tmp_path_factory.mktemp("counted")).train()


@pytest.fixture
def compiled(trained_once: Nitro) -> Any:
    """Counts what was compiled or loaded, by program, since the test began."""
    before = cache_stats()

    def count() -> dict[str, int]:
        now = cache_stats()
        found = {}
        for name, stats in now.by_name.items():
            then = before.by_name.get(name)
            made = stats.misses + stats.disk_hits - (then.misses + then.disk_hits if then else 0)
            if made:
                found[name] = made
        return found

    return count


@pytest.mark.parametrize("schedule", [0.25, linear(0.0, 0.5)], ids=["constant", "linear"])
def test_a_device_field_that_becomes_scheduled_is_the_same_input(compiled: Any, tmp_path: Path, schedule: Any) -> None:
    nitro = Nitro(Averaged(), run_dir=tmp_path, schedules={"smoothing": schedule}).train()
    assert nitro.device_value("smoothing") > 0
    assert compiled() == {}


def test_a_large_integer_field_reaches_the_program_exactly_scheduled_or_not(tmp_path: Path) -> None:
    seen: list[float] = []

    class Counted(Averaged):
        depth: Device[int] = 2**24 + 1

        def train_metrics(self, outputs: Any, *, y: Any) -> Any:
            return {"odd": self.depth % 2}

    class Heard:
        def log_params(self, params: Any) -> None: ...
        def log_other(self, key: str, value: Any) -> None: ...
        def finish(self, status: str) -> None: ...
        def log_metrics(self, metrics: Any, *, step: int, epoch: int, context: str) -> None:
            seen.extend([metrics["odd"]] if context == "train" else [])

    for schedules in ({}, {"depth": 2**24 + 3}):
        Nitro(Counted(logger=Heard(), max_epochs=1), run_dir=tmp_path, schedules=schedules).train()
    assert seen == [1.0] * 4


def test_a_field_that_is_set_on_a_live_handle_holds_from_its_next_step(tmp_path: Path) -> None:
    nitro = Nitro(Averaged(ema=None), run_dir=tmp_path)
    before = np.array(nitro.params["kernel"])
    # With smoothing 1 the loss and so the gradient are 0.
    nitro.set_device(smoothing=1.0).train()
    np.testing.assert_allclose(nitro.params["kernel"], before * (1 - 1e-3 * 0.01) ** nitro.step, rtol=1e-6)


def test_the_train_program_comes_at_the_first_step_and_nothing_after_the_first_validation(tmp_path: Path) -> None:
    counts: list[tuple[str, int, int, int]] = []

    def watch(phase: Any, step: Any, epoch: Any, info: Any) -> None:
        stats = cache_stats()
        train = stats.by_name.get("train")
        counts.append((str(phase), step or 0, sum(train_counts(train)), stats.hits + stats.misses + stats.disk_hits))

    def train_counts(stats: Any) -> tuple[int, ...]:
        return (stats.hits, stats.misses, stats.disk_hits) if stats else (0,)

    nitro = Nitro(Averaged(max_epochs=3, learning_rate=0.02), run_dir=tmp_path)
    nitro.register_phase_monitor(watch)
    nitro.train()
    trained = {step: train for phase, step, train, _ in counts if phase == "Evaluating"}
    assert list(trained) == [2, 4, 6]
    assert len(set(trained.values())) == 1
    after_first = [total for phase, step, _, total in counts if phase == "Training" and step >= 2]
    assert set(after_first) == {counts[-1][3]}
    assert counts[-1][0] == "Idle"


ANOTHER: dict[str, dict[str, Any]] = {
    "handle": {},
    "Device value": {"smoothing": 0.2},
    "learning rate": {"learning_rate": 0.5},
    "weight decay": {"weight_decay": 0.3},
    "clip norm": {"gradient_clip_norm": 0.01},
    "clip norm, off": {"gradient_clip_norm": 0.0},
    "average": {"ema": EMA(0.5, warmup=False, every=3)},
    "seed": {"seed": 7},
    "number of epochs": {"max_epochs": 4},
    "monitor": {"monitor": ("acc", "min")},
    "amount of logging": {"log_every_n_steps": 5, "autolog_schedules": False},
}


@pytest.mark.parametrize("what", ANOTHER)
def test_another_value_compiles_nothing(what: str, compiled: Any, tmp_path: Path) -> None:
    nitro = Nitro(Averaged(**ANOTHER[what]), run_dir=tmp_path / "elsewhere").train()
    nitro.validate()
    assert compiled() == {}
    assert nitro.programs["train"].source == "memory"


def test_another_graphconst_value_is_another_program(compiled: Any, tmp_path: Path) -> None:
    Nitro(Averaged(width=4, max_epochs=1), run_dir=tmp_path).train()
    assert compiled() == {"train": 1, "eval": 1}  # the weights are the same


def test_a_sweep_of_a_device_value_on_a_live_handle_compiles_nothing(trained_once: Nitro, compiled: Any) -> None:
    trained_once.validate()
    for smoothing in (0.1, 0.2, 0.3):
        trained_once.set_device(smoothing=smoothing)
        trained_once.validate()
    assert compiled() == {}


def test_a_new_batch_shape_is_told_once_with_what_differed(tmp_path: Path) -> None:
    class Varying:
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[Any]:
            rows = points(32, 1)
            for start, length in ((0, 6), (8, 4), (16, 6), (24, 4)):
                yield {name: array[start : start + 8, ...][:, :length] if array.ndim > 1 else array[start : start + 8]
                       for name, array in rows.items()}  # fmt: skip

    class Narrow(Averaged):
        max_epochs = 1
        ema = None

        def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
            import jax.numpy as jnp

            return model(params, state, jnp.pad(x, ((0, 0), (0, 6 - x.shape[1]))))

    with pytest.warns(UserWarning, match="compiled again") as told:
        Nitro(Narrow(), data={"train": Varying()}, run_dir=tmp_path).train()
    told_of_shapes = [str(warning.message) for warning in told if "compiled again" in str(warning.message)]
    assert len(told_of_shapes) == 1
    assert "x: (8, 6)" in told_of_shapes[0]
    assert "(8, 4)" in told_of_shapes[0]


SECOND = textwrap.dedent(
    """
    import json, sys
    from nitro_cli import Nitro, cache_stats, set_progress_reporter
    from tests.tiny import Light
    set_progress_reporter(None)
    Nitro(Light(max_epochs=1), run_dir=sys.argv[1]).train()
    stats = cache_stats()
    print(json.dumps({"misses": stats.misses, "disk": stats.disk_hits, "train": stats.by_name["train"].disk_hits}))
    """
)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NITRO_CACHE_DIR": str(tmp_path / "cache")}

    def counts() -> dict[str, int]:
        done = subprocess.run([sys.executable, "-c", SECOND, str(tmp_path / "runs")], env=env, text=True,
                              capture_output=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    cold, warm = counts(), counts()
    assert cold == {"misses": 4, "disk": 0, "train": 0}
    assert warm == {"misses": 0, "disk": 4, "train": 1}


def test_compiling_is_a_phase_with_the_name_of_the_program(tmp_path: Path) -> None:
    phases: list[str] = []
    nitro = Nitro(Averaged(width=5, max_epochs=1), run_dir=tmp_path)
    nitro.register_phase_monitor(lambda phase, *_: phases.append(f"{phase.name}:{phase.program}"))
    nitro.train()
    compiling = [phase for phase in phases if phase.startswith(PhaseName.COMPILING)]
    assert compiling == ["Compiling:train", "Compiling:eval"]
    assert {"train", "eval"} <= nitro.programs.keys()
    assert nitro.programs["train"].cost.flops
