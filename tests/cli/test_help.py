import subprocess
import sys

import pytest

from nitro_cli.cli.command_table import COMMANDS


def test_help_lists_every_command_without_jax(process):
    done = process("--help", block_jax=True)
    assert done.returncode == 0
    assert done.stderr == ""
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_help_fits_eighty_columns(process):
    assert max(map(len, process("--help").stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_help_page_of_eighty_columns(nitro, name):
    result = nitro(name, "--help")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Usage: nitro {name}")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_command_can_be_loaded_without_jax(environment):
    script = (
        "from nitro_cli.cli.app import build_command\n"
        "from nitro_cli.cli.command_table import COMMANDS\n"
        "for name, entry in COMMANDS.items():\n"
        "    build_command(name, entry)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment(block_jax=True), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("group", "sub"), [(g, s) for g, entry in COMMANDS.items() for s in entry.group])
def test_every_subcommand_has_a_help_page(nitro, group, sub):
    result = nitro(group, sub, "--help")
    assert result.exit_code == 0, result.output
    assert f"nitro {group} {sub}" in result.stdout


def test_an_unknown_command_is_a_usage_error_naming_the_nearest(nitro):
    result = nitro("trian")
    assert result.exit_code == 2
    assert "train" in result.stderr
    assert result.stdout == ""


def test_an_unknown_option_is_a_usage_error_on_stderr(nitro):
    result = nitro("runs", "--sorted")
    assert result.exit_code == 2
    assert "--sort" in result.stderr
    assert result.stdout == ""


def test_a_usage_error_is_json_under_json(nitro):
    import json

    result = nitro("runs", "--sorted", "--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    told = json.loads(result.stderr)
    assert told["error"] == "UsageError"
    assert told["exit_code"] == 2
    assert told["schema"] == 1


def test_no_command_shows_help_as_a_usage_error(nitro):
    result = nitro()
    assert result.exit_code == 2
    assert "train" in result.stderr


def test_version_is_one_line(nitro):
    result = nitro("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("nitro ")


def test_command_names_complete_without_importing_a_command(process):
    asked = {"_NITRO_COMPLETE": "complete_bash", "COMP_WORDS": "nitro pre", "COMP_CWORD": "1"}
    assert set(process(block_jax=True, env=asked).stdout.split()) == {"predict", "presets"}


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--help"], "numpy pydantic"),
        (["list"], "numpy pydantic"),
        # What a run directory says passes a schema, which is pydantic's.
        (["runs"], "numpy"),
        (["runs", "runs/Probe"], "numpy"),
        (["history", "runs/Probe"], "numpy"),
    ],
)
def test_the_light_commands_load_no_jax_and_nothing_they_do_not_need(trained, environment, words, unneeded):
    command = [sys.executable, "-m", "nitro_cli", *words]
    env = environment(block_jax=True, also=unneeded)
    done = subprocess.run(command, env=env, cwd=trained, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", "Probe", "--width", "3"], "--set width=3"),
        (["train", "Probe", "--width=3"], "--set width=3"),
        (["resume", "--noise", "-1.5"], "--set noise=-1.5"),
        (["evaluate", "runs/Probe", "--early-stop", "a b"], "--set 'early_stop=a b'"),
        (["show", "Probe", "--width", "--json"], "--set width=VALUE"),
    ],
)
def test_an_unknown_option_says_how_a_field_is_set(nitro, words, fix):
    refused = nitro(*words)
    assert refused.exit_code == 2
    assert f"`{fix}`" in refused.stderr


def test_a_command_without_fields_says_nothing_of_them(nitro):
    assert "--set" not in nitro("runs", "--width", "3").stderr
