"""`derive`: below what a person set, above the class default; what was used is what is recorded, with its origin."""

from __future__ import annotations

import json
import tomllib
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import (
    ArrayBatches,
    Checkpointer,
    Device,
    Experiment,
    GraphConst,
    Nitro,
    NitroWarning,
    checkpoint_info,
    read_manifest,
    train,
)
from nitro_cli.errors import ConfigError
from nitro_cli.registry import read_config, resolve


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"


class Weighted(Experiment):
    """A loss that is `pos_weight`, times `factor`, plus `bonus`: the loss of the first step says what was used."""

    pos_weight: Device[float] = 2.0
    factor: GraphConst[int] = 1
    bonus: float = 0.0
    vocabulary: Any = None
    sizes: tuple[int, ...] = ()
    kind: Kind = Kind.SMALL
    scale: Device[Any] = 1.0

    logger = None
    max_epochs = 1

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {"train": ArrayBatches({"x": np.full((4, 1), 7.75, np.float32)}, 4)}

    def derive(self, data: Any) -> dict[str, Any]:
        largest = data["train"].arrays["x"].max()
        return {
            "pos_weight": largest,
            "factor": 3,
            "bonus": np.float64(0.5),
            "vocabulary": np.arange(5000.0),
            "sizes": (4, 1),
            "kind": Kind.LARGE,
            "scale": jnp.array([1.0, 2.0]),
        }

    def build_model(self, rng: Any) -> Any:
        return (lambda params, state, x: (x, state)), {"w": jnp.ones(())}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return self.pos_weight * self.factor + 0.0 * jnp.mean(outputs)


def recorded(nitro: Nitro) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """config.toml, run.json and the newest record's metadata."""
    assert nitro.run_path is not None
    config = tomllib.loads((nitro.run_path / "config.toml").read_text())
    return (
        config,
        json.loads((nitro.run_path / "run.json").read_text()),
        checkpoint_info(newest_record(nitro)).meta.as_json(),
    )


def newest_record(nitro: Nitro) -> Path:
    return nitro.run_dir / max(read_manifest(nitro.run_dir).entries, key=lambda entry: entry.step).path


def used(nitro: Nitro) -> float:
    return float(nitro.history[-1]["train_loss"])


def test_a_value_that_nobody_set_is_derived_used_and_recorded_as_derived(tmp_path: Path) -> None:
    nitro = train(Weighted(), run_dir=tmp_path)
    assert used(nitro) == 7.75 * 3
    config, run, meta = recorded(nitro)
    assert (config["fields"]["pos_weight"], config["fields"]["factor"], config["fields"]["bonus"]) == (7.75, 3, 0.5)
    for origins in (config["origins"], run["origins"], meta["origins"]):
        assert origins["pos_weight"] == origins["factor"] == origins["bonus"] == "derived"
        assert (origins["learning_rate"], origins["run_dir"]) == ("default", "keyword: run_dir")
    assert run["fields"]["device"]["pos_weight"] == meta["fields"]["device"]["pos_weight"] == 7.75
    assert meta["fields"]["graphconst"]["factor"] == 3


@pytest.mark.parametrize("chosen", [1.0, 50.0])
def test_a_keyword_of_the_class_wins_and_setup_says_both_values(tmp_path: Path, chosen: float) -> None:
    with pytest.warns(NitroWarning, match=rf"pos_weight is {chosen} \(keyword pos_weight\), and `derive` returns 7.75"):
        nitro = Nitro(Weighted(pos_weight=chosen, factor=3), run_dir=tmp_path)
    rows = {row["field"]: row for row in nitro.report.as_json()["derived"]}
    assert (rows["pos_weight"]["used"], rows["pos_weight"]["derived"]) == (chosen, 7.75)
    assert (rows["bonus"]["origin"], rows["pos_weight"]["origin"]) == ("derived", "keyword pos_weight")
    nitro.train()
    assert used(nitro) == chosen * 3
    config, run, meta = recorded(nitro)
    assert config["fields"]["pos_weight"] == run["fields"]["device"]["pos_weight"] == chosen
    assert config["origins"]["pos_weight"] == meta["origins"]["pos_weight"] == "keyword: pos_weight"


