"""Preset files: validation, extending, unsetting, paths."""

from pathlib import Path

import pytest
from pydantic import Field

from nitro_cli import Experiment
from nitro_cli.errors import ConfigError, ExitCode, PresetError, PresetNotFoundError
from nitro_cli.experiment import Checkpointer, EarlyStopping, GraphConst, JSONLogger, Last, Monitor
from nitro_cli.registry import find_experiment, from_preset, list_presets, resolve


class Net(Experiment):
    width: GraphConst[int] = 64
    depth: int = 2
    rate: float = 0.5
    name: str = "net"
    flag: bool = False
    data: Path | None = None
    extra: list[Path] = Field([])
    sizes: tuple[int, ...] = (1, 2)
    table: dict[str, int] = Field({})


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def preset(cwd):
    def write_preset(name, text, experiment="Net"):
        return write(cwd / "presets" / experiment / f"{name}.toml", text)

    return write_preset


def build(name, **values):
    return from_preset(Net, name, **values).experiment


def test_a_preset_sets_fields_and_run_knobs(preset):
    preset(
        "base",
        """
description = "the recipe"
[fields]
width = 128
rate = 1
sizes = [3, 4, 5]
max_epochs = 20
monitor = ["acc", "max"]
early_stop = { patience = 5 }
checkpointer = { keep = ["last(2)"] }
[fields.table]
a = 1
""",
    )
    e = build("base")
    assert (e.width, e.sizes, e.max_epochs, e.table) == (128, (3, 4, 5), 20, {"a": 1})
    assert e.rate == 1.0
    assert type(e.rate) is float
    assert e.monitor == Monitor("acc", "max")
    assert e.early_stop == EarlyStopping(patience=5)
    assert e.checkpointer == Checkpointer(keep=(Last(2),))
    assert e.depth == 2


def test_from_preset_of_the_class_gives_the_experiment_and_keywords_win(preset):
    preset("base", "[fields]\nwidth = 128\nearly_stop = { patience = 5 }\n")
    assert Net.from_preset("base") == Net(width=128, early_stop=EarlyStopping(patience=5))
    assert Net.from_preset("base", width=256, early_stop=None) == Net(width=256)


def test_python_reads_neither_the_environment_nor_the_project(preset, cwd, monkeypatch):
    preset("base", "")
    write(cwd / "pyproject.toml", "[tool.nitro]\nseed = 7\n")
    monkeypatch.setenv("NITRO_SEED", "8")
    assert Net.from_preset("base").seed == 42


def test_all_problems_of_a_file_come_together_with_line_key_and_nearest_name(preset):
    file = preset(
        "bad",
        """\
descripton = "typo"

[fields]
widht = 128
depth = "3"
rate = true
flag = "yes"
early_stop = { patience = 5, min_dleta = 1e-3 }
checkpointer.keep = ["best(3)", "bset(1)"]

[schedules]
learning_rate = { kind = "one_cycel", peak = 1e-3 }
weight_decay = { kind = "cosine", init_vlaue = 1.0 }
""",
    )
    with pytest.raises(PresetError) as caught:
        build("bad")
    error = caught.value
    text = str(error)
    assert error.exit_code is ExitCode.USAGE
    for line, key, hint in [
        (1, "descripton", "description"),
        (4, "widht", "width"),
        (5, "depth", "int"),
        (6, "rate", "number"),
        (7, "flag", "bool"),
        (8, "early_stop.min_dleta", "min_delta"),
        (9, "checkpointer.keep[1]", "best"),
        (12, "schedules.learning_rate", "one_cycle"),
        (13, "schedules.weight_decay.init_vlaue", "init_value"),
    ]:
        (found,) = [row for row in text.splitlines() if f"{file.name}:{line}: {key}" in row]
        assert hint in found
    assert {"description", "width", "min_delta", "one_cycle", "init_value"} <= set(error.nearest)
    assert str(file) in error.where


def test_one_wrong_value_is_one_problem(preset):
    preset("bad", "[fields]\nwidth = 1.5\n")
    with pytest.raises(PresetError) as caught:
        build("bad")
    assert "bad.toml:2: width" in caught.value.why
    assert "problems" not in caught.value.what


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ('"128"', "width"),
        ("1.5", "width"),
        ("true", "width"),
        ("1", "flag"),
        ('"yes"', "flag"),
        ('"0.5"', "rate"),
        ("3", "name"),
    ],
)
def test_no_scalar_is_coerced(preset, field, value):
    preset("bad", f"[fields]\n{field} = {value}\n")
    with pytest.raises(PresetError, match=field):
        build("bad")


def test_a_bad_value_is_refused_even_where_a_stronger_layer_replaces_it(preset):
    preset("parent", '[fields]\nwidth = "wide"\n')
    preset("child", 'extends = "parent"\n[fields]\nwidth = 3\n')
    with pytest.raises(PresetError, match=r"parent\.toml:2"):
        build("child")


