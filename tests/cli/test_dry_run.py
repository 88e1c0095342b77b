"""nitro train --dry-run: what is told, and that nothing is written."""

import pytest

from nitro_cli import cache_reset


def tree(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def empty_cache(monkeypatch, tmp_path_factory):
    """A program cache of its own, empty."""
    folder = tmp_path_factory.mktemp("programs")
    monkeypatch.setenv("NITRO_CACHE_DIR", str(folder))
    cache_reset()
    return folder


def test_the_document_has_configuration_figures_programs_and_disk(probe, nitro_json, empty_cache):
    before = tree(probe)
    words = ["Probe", "--preset", "wide", "--set", "noise=0.5", "--seed", "3"]
    made = nitro_json("train", *words, "--dry-run")
    assert made["schema"] == 1
    assert (made["experiment"], made["preset"]) == ("Probe", "wide")
    origins = {field["name"]: (field["value"], field["origin"]) for field in made["fields"]}
    assert origins["width"][0] == 3
    assert "preset wide" in origins["width"][1]
    assert "preset short" in origins["max_epochs"][1]
    assert origins["noise"] == (0.5, "--set noise=0.5")
    assert origins["seed"][0] == 3
    assert "--seed" in origins["seed"][1]
    assert (made["parameters"], made["parameter_bytes"]) == (4, 16)
    assert (made["total_steps"], made["steps_per_epoch"]) == (3, 3)
    assert made["flops_per_step"] > 0
    assert made["peak_bytes"] > 24 * 4 * 4
    assert {use["name"]: use["compiled"] for use in made["programs"]} == {"init": 2, "train": 1, "eval": 1}
    assert made["disk"]["bytes"] == made["disk"]["checkpoints"] * made["disk"]["bytes_per_checkpoint"]
    assert made["report"]["run"][0]["seed"] == 3
    assert {path for path in tree(probe) if path not in before and "__pycache__" not in path} == set()
    assert not (probe / "runs").exists()


def test_the_programs_it_compiled_are_in_the_cache_for_the_training_that_follows(probe, nitro_json, empty_cache):
    nitro_json("train", "Probe", "--dry-run")
    assert any(empty_cache.iterdir())
    cache_reset()  # as another process would find it
    made = nitro_json("train", "Probe", "--dry-run")
    assert {use["name"]: (use["compiled"], use["from_disk"]) for use in made["programs"]} == {
        "init": (0, 2), "train": (0, 1), "eval": (0, 1),
    }  # fmt: skip
    assert nitro_json("train", "Probe")["compiles"] == 0


def test_the_page_tells_origins_report_and_costs(probe, nitro):
    result = nitro("train", "Probe", "--preset", "wide", "--dry-run")
    assert result.exit_code == 0, result.output
    page = " ".join(result.stdout.split())
    for told in ("from preset wide", "from class default", "setup report", "parameters 4, 16 B", "steps 3, 3 an epoch",
                 "per step", "predicted", "are free at runs/Probe", "learning_rate = { kind", "resident"):  # fmt: skip
        assert told in page
    assert "nothing was trained" in result.stderr
    assert "a hook prints" not in result.stdout


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["Prob"], 3, "Probe"),
        (["Probe", "--preset", "shor"], 3, "short"),
        (["Probe", "--set", "widht=1"], 2, "width"),
        (["Probe", "--accum", "0"], 2, "accum"),
        (["Probe", "--resume", "latest:latest"], 3, "runs/Probe"),
        (["Probe", "--smoke"], 2, "--smoke"),
    ],
)
def test_what_is_wrong_fails_as_it_does_for_train(probe, nitro, words, code, named):
    result = nitro("train", *words, "--dry-run")
    assert result.exit_code == code, result.output
    assert named in result.stderr
    assert not (probe / "runs").exists()


def test_weights_that_do_not_fit_are_refused_as_incompatible(trained, nitro):
    before = tree(trained / "runs")
    result = nitro("train", "Probe", "--weights", "latest:best", "--set", "width=4", "--dry-run")
    assert result.exit_code == 4, result.output
    assert nitro("train", "Probe", "--preset", "wide", "--resume", "latest:latest", "--dry-run").exit_code == 0
    assert tree(trained / "runs") == before
