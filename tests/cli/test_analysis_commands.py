"""predict, analyze, calibrate and abstain from the command line, on files and on a run."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nitro_cli.analysis import AbstentionPolicy, Calibrator, load_predictions
from nitro_cli.cli.app import app

SORTER = textwrap.dedent(
    '''
    import jax
    import jax.numpy as jnp
    import numpy as np

    from nitro_cli import ArrayBatches, Experiment, Mean


    def _rows(n, seed):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, n).astype(np.int32)
        x = (3 * np.eye(3)[y] + 2 * rng.normal(size=(n, 3))).astype(np.float32)
        return {"x": x, "y": y, "age": rng.integers(0, 90, n), "name": np.array([f"{seed}-{i}" for i in range(n)])}


    class Sorter(Experiment):
        """Three classes of points."""

        max_epochs = 1
        learning_rate = 0.3
        monitor = ("acc", "max")

        def build_data(self, dist):
            sizes = {"train": (64, 32, False), "val": (150, 16, False), "test": (133, 24, True)}
            return {
                name: ArrayBatches(_rows(n, seed), batch, shuffle=shuffled)
                for seed, (name, (n, batch, shuffled)) in enumerate(sizes.items())
            }

        def build_model(self, rng):
            return _linear, {"w": 2 * jnp.eye(3)}, {}

        def forward(self, model, params, state, *, x):
            return model(params, state, x)

        def loss(self, outputs, *, y):
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1))

        def metrics(self, outputs, *, y):
            return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


    def _linear(params, state, x, *, train, key):
        return x @ params["w"], state
    '''
)
DECLARED = ("--kind", "categorical", "--target", "y")


@pytest.fixture(scope="module")
def sorted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a finished run and prediction files of its splits; not to be changed."""
    folder = tmp_path_factory.mktemp("sorted")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "sorter.py").write_text(SORTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NITRO_NO_PLUGINS", "1")
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        commands = [["train", "Sorter"]]
        words = ["--with", "age", "--id", "name", *DECLARED]
        commands += [["predict", "--split", split, "-o", f"{split}.npz", *words] for split in ("val", "test")]
        for command in commands:
            result = CliRunner().invoke(app, command, prog_name="nitro")
            assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def sorted_rows(sorted_once: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(sorted_once, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_what_predict_writes_of_a_split_is_read_whole(sorted_rows, nitro_json):
    found = load_predictions(sorted_rows / "test.npz")
    rows = _rows_of(sorted_rows, "test")
    order = np.argsort([int(name.partition("-")[2]) for name in found.ids])
    assert sorted(found.ids.tolist()) == sorted(rows["name"].tolist())
    np.testing.assert_array_equal(found.target[order], rows["y"])
    np.testing.assert_array_equal(found.fields["age"][order], rows["age"])
    assert found.origin.split == "test"
    assert found.origin.experiment == "Sorter"
    assert found.origin.ids == "name"
    made = nitro_json("evaluate", "--split", "test")["metrics"]["acc"]
    assert (found.decoded == found.target).mean() == pytest.approx(made)
    with np.load(sorted_rows / "test.npz") as held:
        np.testing.assert_array_equal(held["probabilities"], found.probabilities)
        np.testing.assert_array_equal(held["decoded"], found.decoded)


def _rows_of(folder: Path, split: str):
    namespace: dict = {}
    exec((folder / "experiments" / "sorter.py").read_text().partition("class Sorter")[0], namespace)
    seed, n = {"train": (0, 64), "val": (1, 150), "test": (2, 133)}[split]
    return namespace["_rows"](n, seed)


def test_ids_are_positions_in_the_split_under_a_shuffle_too(sorted_rows, nitro):
    assert nitro("predict", "--split", "test", "-o", "plain.npz", *DECLARED).exit_code == 0
    with np.load(sorted_rows / "plain.npz") as held:
        ids, target = held["ids"], held["target"]
        assert json.loads(held["meta"].item())["ids"] is None
    rows = _rows_of(sorted_rows, "test")
    assert not np.array_equal(ids, np.arange(133))
    np.testing.assert_array_equal(target, rows["y"][ids])


def test_predictions_of_a_file_hold_the_same_outputs_and_weights(sorted_rows, nitro):
    rows = _rows_of(sorted_rows, "val")
    np.savez(sorted_rows / "in.npz", **rows)
    words = ["-o", "out.npz", *DECLARED, "--with", "age", "--labels", "a,b,c"]
    assert nitro("predict", "-i", "in.npz", *words).exit_code == 0
    found, val = load_predictions(sorted_rows / "out.npz"), load_predictions(sorted_rows / "val.npz")
    np.testing.assert_allclose(found.outputs, val.outputs, rtol=1e-6)
    assert found.origin.model_id == val.origin.model_id
    assert found.labels == ("a", "b", "c")
    assert found.origin.split is None
    np.testing.assert_array_equal(found.ids, np.arange(150))


def test_the_digest_of_the_weights_follows_them(sorted_rows, nitro):
    before = load_predictions(sorted_rows / "val.npz").origin
    assert nitro("train", "Sorter", "--learning-rate", "0.1").exit_code == 0
    assert nitro("predict", "--split", "val", "-o", "other.npz", *DECLARED).exit_code == 0
    after = load_predictions(sorted_rows / "other.npz").origin
    assert after.model_id != before.model_id
    assert after.data == before.data
    result = nitro("analyze", "val.npz", "other.npz")
    assert result.exit_code == 4
    assert "two models" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["predict", "-o", "o.npz"], 2, "--input or --split"),
        (["predict", "-o", "o.npz", "--split", "test", "-i", "x.npz"], 2, "one of the two"),
        (["predict", "-o", "o.npz", "--split", "tset"], 3, "test"),
        (["predict", "-o", "o.npz", "--split", "test", "--with", "aeg"], 2, "age"),
        (["predict", "-o", "o.npz", "--split", "test", "--with", "meta"], 2, "prediction file itself uses"),
        (["predict", "-o", "o.npz", "--split", "test", "--labels", "a,b"], 2, "--kind"),
        (["predict", "-o", "o.npz", "--split", "test", "--kind", "categorical", "--logits", "head"], 2, "outputs"),
        (["predict", "-o", "o.npz", "--split", "test", "--kind", "categorical", "--labels", "a,b"], 2, "2 labels"),
        (["predict", "-o", "o.npz", "--split", "test", "--calibrator", "latest"], 3, "nitro calibrate"),
        (["analyze", "runs/Sorter"], 2, "--kind"),
        (["analyze", "runs/Sorter", "--kind", "categorical"], 2, "--target"),
        (["analyze", "runs/Sorter", *DECLARED, "--split", "tset"], 3, "test"),
        (["analyze", "test.npz", "--split", "val"], 2, "--split is of a run"),
        (["analyze", "test.npz", "runs/Sorter"], 2, "no prediction file"),
        (["analyze", "tst.npz"], 3, "test.npz"),
        (["analyze", "test.npz", "test.npz"], 2, "--repeats"),
        (["analyze", "test.npz", "--slice", "town"], 2, "age"),
        (["analyze", "test.npz", "--out", "o.csv"], 2, ".json"),
        (["analyze", "test.npz", "--calibrator", "latest"], 2, "name the file"),
        (["analyze", "test.npz", "--calibrator", "c.json"], 3, "a file that `nitro calibrate` wrote"),
        (["predict", "-o", "-", "--split", "test"], 2, "--output predictions.npz"),
        (["calibrate", "test.npz", "--report", "test.npz"], 2, "fit on another"),
        (["calibrate", "val.npz", "--method", "plat"], 2, "platt"),
        (["calibrate", "val.npz", "--method", "platt"], 2, "bernoulli"),
        (["calibrate", "val.npz", "--report", "val.npz"], 2, "one split"),
        (["calibrate", "val.npz", "--out", "c.txt"], 2, ".json"),
        (["abstain", "val.npz", "--risk", "1.5"], 2, "0 to 1"),
        (["abstain", "val.npz", "--risk", "0.1", "--score", "entropy"], 2, "max_probability"),
        (["abstain", "val.npz", "--risk", "0.1", "--report", "val.npz"], 2, "one split"),
        (["abstain", "val.npz", "--risk", "0", "--confidence", "0.95"], 1, "smallest risk"),
    ],
)
def test_what_cannot_be_done_is_told_and_writes_nothing(sorted_rows, nitro, words, code, told):
    before = sorted(sorted_rows.rglob("*"))
    result = nitro(*words)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stdout == ""
    assert [
        path for path in sorted(sorted_rows.rglob("*")) if path not in before and "__pycache__" not in str(path)
    ] == []