def test_malformed_toml_is_one_error_with_line_and_column(preset):
    file = preset("bad", "[fields]\nwidth = = 1\n")
    with pytest.raises(PresetError) as caught:
        build("bad")
    assert caught.value.where == f"{file}:2:9"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fields = 3\n", "fields"),
        ("unset = 'early_stop'\n", "unset"),
        ("unset = [1]\n", r"unset\[0\]"),
        ("unset = ['a..b']\n", r"unset\[0\]"),
        ("unset = ['widht']\n", "widht"),
        ("unset = ['width']\n[fields]\nwidth = 1\n", "keep one of the two"),
        ("extends = ['a']\n", "extends"),
        ("[fields.schedules]\n", r"\[schedules\]"),
        ("width = 1\n", "unknown key"),
    ],
)
def test_a_wrong_layout_is_a_problem_at_its_key(preset, text, problem):
    preset("bad", text)
    with pytest.raises(PresetError, match=problem):
        build("bad")


def test_a_child_replaces_its_parents_values_field_by_field_and_tables_whole(preset):
    preset("root", "[fields]\nwidth = 1\ndepth = 1\nrate = 0.1\nearly_stop = { patience = 9, min_delta = 0.5 }\n")
    preset("middle", 'extends = "root"\n[fields]\nwidth = 2\ndepth = 2\nearly_stop = { patience = 3 }\n')
    preset("leaf", 'extends = "middle"\n[fields]\nwidth = 3\n')
    e = build("leaf")
    assert (e.width, e.depth, e.rate) == (3, 2, 0.1)
    assert e.early_stop == EarlyStopping(patience=3)


def test_a_child_with_schedules_replaces_its_parents_whole_and_one_without_keeps_them(preset):
    preset("root", "[schedules]\nlearning_rate = 1e-3\nweight_decay = 1e-2\n")
    preset("keeps", 'extends = "root"\n')
    preset("replaces", 'extends = "root"\n[schedules]\nlearning_rate = 2e-3\n')
    preset("empties", 'extends = "root"\n[schedules]\n')
    assert from_preset(Net, "keeps").schedules == {"learning_rate": 1e-3, "weight_decay": 1e-2}
    assert from_preset(Net, "replaces").schedules == {"learning_rate": 2e-3}
    assert from_preset(Net, "empties").schedules == {}
    preset("none", 'extends = "root"\nunset = ["schedules"]\n')
    assert from_preset(Net, "none").schedules is None


def test_qualified_schedule_keys_may_be_dotted_or_quoted(preset):
    preset("dotted", "[schedules]\nopt.bias.learning_rate = 0.1\ngrad.rho = { kind = 'constant', value = 0.05 }\n")
    preset("quoted", "[schedules]\n'opt.bias.learning_rate' = 0.1\n'grad.rho' = { kind = 'constant', value = 0.05 }\n")
    expected = {"opt.bias.learning_rate": 0.1, "grad.rho": {"kind": "constant", "value": 0.05}}
    assert from_preset(Net, "dotted").schedules == from_preset(Net, "quoted").schedules == expected
    changed = resolve(Net, "quoted", sets=["schedules.grad.rho.value=0.1"], env={})
    assert changed.schedules == {**expected, "grad.rho": {"kind": "constant", "value": 0.1}}
    preset("wrong", "[schedules]\n'grad.rho' = 1\n'opt.bias.learning_rate' = { kind = 'constant', vlaue = 1 }\n")
    with pytest.raises(PresetError, match=r"wrong\.toml:3: schedules\.opt\.bias\.learning_rate\.vlaue"):
        build("wrong")


def test_unset_gives_none_which_a_child_may_set_again(preset):
    preset("root", "[fields]\nearly_stop = { patience = 9 }\nn_devs = 2\n")
    preset("child", 'extends = "root"\nunset = ["early_stop", "checkpointer", "logger"]\n')
    preset("grandchild", 'extends = "child"\n[fields]\nearly_stop = { patience = 1 }\n')
    e = build("child")
    assert (e.early_stop, e.checkpointer, e.logger, e.n_devs) == (None, None, None, 2)
    assert build("grandchild").early_stop == EarlyStopping(patience=1)


def test_unset_reaches_inside_a_parents_table(preset):
    preset("root", "[fields]\nearly_stop = { patience = 9, metric = 'acc', mode = 'max' }\n")
    preset("child", 'extends = "root"\nunset = ["early_stop.metric", "early_stop.mode"]\n')
    assert build("child").early_stop == EarlyStopping(patience=9)


def test_a_field_that_cannot_be_none_is_a_problem_at_the_unset(preset):
    preset("bad", "unset = [\n  'early_stop',\n  'width',\n]\n")
    with pytest.raises(PresetError, match=r"bad\.toml:3: width"):
        build("bad")


