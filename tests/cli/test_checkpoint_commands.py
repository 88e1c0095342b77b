"""checkpoint info, verify, prune; cache; doctor; devices."""

import json

import pytest

from nitro_cli.errors import ExitCode


@pytest.fixture
def newest(trained, nitro_json):
    return "runs/Probe/" + nitro_json("runs")["runs"][0]["checkpoints"][-1]["path"]


def test_info_needs_no_jax_and_names_experiment_epoch_and_size(trained, newest, process):
    done = process("checkpoint", "info", newest, "--json", block_jax=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["meta"]["experiment"]["name"] == "Probe"
    assert (made["meta"]["epoch"], made["meta"]["step"]) == (3, 9)
    assert made["parameters"] == 4
    assert made["leaves"]["params/w"] == {"dtype": "float32", "shape": [3], "kind": "array"}


def test_info_is_a_table_for_people(trained, newest, nitro):
    result = nitro("checkpoint", "info", newest, "--leaves")
    assert result.exit_code == 0
    assert "params/w" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_info_takes_every_name_of_a_checkpoint_that_it_or_another_command_says(trained, nitro_json):
    run = nitro_json("runs")["runs"][0]
    best, latest = run["best"]["checkpoint"], run["checkpoints"][-1]["path"]
    forms = ["runs/Probe", f"runs/Probe/{run['id']}", run["id"], "latest:best", f"{run['id']}:best", "runs/Probe:best"]
    forms += ["runs/Probe:latest:best", f"runs/Probe:{run['id'][:5]}:best"]
    for form in forms:
        assert nitro_json("checkpoint", "info", form)["path"].endswith(best), form
    assert nitro_json("checkpoint", "info", "latest:latest")["path"].endswith(latest)
    assert "epoch-0001" in nitro_json("checkpoint", "info", "latest:epoch-0001")["path"]


@pytest.mark.parametrize("name", ["latest:bset", "0000aaaa:best", "0000aaaa", "nowhere:latest:best", "runs/nothing"])
def test_info_of_what_is_not_there_is_not_found(trained, nitro, name):
    assert nitro("checkpoint", "info", name).exit_code == ExitCode.NOT_FOUND


def test_verify_finds_one_flipped_bit(trained, newest, nitro, nitro_json):
    assert nitro("checkpoint", "verify", "runs/Probe").exit_code == 0
    files = [path for path in (trained / newest).rglob("*") if path.is_file() and path.name != "record.json"]
    data = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    made = nitro_json("checkpoint", "verify", "runs/Probe", code=5)
    assert made["damaged"] == 1
    assert [c["ok"] for c in made["checkpoints"]].count(False) == 1
    result = nitro("checkpoint", "verify", newest)
    assert result.exit_code == ExitCode.INTEGRITY
    assert "DAMAGED" in result.stdout
    assert nitro("evaluate", newest).exit_code == ExitCode.INTEGRITY


def test_prune_lists_on_dry_run_and_needs_yes_off_a_terminal(trained, nitro, nitro_json):
    before = nitro_json("runs")["runs"][0]["checkpoints"]
    result = nitro("checkpoint", "prune", "runs/Probe", "--keep", "last(1)", "--dry-run")
    assert result.exit_code == 0
    assert "not kept" in result.stdout
    result = nitro("checkpoint", "prune", "runs/Probe", "--keep", "last(1)")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert nitro_json("runs")["runs"][0]["checkpoints"] == before
    made = nitro_json("checkpoint", "prune", "runs/Probe", "--keep", "last(1)", "--yes")
    assert made["deleted"] is True
    assert [c["epoch"] for c in nitro_json("runs")["runs"][0]["checkpoints"]] == [3]


def test_a_path_that_is_no_checkpoint_is_not_found(trained, nitro):
    for sub in ("info", "verify", "prune"):
        assert nitro("checkpoint", sub, "runs/none").exit_code == 3


def test_cache_info_and_clear_need_no_jax(process, tmp_path):
    folder = tmp_path / "programs"
    done = process("cache", "info", "--json", "--cache-dir", folder, block_jax=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["entries"] == 0
    assert process("cache", "clear", "--cache-dir", folder, block_jax=True).returncode == 0


def test_doctor_finds_this_installation_in_order(probe, nitro_json):
    made = nitro_json("doctor")
    assert made["ok"] is True
    found = {check["name"]: check for check in made["checks"]}
    assert "cpu" in found["jax"]["detail"]
    assert "Probe" in found["experiments"]["detail"]


def test_doctor_names_another_distribution_that_owns_the_command_or_the_package(nitro_json, tmp_path, monkeypatch):
    folder = tmp_path / "site"
    for name, file, text in (
        ("static-sites", "entry_points.txt", "[console_scripts]\nnitro = static_sites:main\n"),
        ("old-fork", "RECORD", "nitro_cli/notes.txt,,\n"),
        ("harmless", "RECORD", "harmless/nitro_cli/nitro.py,,\n"),
    ):
        info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / file).write_text(text)
    # The finder that some libraries put in the place of Python's own lists files only where they are.
    (folder / "nitro_cli").mkdir()
    (folder / "nitro_cli" / "notes.txt").touch()
    monkeypatch.syspath_prepend(folder)
    found = {check["name"]: check for check in nitro_json("doctor")["checks"]}
    assert "static-sites 1.2 owns the command nitro" in found["distribution static-sites"]["detail"]
    assert "old-fork 1.2 owns the import package nitro_cli" in found["distribution old-fork"]["detail"]
    assert found["distribution old-fork"]["fix"].startswith("pip uninstall old-fork; pip install ")
    assert not {"distribution harmless", "distribution jax-nitro"} & set(found)


def test_doctor_says_when_the_shell_runs_another_program_as_nitro(nitro_json, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nitro"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec static-sites\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    found = {check["name"]: check for check in nitro_json("doctor")["checks"]}
    assert found["command nitro"]["detail"] == f"{program} is another program"
    assert "-m nitro_cli" in found["command nitro"]["fix"]
    program.write_text("#!/usr/bin/python\nfrom nitro_cli.__main__ import main\n")
    assert "command nitro" not in {check["name"] for check in nitro_json("doctor")["checks"]}


def test_devices_are_listed(nitro, nitro_json):
    made = nitro_json("devices")
    assert made["backend"] == "cpu"
    assert made["n_devs"] == len(made["devices"]) >= 1
    assert nitro("devices").exit_code == 0


def test_no_error_names_a_path_twice(trained, nitro):
    manifest = trained / "runs" / "Probe" / "manifest.json"
    (trained / "empty").mkdir()
    assert "where:" not in nitro("history", "empty").stderr
    manifest.write_text(manifest.read_text().replace("Probe", "Prabe"))
    told = nitro("checkpoint", "verify", "runs/Probe").stderr
    assert told.count("manifest.json") == 1, told
