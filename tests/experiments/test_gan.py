"""The least-squares GAN that comes with nitro: whose gradient reaches whom, what compiles, coverage, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.gan import PLACES, SIDE, BlobGAN, templates
from nitro_cli import Nitro, cache_stats, set_progress_reporter
from nitro_cli.cli.app import app

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = f"{REPOSITORY / 'experiments' / 'gan.py'}:BlobGAN"
SMALL = {"width": 8, "latent": 4, "pictures": 80, "batch_size": 20, "max_epochs": 2}
NETWORKS = ("generator", "discriminator")
B1 = 0.5


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    previous = set_progress_reporter(None)
    yield
    set_progress_reporter(previous)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory."""
    return tmp_path_factory.mktemp("gan")


@pytest.fixture(scope="module")
def trained(folder: Path) -> SimpleNamespace:
    """A short run of narrow networks, with what was compiled by the end of each phase."""
    counts: dict[str, list[int]] = {}

    def watch(phase: Any, step: Any, epoch: Any, info: Any) -> None:
        stats = cache_stats()
        counts.setdefault(str(phase), []).append(stats.hits + stats.misses + stats.disk_hits)

    nitro = Nitro(BlobGAN(**SMALL), run_dir=folder / "runs" / "BlobGAN")
    nitro.register_phase_monitor(watch)
    nitro.train()
    return SimpleNamespace(nitro=nitro, counts=counts)


class InDouble:
    """One step of the experiment with both rates at 0: what it reports, and the gradients that its Adams were given."""

    def __init__(self) -> None:
        self.e = BlobGAN(**SMALL)
        rng = np.random.default_rng(3)
        built = self.e.build_model(jax.random.key(1))[1]
        self.params = jax.tree.map(lambda w: np.asarray(w, np.float64) + 0.1 * rng.normal(size=w.shape), built)
        self.image = rng.uniform(size=(6, SIDE * SIDE))
        self.step = jax.jit(self._step)

    def _step(self, params: Any) -> tuple[dict[str, Any], Any]:
        model = SimpleNamespace(key=jax.random.key(2))
        states = self.e.setup_optimizers(model, params, {})
        for state in states.values():
            state.hyperparams["learning_rate"] = 0.0
        _, _, _, states, stats = self.e.train_step(model, params, states, {}, image=self.image)
        moments = {name: state.inner_state[0].mu for name, state in states.items()}
        return stats, jax.tree.map(lambda mu: mu / (1 - B1), moments)


@pytest.fixture(scope="module")
def one() -> InDouble:
    return InDouble()


@pytest.mark.parametrize("network", NETWORKS)
def test_each_network_moves_along_the_finite_difference_of_its_own_loss_alone(network: str, one: InDouble) -> None:
    own, other = ("g_loss", "d_loss") if network == "generator" else ("d_loss", "g_loss")
    with jax.enable_x64(True):
        _, gradients = one.step(one.params)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            along = jax.tree.map(lambda w, rng=rng: rng.normal(size=w.shape), one.params[network])
            size = 1e-6
            ends = [
                one.step({**one.params, network: jax.tree.map(lambda w, d, s=s: w + s * d, one.params[network], along)})
                for s in (size, -size)
            ]
            slopes = {name: float(ends[0][0][name] - ends[1][0][name]) / (2 * size) for name in (own, other)}
            parts = jax.tree.map(lambda g, d: float(np.sum(np.asarray(g) * d)), gradients[network], along)
            assert sum(jax.tree.leaves(parts)) == pytest.approx(slopes[own], rel=1e-5)
            # the other loss depends on this network too: had its gradient come through, the slopes would add
            assert abs(slopes[other]) > 1e-2 * abs(slopes[own])


def test_the_losses_are_the_least_squares_of_the_paper(one: InDouble) -> None:
    score = 0.3
    with jax.enable_x64(True):
        blind = jax.tree.map(np.zeros_like, one.params["discriminator"])
        blind[-1]["bias"] = np.full_like(blind[-1]["bias"], score)
        stats, _ = one.step({**one.params, "discriminator": blind})
    assert float(stats["d_loss"]) == pytest.approx(0.5 * (score - 1) ** 2 + 0.5 * score**2, rel=1e-12)
    assert float(stats["g_loss"]) == pytest.approx(0.5 * (score - 1) ** 2, rel=1e-12)