def test_cycles_are_refused_with_their_way(preset):
    preset("a", 'extends = "b"\n')
    preset("b", 'extends = "c"\n')
    preset("c", 'description = "x"\nextends = "b"\n')
    with pytest.raises(PresetError, match=r"c\.toml:2: extends: .*b -> c -> b"):
        build("a")
    preset("self", 'extends = "self"\n')
    with pytest.raises(PresetError, match="self -> self"):
        build("self")


def test_an_unknown_parent_is_told_together_with_the_files_other_problems(preset):
    preset("smoke", "")
    preset("bad", 'extends = "smkoe"\n[fields]\nwidht = 1\n')
    with pytest.raises(PresetError) as caught:
        build("bad")
    assert "smkoe" in caught.value.why
    assert "widht" in caught.value.why
    assert "smoke" in caught.value.nearest


def test_an_unknown_preset_is_not_found_with_the_nearest(preset):
    preset("baseline", "")
    with pytest.raises(PresetNotFoundError) as caught:
        build("basline")
    assert caught.value.nearest == ("baseline",)
    assert caught.value.exit_code == 3
    for name in ("../Net/baseline", "baseline.toml", ""):
        with pytest.raises(PresetNotFoundError):
            build(name)


def test_relative_paths_are_relative_to_the_preset_that_writes_them(preset, cwd):
    file = preset(
        "paths",
        """[fields]
data = "../data.npz"
extra = ["a", "/abs/b"]
name = "not/a/path"
run_dir = "out"
logger = { kind = "json", path = "log.jsonl" }
""",
    )
    e = build("paths")
    folder = file.parent
    assert e.data == folder / "../data.npz"
    assert e.extra == [folder / "a", Path("/abs/b")]
    assert e.name == "not/a/path"
    assert e.run_dir == folder / "out"
    assert e.logger == JSONLogger(path=folder / "log.jsonl")
    preset("child", 'extends = "paths"\n[fields]\nname = "x"\n')
    assert build("child").data == folder / "../data.npz"
    assert resolve(Net, "paths", sets=["data=here.npz", "logger.path=l.jsonl"]).experiment.data == Path("here.npz")


def test_presets_lie_in_the_working_directory_and_beside_the_experiment(cwd, tmp_path):
    code = "from nitro_cli.experiment import Experiment\nclass Far(Experiment): ...\n"
    write(tmp_path / "other/experiments/sub/far.py", code)
    write(tmp_path / "other/presets/Far/top.toml", "[fields]\nseed = 1\n")
    write(tmp_path / "other/experiments/presets/Far/package.toml", "[fields]\nseed = 2\n")
    write(tmp_path / "other/experiments/sub/presets/Far/beside.toml", "[fields]\nseed = 3\n")
    write(cwd / "presets/Far/top.toml", "[fields]\nseed = 4\n")
    ref = find_experiment(f"{tmp_path}/other/experiments/sub/far.py:Far", cwd)
    assert list_presets(ref, cwd) == ["beside", "package", "top"]
    seeds = {name: resolve(ref, name, cwd=cwd).experiment.seed for name in list_presets(ref, cwd)}
    assert seeds == {"beside": 3, "package": 2, "top": 4}


def test_presets_beside_a_package_count_only_in_a_checkout(cwd, tmp_path):
    write(tmp_path / "site/pkg_h/__init__.py", "")
    write(tmp_path / "site/pkg_h/far.py", "from nitro_cli.experiment import Experiment\nclass Far(Experiment): ...\n")
    write(tmp_path / "site/presets/Far/stray.toml", "")
    ref = find_experiment(f"{tmp_path}/site/pkg_h/far.py:Far", cwd)
    assert list_presets(ref, cwd) == []
    write(tmp_path / "site/pyproject.toml", "")
    assert list_presets(ref, cwd) == ["stray"]


def test_a_plugins_presets_are_found_by_its_name(cwd, install):
    code = "from nitro_cli.experiment import Experiment\nclass NiceClass(Experiment): ...\n"
    files = {"nice_i/exp.py": code, "nice_i/presets/Nice/a.toml": "[fields]\nseed = 5\n", "nice_i/__init__.py": ""}
    install("nice-i", {"Nice": "nice_i.exp:NiceClass"}, files)
    resolved = resolve("Nice", "a")
    assert resolved.experiment.seed == 5
    assert (resolved.name, resolved.import_path, resolved.preset) == ("Nice", "nice_i.exp:NiceClass", "a")


def test_a_field_that_is_called_from_preset_is_refused():
    with pytest.raises(ConfigError, match="'from_preset' is named like a method"):

        class Shadowing(Experiment):
            from_preset: int = 1
