"""Checking, showing, comparing and writing presets."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.errors import ConfigError, PresetError, PresetNotFoundError
from nitro_cli.experiment import NO_DEFAULT, Device, EarlyStopping, Experiment, GraphConst, Last
from nitro_cli.registry import (
    OriginKind,
    check_presets,
    diff_presets,
    field_rows,
    list_experiments,
    new_preset,
    ref_of,
    resolve,
    resolved_of,
    show_preset,
)


class Whole(Experiment):
    """The hooks that an experiment must have."""

    def build_data(self, dist):
        return {}

    def build_model(self, rng):
        return None, {}, {}

    def forward(self, model, params, state):
        return 0.0, state

    def loss(self, outputs):
        return outputs


class Net(Whole):
    width: GraphConst[int] = 64
    """The width of the hidden layer."""

    rate: Device[float] = 0.5
    data: Path | None = None
    own: Any = None


class Needs(Whole):
    size: int


def preset(cwd, name, text, experiment="Net"):
    path = cwd / "presets" / experiment / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_check_finds_every_problem_of_every_preset_once(cwd):
    preset(cwd, "good", "[fields]\nwidth = 3\n")
    base = preset(cwd, "base", "[fields]\nwidht = 3\nrate = 'x'\n")
    preset(cwd, "child", 'extends = "base"\n')
    broken = preset(cwd, "broken", "[fields\n")
    problems = check_presets([ref_of(Net)], cwd)
    assert [(p.path, p.line, p.key_path) for p in problems if p.path != broken] == [
        (base, 2, "widht"),
        (base, 3, "rate"),
    ]
    assert problems[0].nearest == ("width",)
    assert f"{base}:2: widht" in str(problems[0])
    (malformed,) = [p for p in problems if p.path == broken]
    assert "TOML" in malformed.message


def test_presets_that_fit_have_no_problems(cwd):
    preset(cwd, "good", "[fields]\nwidth = 3\n")
    assert check_presets([ref_of(Net)], cwd) == []


def test_a_required_field_that_no_preset_of_the_chain_gives_is_a_problem(cwd):
    preset(cwd, "whole", "[fields]\nsize = 3\n", "Needs")
    preset(cwd, "part", "", "Needs")
    (problem,) = check_presets([ref_of(Needs)], cwd)
    assert (problem.preset, problem.key_path) == ("part", "size")


def test_the_check_of_everything_tells_of_broken_experiments_and_orphaned_folders(cwd):
    folder = cwd / "experiments"
    folder.mkdir()
    (folder / "a.py").write_text("import no_such_module\nfrom nitro_cli import Experiment\nclass A(Experiment): ...\n")
    (folder / "b.py").write_text("from nitro_cli.experiment import Experiment\nclass Bert(Experiment): ...\n")
    preset(cwd, "x", "", "Brt")
    preset(cwd, "x", "[fields]\nsede = 1\n", "Bert")
    problems = check_presets(cwd=cwd)
    assert [(p.experiment, p.preset) for p in problems] == [("A", ""), ("Bert", "x"), ("Brt", "")]
    assert "no_such_module" in problems[0].message
    assert problems[2].nearest == ("Bert",)
    assert len(list_experiments(cwd)) == 2


def test_showing_a_preset_gives_its_values_with_origins(cwd):
    base = preset(cwd, "base", "[fields]\nwidth = 3\nrate = 0.1\n[schedules]\nlearning_rate = 0.1\n")
    child = preset(
        cwd, "child", 'description = "a child"\nextends = "base"\nunset = ["logger"]\n[fields]\nrate = 0.2\n'
    )
    description, fields, schedules = show_preset(ref_of(Net), "child", cwd)
    assert description == "a child"
    shown = {key: (value, origin.file, origin.line) for key, (value, origin) in fields.items()}
    assert shown == {"width": (3, base, 2), "rate": (0.2, child, 5), "logger": (None, child, 3)}
    assert {key: (value, origin.line) for key, (value, origin) in schedules.items()} == {"learning_rate": (0.1, 5)}


def test_two_presets_are_compared_by_resolved_values(cwd):
    preset(cwd, "a", "[fields]\nwidth = 3\nrate = 0.5\n[schedules]\nlearning_rate = 0.1\n")
    preset(cwd, "b", "[fields]\nearly_stop = { patience = 5 }\n[schedules]\nweight_decay = 0.1\n")
    found = {d.key: (d.left, d.right) for d in diff_presets(ref_of(Net), "a", "b", cwd)}
    assert found == {
        "width": (3, 64),
        "early_stop": (None, EarlyStopping(patience=5)),
        "schedules.learning_rate": (0.1, None),
        "schedules.weight_decay": (None, 0.1),
    }
    width = next(d for d in diff_presets(ref_of(Net), "a", "b", cwd) if d.key == "width")
    assert (width.left_origin.line, width.right_origin.kind) == (2, OriginKind.DEFAULT)
    assert diff_presets(ref_of(Net), "a", "a", cwd) == []


def test_the_rows_of_a_resolved_experiment_tell_kind_type_default_origin_and_documentation(cwd):
    rows = {row.name: row for row in field_rows(resolve(Net, sets=["width=3"], env={}))}
    width = rows["width"]
    assert (width.kind, width.type, width.value, width.default) == ("graphconst", "int", 3, 64)
    assert width.doc == "The width of the hidden layer."
    assert width.origin_text == "--set width=3"
    assert rows["rate"].kind == "device"
    assert rows["seed"].kind == "host"
    assert rows["data"].type == "Path | None"
    assert rows["seed"].origin_text == "class default"
    assert next(row for row in field_rows(resolved_of(Needs(size=1))) if row.name == "size").default is NO_DEFAULT


def test_a_new_preset_gives_the_experiment_it_was_written_from(cwd):
    sets = ["width=3", "early_stop.patience=2", "schedules.learning_rate=0.1", "checkpointer.keep=['last(1)']"]
    resolved = resolve(Net, sets=sets, unsets=["logger"], env={})
    path = new_preset(resolved, "mine", description="why", cwd=cwd)
    assert path == cwd / "presets/Net/mine.toml"
    document = tomllib.loads(path.read_text())
    assert document["description"] == "why"
    assert "rate" not in document["fields"]
    again = resolve(Net, "mine", env={}, cwd=cwd)
    assert (again.experiment, again.schedules) == (resolved.experiment, resolved.schedules)
    assert again.experiment.checkpointer.keep == (Last(1),)
    assert again.experiment.logger is None


def test_a_new_preset_that_extends_one_holds_the_differences_only(cwd):
    preset(cwd, "base", "[fields]\nwidth = 3\nrate = 0.1\n[schedules]\nlearning_rate = 0.1\n")
    resolved = resolve(Net, "base", sets=["rate=0.2"], env={}, cwd=cwd)
    path = new_preset(resolved, "child", extends="base", cwd=cwd)
    assert tomllib.loads(path.read_text()) == {"extends": "base", "fields": {"rate": 0.2}}
    back = resolve(Net, "base", sets=["width=64"], env={}, cwd=cwd)
    new_preset(back, "back", extends="base", cwd=cwd)
    assert resolve(Net, "back", env={}, cwd=cwd).experiment == back.experiment


def test_a_path_of_the_command_line_means_the_same_file_in_a_new_preset(cwd):
    resolved = resolve(Net, sets=["data=d/x.npz", "logger.path=/abs/log"], env={})
    path = new_preset(resolved, "paths", cwd=cwd)
    assert tomllib.loads(path.read_text())["fields"]["data"] == "../../d/x.npz"
    e = resolve(Net, "paths", env={}, cwd=cwd).experiment
    assert e.data.resolve() == cwd / "d/x.npz"
    assert e.logger.path == Path("/abs/log")


def test_a_new_preset_is_refused_where_it_would_lose_something(cwd):
    resolved = resolve(Net, sets=["width=3"], env={})
    new_preset(resolved, "mine", cwd=cwd)
    with pytest.raises(ConfigError, match="exists"):
        new_preset(resolved, "mine", cwd=cwd)
    new_preset(resolve(Net, sets=["width=4"], env={}), "mine", cwd=cwd, overwrite=True)
    assert resolve(Net, "mine", env={}, cwd=cwd).experiment.width == 4
    for name in ("", "../up", ".hidden", "a b"):
        with pytest.raises(ConfigError, match="no name"):
            new_preset(resolved, name, cwd=cwd)
    with pytest.raises(ConfigError, match="own"):
        new_preset(resolved_of(Net(own=object())), "own", cwd=cwd)
    preset(cwd, "bad", "[fields]\nwidht = 1\n")
    with pytest.raises(PresetError):
        new_preset(resolved, "child", extends="bad", cwd=cwd)
    with pytest.raises(PresetNotFoundError):
        new_preset(resolved, "child", extends="absent", cwd=cwd)
    assert not (cwd / "presets/Net/child.toml").exists()