@pytest.mark.parametrize("still", NETWORKS)
def test_a_network_at_rate_zero_stays_bit_for_bit_while_the_other_trains(still: str, tmp_path: Path) -> None:
    rates = {f"opt.{name}.learning_rate": 0.0 if name == still else 1e-3 for name in NETWORKS}
    nitro = Nitro(BlobGAN(**SMALL), run_dir=tmp_path, schedules={**rates, "noise": 0.1}, logger=None, checkpointer=None)
    before = jax.tree.map(np.asarray, nitro.params)
    nitro.train()
    same = {
        name: [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, pair), strict=True)]
        for name, pair in {name: (before[name], nitro.params[name]) for name in NETWORKS}.items()
    }
    (moving,) = set(NETWORKS) - {still}
    assert all(same[still])
    assert not any(same[moving])


def test_nothing_compiles_after_the_first_step_and_the_first_validation(trained: SimpleNamespace) -> None:
    assert trained.nitro.step == 8
    counts = trained.counts
    first_epoch, second_epoch = counts["Training"]
    assert counts["Evaluating"][0] == first_epoch + 1, "the train program, asked for once"
    assert counts["Idle"][-1] == second_epoch


def test_schedules_are_absolute_and_logged_by_path(trained: SimpleNamespace) -> None:
    nitro = trained.nitro
    lines = [json.loads(line) for line in (nitro.run_path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line.get("context") == "train"]
    assert {"loss", "g_loss", "d_loss", "schedule/generator/learning_rate", "schedule/noise"} <= set(train[0])
    total, peak, least = 8, 1e-3, 3e-4
    wanted = [peak + (least - peak) * step / total for step in range(total)]
    for name in NETWORKS:
        logged = [line[f"schedule/{name}/learning_rate"] for line in train]
        assert logged == pytest.approx(wanted, rel=1e-6)
        held = nitro.train_state.opt[name].hyperparams["learning_rate"]
        assert float(held) == pytest.approx(wanted[-1], rel=1e-6)


def test_the_report_says_where_each_schedule_bound(trained: SimpleNamespace) -> None:
    (band,) = (band for band in trained.nitro.report.bands if band.title == "bindings")
    rows = {row["key"]: row for row in band.rows}
    assert rows["opt.generator.learning_rate"]["bound"] == "generator/learning_rate"
    assert rows["noise"]["bound"] == "device/noise"
    assert {row["origin"] for row in rows.values()} == {"class"}


def covered(pictures: np.ndarray) -> dict[str, Any]:
    e = BlobGAN()
    values = e.metrics(pictures, z=np.zeros((len(pictures), 1)))
    quality = values["quality"].value / values["quality"].count
    return e.finalize_metrics({"places": values["places"].value, "quality": quality}, "val")


def test_coverage_counts_places_that_pictures_are_close_to() -> None:
    known = templates()
    assert covered(np.repeat(known, 5, axis=0)) == {"covered": PLACES, "quality": 1.0, "even": 1.0}
    assert covered(np.repeat(known[:3], 5, axis=0)) == {"covered": 3, "quality": 1.0, "even": 3 / PLACES}
    noise = np.random.default_rng(0).uniform(size=(40, SIDE * SIDE)).astype(np.float32)
    assert covered(noise)["quality"] < 0.05
    half = covered(np.concatenate([np.repeat(known, 5, axis=0), noise]))
    assert (half["covered"], half["even"]) == (PLACES, pytest.approx(0.5, abs=0.03))


def test_the_real_pictures_cover_every_place() -> None:
    real = BlobGAN().build_data(None)["val"]
    result = covered(real.arrays["image"])
    assert result["covered"] == PLACES
    assert result["quality"] > 0.95
    assert result["even"] > 0.9


def test_render_writes_a_picture_per_sample(
    trained: SimpleNamespace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    words = ["render", "runs/BlobGAN", "--experiment", NAME, "--predictions", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words, prog_name="nitro")
    assert result.exit_code == 0, result.output
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in paths] == [f"val_{i:03d}.png" for i in range(20)]
    assert {path.read_bytes()[:8] for path in paths} == {b"\x89PNG\r\n\x1a\n"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [42, 1, 2])
def test_the_baseline_covers_seven_places_or_more(seed: int, tmp_path: Path) -> None:
    nitro = Nitro.from_preset(BlobGAN, "baseline", seed=seed, run_dir=tmp_path).train()
    assert nitro.metrics["covered"] >= 7, nitro.metrics
    assert nitro.metrics["quality"] > 0.5, nitro.metrics
    best = Nitro(BlobGAN(), weights=nitro.best["checkpoint"], load_ema=True).validate()
    assert best["covered"] >= 7, best
