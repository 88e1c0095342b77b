"""A class under `python -c`: there is neither a file nor a text of it."""

import json
import os
import subprocess
import sys

import pytest

from tests.scenarios.conftest import REPOSITORY
from tests.scenarios.fileless import CLASS

SCRIPT = """
import json, sys, warnings

found = {}
handle = Nitro(Line(run_dir="run")).train()
found["run"] = handle.run_id
found["source"] = json.loads((handle.run_path / "run.json").read_text())["source"]
found["resumed"] = Nitro(Line(run_dir="run", max_epochs=3), resume="auto").train().epoch
found["weights"] = Nitro(Line(run_dir="run"), weights=(found["run"], "best"), data={}).checkpoint_source
try:
    Nitro(Line(run_dir="run", poison=True)).train()
except DivergenceError as error:
    found["diverged"] = str(error)

def line(params, state, x):
    return 2 * x * params["w"], state

with warnings.catch_warnings(record=True) as caught:
    handle.validate()
found["redefined"] = [str(warning.message) for warning in caught]

class Wrong(Line):
    def loss(self, out, *, z):
        return out.mean()

try:
    Nitro(Wrong())
except Exception as error:
    found["routing"] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("without-file")


@pytest.fixture(scope="module")
def found(folder):
    env = {**os.environ, "NITRO_CACHE_DIR": str(folder / "programs"), "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(
        [sys.executable, "-c", CLASS + SCRIPT], cwd=folder, env=env, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_trains_and_its_source_says_why_there_is_none(found):
    assert found["source"]["file"] is None
    assert found["source"]["sha256"] is None
    assert "python -c" in found["source"]["why"]


def test_it_resumes_and_its_checkpoints_load_where_the_class_is(found):
    assert found["resumed"] == 3
    assert found["run"] in found["weights"]


def test_what_goes_wrong_in_it_is_told_as_elsewhere(found):
    assert "DivergenceError" not in found["diverged"]
    assert "epoch 1, batch 0" in found["diverged"]
    assert any("__main__.line" in text for text in found["redefined"])
    assert found["routing"] == "RoutingError"


def test_another_process_says_what_to_do_and_takes_the_class_once_it_is_in_a_file(found, folder, command):
    done = command("evaluate", "run", "--split", "val", cwd=folder, code=3)
    assert "defined in a notebook cell or by python -c" in done.stderr
    assert "experiments/" in done.stderr.partition("fix: ")[2]
    assert "Traceback" not in done.stderr
    (folder / "experiments").mkdir()
    (folder / "experiments" / "line.py").write_text(CLASS)
    assert "mse" in command("evaluate", "run", "--split", "val", cwd=folder).stdout