def test_a_value_that_was_set_to_what_is_derived_is_nothing_to_tell(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        Nitro(Weighted(pos_weight=7.75, sizes=(4, 1)), run_dir=tmp_path)


def test_every_way_of_setting_wins_over_derive_and_over_the_class_default(tmp_path: Path) -> None:
    folder = tmp_path / "presets" / "Weighted"
    folder.mkdir(parents=True)
    (folder / "heavy.toml").write_text("[fields]\npos_weight = 50.0\n")
    ways: dict[str, dict[str, Any]] = {
        "set: --set pos_weight": {"sets": ["pos_weight=50.0"]},
        "preset: heavy (presets/Weighted/heavy.toml:2)": {"preset": "heavy", "cwd": tmp_path},
        "keyword: pos_weight": {"keywords": {"pos_weight": 50.0}},
    }
    for origin, words in ways.items():
        resolved = resolve(Weighted, **{"env": {}, "project": None, **words})
        with pytest.warns(NitroWarning, match="pos_weight is 50.0"):
            nitro = Nitro(resolved, run_dir=tmp_path / "runs")
        assert nitro.device_value("pos_weight") == 50.0
        assert nitro.resolved.recorded_origins()["pos_weight"] == origin


class Knob(Weighted):
    """Derives a run knob."""

    def derive(self, data: Any) -> dict[str, Any]:
        return {"max_epochs": 3, "checkpointer": Checkpointer(keep=("last(3)",))}


def test_a_derived_run_knob_yields_to_flag_environment_and_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.nitro]\nmax_epochs = 2\n")
    ways: dict[str, dict[str, Any]] = {
        "flag: --max-epochs": {"flags": {"max_epochs": 2}},
        "environment: NITRO_MAX_EPOCHS": {"env": {"NITRO_MAX_EPOCHS": "2"}},
        "project: tool.nitro (pyproject.toml:2)": {"project": tmp_path / "pyproject.toml"},
    }
    for origin, words in ways.items():
        with pytest.warns(NitroWarning, match="max_epochs is 2"):
            nitro = Nitro(resolve(Knob, **{"env": {}, "project": None, **words}), run_dir=tmp_path)
        assert (nitro.experiment.max_epochs, nitro.resolved.recorded_origins()["max_epochs"]) == (2, origin)
    assert Nitro(Knob(), run_dir=tmp_path).experiment.max_epochs == 3
    with pytest.warns(NitroWarning, match="max_epochs is 2"):
        assert Nitro(Knob(), max_epochs=2, run_dir=tmp_path).experiment.max_epochs == 2


def test_a_part_that_was_set_keeps_the_whole_field(tmp_path: Path) -> None:
    resolved = resolve(Knob, sets=["checkpointer.metric=loss", "checkpointer.mode=min"], env={}, project=None)
    with pytest.warns(NitroWarning, match="checkpointer is"):
        nitro = Nitro(resolved, run_dir=tmp_path)
    assert nitro.experiment.checkpointer.metric == "loss"
    assert nitro.resolved.recorded_origins()["checkpointer.metric"] == "set: --set checkpointer.metric"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Nitro]:
    folder = tmp_path_factory.mktemp("runs")
    derived = train(Weighted(), run_dir=folder / "derived")
    with pytest.warns(NitroWarning, match="pos_weight is 50"):
        chosen = train(Weighted(pos_weight=50.0), run_dir=folder / "chosen")
    return {"derived": derived, "chosen": chosen}


def test_a_resume_from_the_record_keeps_what_was_set_and_derives_the_rest_again(runs: dict[str, Nitro]) -> None:
    for name, value in (("derived", 7.75), ("chosen", 50.0)):
        path = runs[name].run_path
        assert path is not None
        resolved = read_config(path / "config.toml", cls=Weighted)
        assert resolved.experiment.pos_weight == value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NitroWarning)
            again = Nitro(resolved, resume="latest:latest", max_epochs=2)
        assert again.device_value("pos_weight") == value
        assert again.resolved.recorded_origins()["pos_weight"] == {"derived": "derived"}.get(
            name, "keyword: pos_weight"
        )
        np.testing.assert_array_equal(again.experiment.vocabulary, np.arange(5000.0))


