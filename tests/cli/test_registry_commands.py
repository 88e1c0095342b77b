"""list, show, presets."""

import json

import pytest


def test_list_finds_experiments_and_presets_without_importing_anything(probe, process):
    (probe / "experiments" / "broken.py").write_text("class Broken(:\n")
    done = process("list", "--json", block_jax=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    rows = {row["name"]: row for row in made["experiments"]}
    assert rows["Probe"]["presets"] == ["short", "wide"]
    assert rows["Probe"]["source"] == "local"
    assert rows["Probe"]["error"] is None
    assert any("does not parse" in (row["error"] or "") for row in rows.values())


def test_list_shows_what_is_broken_and_why(probe, nitro):
    (probe / "experiments" / "broken.py").write_text("class Broken(:\n")
    result = nitro("list")
    assert result.exit_code == 0
    assert "Probe" in result.stdout
    assert "broken: experiments/broken.py" in result.stderr


def test_list_check_imports_each_and_fails_when_one_cannot_be_imported(probe, nitro):
    (probe / "experiments" / "half.py").write_text(
        "import no_such_package\nfrom nitro_cli import Experiment\n\n\nclass Half(Experiment):\n    pass\n"
    )
    result = nitro("list", "--check")
    assert result.exit_code == 1
    assert "no_such_package" in result.stderr
    assert "Probe" in result.stdout


def test_show_json_has_the_keys_of_every_field(probe, nitro_json):
    made = nitro_json("show", "Probe", "--preset", "wide", "--set", "noise=0.5")
    fields = {row["name"]: row for row in made["fields"]}
    assert {"name", "kind", "type", "value", "default", "origin", "doc"} <= fields["width"].keys()
    assert (fields["width"]["kind"], fields["width"]["value"], fields["width"]["default"]) == ("graphconst", 3, 2)
    assert "preset wide" in fields["width"]["origin"]
    assert (fields["noise"]["kind"], fields["noise"]["origin"]) == ("device", "--set noise=0.5")
    assert fields["max_epochs"]["origin"].startswith("preset short")
    assert fields["seed"]["origin"] == "class default"
    assert "How many inputs" in fields["width"]["doc"]
    assert made["schedules"] == {"learning_rate": {"kind": "cosine", "init_value": 0.1}}


def test_show_is_legible_at_eighty_columns(probe, nitro):
    result = nitro("show", "Probe", "--preset", "wide", "--origin")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "from class default" in result.stdout
    assert "width" in result.stdout


def test_show_obeys_the_precedence(probe, nitro_json, monkeypatch):
    monkeypatch.setenv("NITRO_MAX_EPOCHS", "7")
    fields = {row["name"]: row for row in nitro_json("show", "Probe", "--preset", "short")["fields"]}
    assert fields["max_epochs"]["value"] == 7
    assert "NITRO_MAX_EPOCHS" in fields["max_epochs"]["origin"]


def test_presets_check_reports_every_problem_with_file_and_line(probe, nitro, nitro_json):
    assert nitro("presets", "check").exit_code == 0
    (probe / "presets" / "Probe" / "bad.toml").write_text('[fields]\nwidht = 1\nmax_epochs = "x"\n')
    made = nitro_json("presets", "check", code=2)
    found = [(problem["line"], problem["key"], problem["nearest"]) for problem in made["problems"]]
    assert found == [(2, "widht", ["width"]), (3, "max_epochs", [])]
    result = nitro("presets", "check", "Probe")
    assert result.exit_code == 2
    assert "bad.toml:2" in result.stdout


@pytest.mark.parametrize(
    ("preset", "told"),
    [
        ('[fields]\nmonitor = ["mse", "min"]\n', None),
        ('[fields]\nearly_stop = { patience = 2 }\nmonitor = ["mse", "min"]\n', None),
        ('unset = ["monitor"]\n[fields]\nearly_stop = { patience = 2 }\n', "would follow the monitor"),
        ('[schedules]\nnoise = { kind = "linear", init_value = 1.0, end_value = 0.0 }\n', None),
        ('[schedules]\nwidth = { kind = "linear", init_value = 1.0, end_value = 0.0 }\n', "GraphConst"),
        ('[schedules]\nlearning_rat = { kind = "linear", init_value = 1.0, end_value = 0.0 }\n', "learning_rat"),
    ],
)
def test_presets_check_refuses_what_training_would_refuse_before_it_has_data(probe, nitro, preset, told):
    (probe / "presets" / "Probe" / "tried.toml").write_text(preset)
    checked = nitro("presets", "check", "Probe")
    trained = nitro("train", "Probe", "--preset", "tried", "--dry-run")
    assert (checked.exit_code, trained.exit_code) == ((0, 0) if told is None else (2, 2)), (
        checked.output + trained.output
    )
    if told is not None:
        assert told in checked.stdout
        assert "tried.toml" in checked.stdout


def test_presets_show_and_diff(probe, nitro_json):
    shown = nitro_json("presets", "show", "Probe", "wide")
    assert {row["name"]: row["value"] for row in shown["fields"]} == {"max_epochs": 1, "width": 3}
    found = nitro_json("presets", "diff", "Probe", "short", "wide")
    assert [row["key"] for row in found["differences"]] == ["width", "schedules.learning_rate"]


def test_presets_new_writes_a_preset_that_resolves_to_the_same(probe, nitro, nitro_json):
    result = nitro("presets", "new", "Probe", "mine", "--extends", "short", "--set", "width=9", "--description", "nine")
    assert result.exit_code == 0, result.output
    assert (probe / result.stdout.strip()).is_file()
    fields = {row["name"]: row["value"] for row in nitro_json("show", "Probe", "--preset", "mine")["fields"]}
    assert (fields["width"], fields["max_epochs"]) == (9, 1)
    assert nitro("presets", "new", "Probe", "mine").exit_code == 2
    assert nitro("presets", "new", "Probe", "mine", "--force").exit_code == 0