def test_analyze_of_files_needs_no_jax(sorted_rows, process):
    done = process("analyze", "test.npz", "--slice", "age=30,60*class", "--json", block_jax=True)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["rows"] == 133
    assert sum(one["rows"] for one in made["slices"][0]["slices"]) == 133
    for words in (["calibrate", "val.npz", "--report", "test.npz"], ["abstain", "val.npz", "--risk", "0.2"]):
        done = process(*words, block_jax=True)
        assert done.returncode == 0, done.stderr


def test_a_run_and_its_files_have_the_same_analysis(sorted_rows, nitro_json):
    of_run = nitro_json("analyze", *DECLARED, "--slice", "age=30", "--id", "name", "--split", "test")
    kept = Path(of_run.pop("path"))
    assert kept.parent.parent.name == "analysis"
    assert kept.parent.name.startswith("test-epoch-0001")
    assert json.loads(kept.read_text())["metrics"] == of_run["metrics"]
    of_file = nitro_json("analyze", "test.npz", "--slice", "age=30")
    assert of_file.pop("path") is None
    for name in ("metrics", "report", "confusion", "slices", "errors", "aurc"):
        assert of_run[name] == of_file[name], name
    assert of_run["origin"] == of_file["origin"]


def test_calibrate_abstain_and_predict_agree_from_a_run(sorted_rows, nitro_json, nitro):
    made = nitro_json("calibrate", *DECLARED, "--id", "name", "--report", "test")
    assert made["report"]["disjoint"] == "verified"
    assert made["report"]["after"]["nll"] < made["report"]["before"]["nll"]
    calibrator = Calibrator.load(made["path"])
    assert calibrator.id == made["id"]
    chosen = nitro_json("abstain", *DECLARED, "--risk", "0.2", "--calibrator", "latest", "--report", "test")
    policy = AbstentionPolicy.load(chosen["path"])
    assert policy.calibrator == calibrator.id
    assert chosen["chosen"]["risk"] <= 0.2
    words = [*DECLARED, "--calibrator", "latest", "--policy", "latest", "--id", "name"]
    assert nitro("predict", "--split", "test", "-o", "judged.npz", *words).exit_code == 0
    test = load_predictions(sorted_rows / "test.npz")
    decisions = policy.apply(test, calibrator=calibrator)
    with np.load(sorted_rows / "judged.npz") as held:
        meta = json.loads(held["meta"].item())
        np.testing.assert_allclose(
            held["calibrated_probabilities"], calibrator.apply(test).calibrated_probabilities, atol=1e-6
        )
        np.testing.assert_allclose(held["score"], decisions.score, atol=1e-6)
        np.testing.assert_array_equal(held["accepted"], decisions.accepted)
    assert (meta["calibrator"], meta["policy"]) == (calibrator.id, policy.id)
    assert chosen["report"]["accepted"] == decisions.accepted.sum()
    again = nitro_json("analyze", "judged.npz", "--calibrator", made["path"], "--policy", chosen["path"])
    assert again["coverage"]["accepted"] == chosen["report"]["accepted"]
    assert again["calibration"]["after"]["nll"] == pytest.approx(made["report"]["after"]["nll"])
    metrics = nitro_json("evaluate", "--split", "test", *words)["metrics"]
    assert metrics["calibrated/nll"] == pytest.approx(made["report"]["after"]["nll"])
    assert metrics["coverage"] * len(test) == pytest.approx(decisions.accepted.sum())
    assert metrics["selective_risk"] == pytest.approx(decisions.report().risk)
    assert "acc" in metrics
    made = nitro_json("export", "--calibrator", "latest", "--policy", "latest", "--kind", "categorical")
    assert {"calibrator.json", "policy.json"} <= {file.name for file in Path(made["path"]).iterdir()}