def test_an_override_of_a_derived_value_wins_on_a_resume(runs: dict[str, Nitro]) -> None:
    path = runs["derived"].run_path
    assert path is not None
    with pytest.warns(NitroWarning, match="pos_weight is 9.0"):
        again = Nitro(read_config(path / "config.toml", ["pos_weight=9.0"], cls=Weighted), resume="latest:latest")
    assert again.device_value("pos_weight") == 9.0


def test_derive_sees_the_class_default_again_and_not_what_it_returned(tmp_path: Path) -> None:
    class Doubling(Weighted):
        def derive(self, data: Any) -> dict[str, Any]:
            return {"pos_weight": self.pos_weight * 2}

    path = train(Doubling(), run_dir=tmp_path).run_path
    assert path is not None
    again = Nitro(read_config(path / "config.toml", cls=Doubling), resume="auto", max_epochs=2)
    assert again.device_value("pos_weight") == 4.0


def test_weights_bring_the_derived_values_along_below_what_is_set_here(runs: dict[str, Nitro], tmp_path: Path) -> None:
    source = str(newest_record(runs["derived"]))
    for weights in (source, runs["derived"]):
        warm = Nitro(Weighted(), weights=weights, data={}, run_dir=tmp_path)
        assert warm.device_value("pos_weight") == 7.75
        assert (warm.experiment.sizes, warm.experiment.kind, warm.experiment.bonus) == ((4, 1), Kind.LARGE, 0.5)
        np.testing.assert_array_equal(warm.device_value("scale"), [1.0, 2.0])
        np.testing.assert_array_equal(warm.experiment.vocabulary, np.arange(5000.0))
        with pytest.warns(NitroWarning, match="pos_weight is 1.0"):
            assert Nitro(Weighted(pos_weight=1.0), weights=weights, data={}).device_value("pos_weight") == 1.0
    # What `derive` said is kept beside what was set, for whoever sets nothing.
    assert Nitro(Weighted(), weights=str(newest_record(runs["chosen"])), data={}).device_value("pos_weight") == 7.75


def test_weights_of_an_experiment_that_derives_nothing_leave_derive_its_turn(tmp_path: Path) -> None:
    class Plain(Weighted):
        def derive(self, data: Any) -> dict[str, Any]:
            return {}

    plain = train(Plain(), run_dir=tmp_path)
    assert Nitro(Weighted(factor=3), weights="latest:latest", run_dir=tmp_path).device_value("pos_weight") == 7.75
    assert plain.device_value("pos_weight") == 2.0


def test_a_derived_value_that_no_record_can_hold_is_asked_for_by_name(runs: dict[str, Nitro]) -> None:
    path = runs["derived"].run_path
    assert path is not None
    with pytest.raises(ConfigError, match="vocabulary was derived from data"):
        Nitro(read_config(path / "config.toml", cls=Weighted), data={})


def test_the_experiment_of_a_handle_is_derived_anew(runs: dict[str, Nitro]) -> None:
    again = Nitro(runs["derived"].experiment)
    assert again.resolved.recorded_origins()["pos_weight"] == "derived"


def test_a_record_without_origins_trains_on_with_what_was_derived(runs: dict[str, Nitro], tmp_path: Path) -> None:
    path = runs["derived"].run_path
    assert path is not None
    text = (path / "config.toml").read_text()
    head, _, rest = text.partition("[origins]")
    old = tmp_path / "config.toml"
    old.write_text(head.replace("pos_weight = 7.75", "pos_weight = 50.0") + rest[rest.index("[unwritten") :])
    again = Nitro(read_config(old, ["vocabulary=[1.0]"], cls=Weighted), resume="latest:latest", max_epochs=2)
    assert again.device_value("pos_weight") == 7.75


def test_weights_of_a_live_handle_derive_from_the_data_there_is_else_bring_its_values(
    runs: dict[str, Nitro],
) -> None:
    x = {"train": ArrayBatches({"x": np.full((4, 1), 5.5, np.float32)}, 4)}
    assert Nitro(Weighted(), weights=runs["derived"], data=x).device_value("pos_weight") == 5.5
    assert Nitro(Weighted(), weights=runs["derived"], data={}).device_value("pos_weight") == 7.75
