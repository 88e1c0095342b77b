"""A task of an installed distribution supplies the hooks of an experiment that writes neither loss nor metrics."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Nitro, linear
from nitro_cli.errors import ConfigError, IncompatibleError, RoutingError
from nitro_cli.registry import read_config, resolve
from nitro_cli.tasks import Task
from tests.installed_tasks import install_tasks
from tests.tiny import Tiny


class Supplied(Tiny):
    """`Tiny` without its loss and metrics, which its task supplies."""

    loss = None
    metrics = None
    task: Task


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(install_tasks(tmp_path / "site")))
    monkeypatch.setenv("NITRO_NO_PLUGINS", "0")
    importlib.invalidate_caches()
    yield
    sys.modules.pop("soft_tasks", None)


def soft(**fields: Any) -> Supplied:
    return Supplied(task={"kind": "soft", **fields})


def test_it_trains_as_the_experiment_that_writes_the_same_itself(tmp_path: Path, bits: Any) -> None:
    own = Nitro(Tiny(smoothing=0.1), run_dir=tmp_path / "own").train()
    supplied = Nitro(soft(smoothing=0.1), run_dir=tmp_path / "supplied").train()
    assert bits(supplied.params) == bits(own.params)
    assert [row["acc"] for row in supplied.history] == [row["acc"] for row in own.history]


def test_it_resumes_as_if_it_had_never_stopped(tmp_path: Path, bits: Any) -> None:
    whole = Nitro(soft(smoothing=0.1), max_epochs=3, run_dir=tmp_path / "whole").train()
    Nitro(soft(smoothing=0.1), max_epochs=1, run_dir=tmp_path / "parts").train()
    resumed = Nitro(soft(smoothing=0.1), max_epochs=3, run_dir=tmp_path / "parts", resume="auto").train()
    assert bits(resumed.params) == bits(whole.params)


def test_a_resume_with_another_structure_of_the_part_is_refused_and_with_another_device_value_is_not(
    tmp_path: Path,
) -> None:
    Nitro(soft(), max_epochs=1, run_dir=tmp_path).train()
    with pytest.raises(IncompatibleError, match="GraphConst") as refused:
        Nitro(soft(classes=4), max_epochs=2, run_dir=tmp_path, resume="auto")
    assert "task" in str(refused.value)
    Nitro(soft(smoothing=0.3, note="said later"), max_epochs=2, run_dir=tmp_path, resume="auto")


def test_another_value_of_its_device_field_compiles_nothing(tmp_path: Path, compiled: Callable[[], int]) -> None:
    first = Nitro(soft(), run_dir=tmp_path / "a").train()
    before = compiled()
    other = Nitro(soft(smoothing=0.4), run_dir=tmp_path / "b").train()
    assert compiled() == before
    assert {name: p.key for name, p in first.programs.items()} == {name: p.key for name, p in other.programs.items()}


def test_set_device_reaches_it_by_its_dotted_name(tmp_path: Path, compiled: Callable[[], int]) -> None:
    nitro = Nitro(soft(), run_dir=tmp_path)
    plain = nitro.validate()["acc"]
    nitro.train()
    before = compiled()
    nitro.set_device(**{"task.smoothing": 0.25})
    assert nitro.device_value("task.smoothing") == 0.25
    nitro.validate()
    assert compiled() == before
    assert plain is not None
    with pytest.raises(ConfigError) as refused:
        nitro.set_device(**{"task.smothing": 0.25})
    assert refused.value.nearest == ("task.smoothing", "smoothing")
    with pytest.raises(ConfigError, match=r"task\.classes"):
        nitro.set_device(**{"task.classes": 4})


def test_a_schedule_drives_it(tmp_path: Path, bits: Any, log_lines: Any) -> None:
    class Scheduled(Tiny):
        def schedules(self) -> dict[str, Any]:
            return {"smoothing": linear(0.4, 0.0)}

    own = Nitro(Scheduled(), run_dir=tmp_path / "own").train()
    nitro = Nitro(soft(), schedules={"task.smoothing": linear(0.4, 0.0)}, run_dir=tmp_path / "supplied").train()
    assert bits(nitro.params) == bits(own.params)
    line = log_lines(nitro, "train")[0]
    assert line["schedule/task.smoothing"] == pytest.approx(0.4)
    with pytest.raises(ConfigError, match=r"task\.smoothing is scheduled"):
        nitro.set_device(**{"task.smoothing": 0.1})


def test_presets_and_set_reach_it_and_say_where_each_value_came_from(tmp_path: Path) -> None:
    sets = ('task={kind="soft", classes=3}', "task.smoothing=0.2")
    found = resolve(Supplied, sets=(*sets, "schedules.task.smoothing={kind='linear', init_value=0.2, end_value=0}"))
    assert found.experiment.task.smoothing == 0.2
    assert str(found.origin("task.smoothing")) == "--set task.smoothing=0.2"
    assert str(found.origin("task.classes")).startswith("--set task=")
    assert found.schedules == {"task.smoothing": {"kind": "linear", "init_value": 0.2, "end_value": 0}}
    quoted = resolve(Supplied, sets=(*sets, 'schedules={"task.smoothing"={kind="constant", value=0.1}}'))
    assert quoted.schedules == {"task.smoothing": {"kind": "constant", "value": 0.1}}


def test_set_reaches_a_part_in_a_list_by_its_kind() -> None:
    class Several(Tiny):
        loss = None
        metrics = None
        judges: tuple[Task, ...]

    sets = ('judges=[{kind="soft"}]', "judges.soft.smoothing=0.2", "judges.soft.note=seen")
    found = resolve(Several, sets=sets)
    assert found.experiment.judges[0].smoothing == 0.2
    assert str(found.origin("judges.soft.smoothing")) == "--set judges.soft.smoothing=0.2"
    for words, told in (
        ("judges.hard.smoothing=1", r"judges\.hard is no part of the list"),
        ("judges.soft=1", "judges is a list, not a table"),
    ):
        with pytest.raises(ConfigError, match=told):
            resolve(Several, sets=(*sets, words))


def test_the_record_rebuilds_the_part_and_tells_its_values(tmp_path: Path) -> None:
    nitro = Nitro(Supplied(task={"kind": "soft", "version": 2, "smoothing": 0.2}), run_dir=tmp_path).train()
    assert nitro.run_path is not None
    text = (nitro.run_path / "config.toml").read_text()
    assert 'kind = "soft"' in text
    assert "version = 2" in text
    rebuilt = read_config(nitro.run_path / "config.toml", sets=["task.smoothing=0.3"], cls=Supplied)
    assert rebuilt.experiment == nitro.experiment.replace(**{"task.smoothing": 0.3})
    facts = json.loads((nitro.run_path / "run.json").read_text())
    assert facts["fields"]["device"]["task.smoothing"] == 0.2
    assert facts["fields"]["graphconst"]["task"] == {
        "kind": "soft", "version": 2, "classes": 3, "target": "y", "margin": 0.0
    }  # fmt: skip
    hooks = {row["hook"]: row["of"] for row in facts["report"]["hooks"]}
    assert (hooks["loss"], hooks["forward"]) == ("task (soft)", "Tiny")


def test_the_fields_that_a_part_names_are_routed_to_it(tmp_path: Path) -> None:
    nitro = Nitro(soft(), run_dir=tmp_path)
    assert nitro.plan.hooks.routed.fields_for("loss") == ("y",)
    with pytest.raises(RoutingError, match="declares 'yy'") as refused:
        Nitro(soft(target="yy"), run_dir=tmp_path)
    assert refused.value.nearest == ("y",)
    assert "task (soft)" in refused.value.fix


def test_a_method_of_the_class_wins_and_may_call_the_part(tmp_path: Path, bits: Any) -> None:
    class Halved(Supplied):
        def loss(self, outputs: Any, *, y: Any) -> Any:
            return self.task.loss(outputs, target=y) / 2

    nitro = Nitro(Halved(task={"kind": "soft"}), run_dir=tmp_path)
    assert nitro.plan.settings.hooks.owner("loss") == "Halved"
    assert nitro.plan.settings.hooks.owner("metrics") == "task (soft)"
    value = float(np.asarray(nitro.validate()["acc"]))
    assert 0 <= value <= 1


def test_what_is_exported_holds_the_device_values_of_a_part_and_rebuilds_it(tmp_path: Path) -> None:
    from nitro_cli import load_bundle

    class Leaning(Supplied):
        def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
            outputs, state = model(params, state, x)
            return outputs + self.task.smoothing, state

    nitro = Nitro(Leaning(task={"kind": "soft", "smoothing": 0.5}), run_dir=tmp_path / "runs").train()
    x = np.ones((3, 6), np.float32)
    bundle = load_bundle(nitro.export("bundle", dir=tmp_path / "out", name="leaning"))
    np.testing.assert_allclose(bundle(x=x)["outputs"], nitro.predict({"x": x}), rtol=1e-6)
    served = Nitro(Leaning(task={"kind": "soft"}), data={}, weights=(nitro, "latest"), run_dir=tmp_path / "served")
    np.testing.assert_allclose(served.predict({"x": x}) + 0.5, nitro.predict({"x": x}), rtol=1e-5, atol=1e-6)