def test_artefacts_of_other_weights_are_refused_before_anything_is_written(sorted_rows, nitro):
    assert nitro("calibrate", "val.npz").exit_code == 0
    assert nitro("train", "Sorter", "--learning-rate", "0.1").exit_code == 0
    words = ["predict", "--split", "test", "-o", "o.npz", *DECLARED, "--calibrator", "calibrator.json"]
    result = nitro(*words)
    assert result.exit_code == 4
    assert "another model" in result.stderr
    assert not (sorted_rows / "o.npz").exists()
    assert nitro(*words, "--override", "a test").exit_code == 0
    words = ["evaluate", "--split", "test", "--calibrator", "calibrator.json"]
    assert nitro(*words, *DECLARED).exit_code == 4
    leaving = nitro("export", "--kind", "categorical", "--calibrator", "calibrator.json")
    assert leaving.exit_code == 4, leaving.output
    assert not list(sorted_rows.glob("runs/*/export"))
    assert nitro(*words).exit_code == 2  # nothing says what the outputs mean
    assert nitro(*words, *DECLARED, "--override", "a test").exit_code == 0


def test_a_file_that_is_there_is_kept_without_force(sorted_rows, nitro):
    (sorted_rows / "calibrator.json").write_text("mine")
    result = nitro("calibrate", "val.npz")
    assert result.exit_code == 2
    assert (sorted_rows / "calibrator.json").read_text() == "mine"
    assert nitro("calibrate", "val.npz", "--force").exit_code == 0
    assert Calibrator.load(sorted_rows / "calibrator.json").method == "temperature"


