"""What an artefact names is found among what this machine offers: no file decides what is imported."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from nitro_cli.errors import ConfigError, ExperimentNotFoundError, NitroWarning
from nitro_cli.experiment import Experiment, GraphConst, JSONLogger, MLflowLogger, Private, Tee, config_metadata
from nitro_cli.registry import (
    check_logger_stays_inside,
    exported_config,
    read_config,
    resolve,
    resolved_of,
    write_config,
)

CLASS = "from nitro_cli.experiment import Experiment\nclass Made(Experiment):\n    width: int = 3\n"
EVIL = "from pathlib import Path\nPath(__file__).with_suffix('.ran').write_text('')\n" + CLASS
HEAD = "format = 2\n[experiment]\nname = 'Made'\n"


def local(cwd: Path, code: str = CLASS, file: str = "e.py") -> Path:
    path = cwd / "experiments" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    return path


def run_config(cwd: Path, text: str) -> Path:
    """The configuration of a run below the working directory."""
    folder = cwd / "runs" / "E" / "0a1b2c3d"
    folder.mkdir(parents=True)
    (folder.parent / "manifest.json").write_text('{"format": 1, "runs": {}, "checkpoints": []}')
    (folder / "run.json").write_text("{}")
    (folder / "config.toml").write_text(text)
    return folder / "config.toml"


def test_a_registered_experiment_is_named_and_nothing_says_where_its_code_is(cwd: Path) -> None:
    local(cwd)
    write_config(cwd / "c.toml", resolve("Made", env={}))
    assert tomllib.loads((cwd / "c.toml").read_text())["experiment"] == {"name": "Made", "cwd": str(cwd)}
    assert tomllib.loads(exported_config(resolve("Made", env={})))["experiment"] == {"name": "Made"}
    assert read_config(cwd / "c.toml").experiment.width == 3  # type: ignore[attr-defined]


def test_a_plugin_is_named_as_its_entry_point_with_its_distribution_and_that_is_told_when_it_is_missing(
    cwd: Path, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("nice-models", {"nice": "nice_recorded:Made"}, {"nice_recorded.py": CLASS})
    text = exported_config(resolve("nice", env={}))
    assert tomllib.loads(text)["experiment"] == {"name": "nice", "distribution": "nice-models"}
    (cwd / "c.toml").write_text(text)
    assert read_config(cwd / "c.toml").ref.distribution == "nice-models"  # type: ignore[union-attr]
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    with pytest.raises(ExperimentNotFoundError, match="there is no experiment nice here") as caught:
        read_config(cwd / "c.toml")
    assert "distribution nice-models" in str(caught.value.why)


def test_of_two_experiments_of_one_name_the_recorded_distribution_is_taken_and_another_one_is_told(
    cwd: Path, install: Any
) -> None:
    install("first", {"Made": "first_recorded:Made"}, {"first_recorded.py": CLASS})
    install("second", {"Made": "second_recorded:Made"}, {"second_recorded.py": CLASS})
    (cwd / "c.toml").write_text(HEAD + "distribution = 'Second'\n")
    assert read_config(cwd / "c.toml").import_path == "second_recorded:Made"
    (cwd / "c.toml").write_text(HEAD)
    with pytest.raises(ExperimentNotFoundError, match="2 experiments") as caught:
        read_config(cwd / "c.toml")
    assert caught.value.fix == "say which: --experiment first:Made or --experiment second:Made"
    local(cwd)
    (cwd / "c.toml").write_text("format = 2\n[experiment]\nname = 'Fine'\ndistribution = 'third'\n")
    local(cwd, CLASS.replace("class Made", "class Fine"), "f.py")
    with pytest.warns(NitroWarning, match="Fine of third"):
        read_config(cwd / "c.toml")


@pytest.mark.parametrize("place", ["train.py", "src/deep/train.py"])
def test_a_file_of_the_working_directory_goes_on_there_and_nowhere_else(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (cwd / place).parent.mkdir(parents=True, exist_ok=True)
    (cwd / place).write_text(CLASS)
    resolved = resolve(f"{place}:Made", env={})
    config = run_config(cwd, "")
    write_config(config, resolved)
    assert tomllib.loads(config.read_text())["experiment"]["source"] == f"{place}:Made"
    assert read_config(config).experiment.width == 3  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExperimentNotFoundError) as caught:
        read_config(config)
    assert caught.value.fix == "name its code: --experiment path/to/train.py:Made"
    assert read_config(config, experiment=f"project/{place}:Made").experiment.width == 3  # type: ignore[attr-defined]


def test_a_module_of_the_working_directory_goes_on_there(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / "own_recorded").mkdir()
    (cwd / "own_recorded" / "__init__.py").write_text("")
    (cwd / "own_recorded" / "exp.py").write_text(CLASS)
    (cwd / "c.toml").write_text(HEAD + "source = 'own_recorded.exp:Made'\n")
    monkeypatch.syspath_prepend(str(cwd))
    assert read_config(cwd / "c.toml").import_path == "own_recorded.exp:Made"
    del sys.modules["own_recorded.exp"]


def test_a_run_of_an_older_nitro_finds_its_code_without_its_import_path(cwd: Path) -> None:
    local(cwd)
    (cwd / "train.py").write_text(CLASS.replace("class Made", "class T"))
    head = "format = 1\n[experiment]\nname = '{}'\nimport = '{}'\ncwd = '/somewhere/else'\n"
    for name, path in [
        ("Made", "/somewhere/else/experiments/e.py:Made"),
        ("T", "/somewhere/else/train.py:T"),
        ("Made", "m:Made"),
    ]:
        (cwd / "c.toml").write_text(head.format(name, path))
        assert type(read_config(cwd / "c.toml").experiment).__name__ == name


@pytest.mark.parametrize(
    "source",
    [
        "runs/E/0a1b2c3d/evil.py:Made",
        "runs/E/evil.py:Made",
        "link.py:Made",
        "runs/E/0a1b2c3d/sub/../evil.py:Made",
        "{cwd}/runs/E/0a1b2c3d/evil.py:Made",
        "../outside.py:Made",
        "runs.E.0a1b2c3d.evil:Made",
        "evil:Made",
        "os:Made",
    ],
)
def test_no_file_makes_code_of_a_run_or_from_outside_the_project_run(
    cwd: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(cwd, HEAD + f"source = '{source.format(cwd=cwd)}'\n")
    files = [config.parent / "evil.py", config.parent.parent / "evil.py", cwd.parent / "outside.py"]
    for file in files:
        file.write_text(EVIL)
    (cwd / "link.py").symlink_to(files[0])
    monkeypatch.syspath_prepend(str(config.parent))
    with pytest.raises(ExperimentNotFoundError, match="there is no experiment Made here"):
        read_config(config)
    assert not list(cwd.parent.rglob("*.ran"))


def test_an_import_path_of_format_1_runs_no_code_of_the_run(cwd: Path) -> None:
    config = run_config(cwd, "")
    (config.parent / "evil.py").write_text(EVIL)
    for path in ("evil.py:Made", f"{config.parent}/evil.py:Made", "runs/E/0a1b2c3d/evil.py:Made"):
        for folder in ("", f"cwd = '{cwd}'\n", f"cwd = '{config.parent}'\n"):
            config.write_text(f"format = 1\n[experiment]\nname = 'Made'\nimport = '{path}'\n{folder}")
            with pytest.raises(ExperimentNotFoundError, match="there is no experiment Made here") as caught:
                read_config(config)
            assert "0a1b2c3d" not in str(caught.value.fix), "the fix named the run's own code"
    assert not list(cwd.rglob("*.ran"))


def test_an_experiments_folder_inside_a_run_is_code_of_the_run(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_config(cwd, HEAD)
    local(config.parent, EVIL)
    monkeypatch.chdir(config.parent)
    with pytest.raises(ExperimentNotFoundError, match="there is no experiment Made here") as caught:
        read_config(config)
    assert "which nitro wrote" in str(caught.value.why)
    assert not list(cwd.rglob("*.ran"))


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("record.json", "{}"),
        ("pack.json", "{}"),
        ("manifest.json", '{"kind": "nitro-bundle"}'),
        ("manifest.json", "[" * 100_000),
    ],
)
def test_code_beside_what_nitro_writes_is_no_project_code(cwd: Path, mark: str, text: str) -> None:
    (cwd / "got").mkdir()
    (cwd / "got" / mark).write_text(text)
    (cwd / "got" / "evil.py").write_text(EVIL)
    (cwd / "c.toml").write_text(HEAD + "source = 'got/evil.py:Made'\n")
    with pytest.raises(ExperimentNotFoundError):
        read_config(cwd / "c.toml")
    assert not (cwd / "got" / "evil.ran").exists()


def test_a_projects_own_manifest_and_configuration_are_no_marks(cwd: Path) -> None:
    (cwd / "manifest.json").write_text('{"manifest_version": 3}')
    (cwd / "config.toml").write_text("[server]\nport = 1\n")
    (cwd / "train.py").write_text(CLASS)
    (cwd / "c.toml").write_text(HEAD + "source = 'train.py:Made'\n")
    assert read_config(cwd / "c.toml").experiment.width == 3  # type: ignore[attr-defined]


def test_a_file_that_does_not_declare_the_class_is_not_run(cwd: Path) -> None:
    (cwd / "clean_up.py").write_text("open('ran', 'w')\n")
    (cwd / "c.toml").write_text(HEAD + "source = 'clean_up.py:Made'\n")
    with pytest.raises(ExperimentNotFoundError):
        read_config(cwd / "c.toml")
    assert not (cwd / "ran").exists()


def test_code_of_a_run_is_used_when_the_command_names_it_and_that_is_said(cwd: Path) -> None:
    config = run_config(cwd, HEAD)
    (config.parent / "e.py").write_text(CLASS)
    with pytest.warns(NitroWarning, match=r"e\.py, which lies in .*0a1b2c3d, is run as code"):
        assert read_config(config, experiment=f"{config.parent}/e.py:Made").experiment.width == 3  # type: ignore[attr-defined]


class Inner(BaseModel):
    folder: Path | None = None


class Home(Experiment):
    width: GraphConst[int] = 2
    token: Private[str] = "none"
    data: Path | None = None
    text: str = "n"
    table: dict[str, Any] = Field({})
    inner: Inner = Inner()
    route: str = "/v1/predict"


class Needs(Experiment):
    token: Private[str]


def test_a_private_field_is_a_host_field_that_says_so_and_a_subclass_keeps_the_mark() -> None:
    class Sub(Home):
        token = "other"

    for cls in (Home, Sub):
        meta = config_metadata(cls)
        assert (str(meta["token"].kind), meta["token"].private, meta["data"].private) == ("host", True, False)


def test_what_leaves_holds_neither_private_values_nor_paths_of_this_machine(cwd: Path) -> None:
    e = Home(
        width=7,
        token="s3cret",
        data=cwd / "d.npz",
        text=f"file {cwd}/x",
        table={"a": [str(cwd)]},
        inner=Inner(folder=cwd),
        run_dir=cwd / "runs",
        logger=Tee(JSONLogger(cwd / "log.jsonl"), MLflowLogger(tracking_uri=f"sqlite:///{cwd}/m.db")),
    )
    text = exported_config(resolved_of(e))
    assert str(cwd) not in text
    assert "s3cret" not in text
    told = tomllib.loads(text)
    assert set(told["at_home"]) == {"token", "data", "text", "table", "inner", "run_dir", "logger"}
    assert (told["fields"]["width"], told["fields"]["route"]) == (7, "/v1/predict")
    (cwd / "c.toml").write_text(text)
    with pytest.warns(NitroWarning, match="token, data, text, table, inner of c.toml stayed"):
        again = read_config(cwd / "c.toml", cls=Home).experiment
    assert again == Home(width=7)
    named = read_config(cwd / "c.toml", ["token=t", "data=d", "text=x", "table={}", "inner={}"], cls=Home).experiment
    assert (named.token, named.data) == ("t", Path("d"))  # type: ignore[attr-defined]


def test_a_value_that_stayed_at_home_and_has_no_default_is_asked_for(cwd: Path) -> None:
    (cwd / "c.toml").write_text(exported_config(resolved_of(Needs(token="s3cret"))))
    with pytest.raises(ConfigError, match="token stayed on the machine") as caught:
        read_config(cwd / "c.toml", cls=Needs)
    assert caught.value.fix == "--set token=..."
    assert read_config(cwd / "c.toml", ["token=mine"], cls=Needs).experiment.token == "mine"  # type: ignore[attr-defined]
    write_config(cwd / "own.toml", resolved_of(Needs(token="s3cret")))
    assert read_config(cwd / "own.toml", cls=Needs).experiment.token == "s3cret"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("logger", "key"),
    [
        ("{ kind = 'json', path = '/etc/victim' }", "logger.path"),
        ("{ kind = 'json', path = '../../../victim' }", "logger.path"),
        ("{ kind = 'json', path = '~/victim' }", "logger.path"),
        ("{ kind = 'tensorboard', log_dir = '/etc/victim' }", "logger.log_dir"),
        ("{ kind = 'mlflow', tracking_uri = 'file:///etc/victim' }", "logger.tracking_uri"),
        ("{ kind = 'mlflow', tracking_uri = 'sqlite:////etc/victim' }", "logger.tracking_uri"),
        ("{ kind = 'mlflow', tracking_uri = 'victim' }", "logger.tracking_uri"),
        (
            "{ kind = 'tee', loggers = [{ kind = 'json' }, { kind = 'json', path = '/victim' }] }",
            "logger.loggers[1]",
        ),
    ],
)
def test_a_log_outside_the_run_has_to_be_named_by_the_command(cwd: Path, logger: str, key: str) -> None:
    config = run_config(cwd, HEAD + f"[fields]\nlogger = {logger}\n")
    resolved = read_config(config, cls=Home)
    with pytest.raises(ConfigError, match="outside the run") as caught:
        check_logger_stays_inside(resolved, config.parent)
    assert key in str(caught.value.where)
    named = read_config(config, ["logger={ kind = 'json', path = '/tmp/own' }"], cls=Home)
    check_logger_stays_inside(named, config.parent)


def test_a_log_inside_the_run_and_a_server_are_the_runs_own(cwd: Path) -> None:
    config = run_config(cwd, "")
    for logger in (
        f"{{ kind = 'json', path = '{config.parent}/own.jsonl' }}",
        "{ kind = 'mlflow', tracking_uri = 'http://h:5' }",
    ):
        config.write_text(HEAD + f"[fields]\nlogger = {logger}\n")
        check_logger_stays_inside(read_config(config, cls=Home), config.parent)
    os.symlink("/etc", config.parent / "out")
    config.write_text(HEAD + "[fields]\nlogger = { kind = 'json', path = 'runs/E/0a1b2c3d/out/own.jsonl' }\n")
    with pytest.raises(ConfigError, match="outside the run"):
        check_logger_stays_inside(read_config(config, cls=Home), config.parent)