def test_a_fit_that_fails_ends_with_its_reason_and_code_one(sorted_rows, nitro):
    np.savez(sorted_rows / "sure.npz", outputs=[[9.0, 0.0], [0.0, 9.0]], target=[0, 1])
    result = nitro("calibrate", "sure.npz", "--kind", "categorical")
    assert result.exit_code == 1
    assert "separate" in result.stderr
    assert not (sorted_rows / "calibrator.json").exists()


def test_people_see_tables_and_files_are_named(sorted_rows, nitro):
    result = nitro("analyze", "test.npz", "--figures", "out", "--out", "report.md", "--errors", "2")
    assert result.exit_code == 0, result.output
    for word in ("accuracy", "classes", "confusion", "most confident mistakes", "macro"):
        assert word in result.stdout
    assert "written: report.md" in result.stderr
    assert (sorted_rows / "out" / "confusion.png").exists()
    assert "## Metrics" in (sorted_rows / "report.md").read_text()
    made = nitro("calibrate", "val.npz", "--report", "test.npz")
    assert "better calibrated" in made.stdout
    assert "temperature" in made.stderr


def test_what_a_task_names_need_not_be_in_a_file_of_new_inputs(sorted_rows, nitro):
    task = '    task: Task = Categorical(3, target="y", id="name", mask="seen")\n'
    named = SORTER.replace('    """Three classes of points."""\n', f'    """Three classes of points."""\n\n{task}')
    named = named.replace("class Sorter", "class Named").replace('"y": y,', '"y": y, "seen": y > -1,')
    imports = "from nitro_cli.tasks import Categorical, Task\n"
    (sorted_rows / "experiments" / "named.py").write_text(imports + named)
    assert nitro("train", "Named", "--max-epochs", "1").exit_code == 0
    np.savez(sorted_rows / "new.npz", x=np.eye(3, dtype=np.float32))
    result = nitro("predict", "runs/Named", "--input", "new.npz", "-o", "made.npz")
    assert result.exit_code == 0, result.output
    with np.load(sorted_rows / "made.npz") as held:
        assert set(held.files) == {"outputs", "probabilities", "decoded", "meta"}
        np.testing.assert_array_equal(held["decoded"], [0, 1, 2])
    refused = nitro("predict", "runs/Named", "--input", "new.npz", "-o", "other.npz", "--id", "name")
    assert (refused.exit_code, "name" in refused.stderr) == (2, True)


def test_a_policy_in_the_place_of_a_calibrator_is_called_what_it_is(sorted_rows, nitro):
    made = nitro("abstain", "val.npz", "--risk", "0.9", "--out", "p.json")
    assert made.exit_code == 0, made.output
    refused = nitro("analyze", "test.npz", "--calibrator", "p.json")
    assert refused.exit_code == 2
    assert "this is a policy, and a calibrator was asked for" in refused.stderr


def test_a_run_is_shown_by_its_directory_and_id_too(sorted_rows, nitro_json):
    run = nitro_json("runs", "runs/Sorter")["runs"][0]["id"]
    assert nitro_json("show", f"runs/Sorter:{run}")["fields"] == nitro_json("show", run)["fields"]


def test_decisions_in_a_file_are_int32_as_those_of_an_exported_program(sorted_rows):
    with np.load(sorted_rows / "test.npz") as held:
        assert held["decoded"].dtype == np.int32


def test_export_and_verify_count_the_same_files(sorted_rows, nitro_json):
    made = nitro_json("export", "runs/Sorter", "--dir", "out", "--name", "b")
    checked = nitro_json("bundle", "verify", "out/b")
    assert made["files"] == checked["files"] == sum(p.is_file() for p in Path("out/b").rglob("*")) - 1
