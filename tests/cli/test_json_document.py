import json
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.cli.json_document import SCHEMA, document, dumps


def test_a_document_starts_with_its_schema_number():
    assert list(document(a=1)) == ["schema", "a"]
    assert document()["schema"] == SCHEMA


def test_a_number_that_is_not_finite_is_null_with_the_reason_beside_it():
    made = document(metrics={"loss": float("nan"), "acc": 0.5}, worst=float("inf"))
    assert made["metrics"] == {"loss": None, "acc": 0.5, "nonfinite": {"loss": "nan"}}
    assert made["worst"] is None
    assert made["nonfinite"] == {"worst": "inf"}


def test_an_element_of_a_list_that_is_not_finite_is_named_by_its_index():
    assert document(values=[1.0, float("-inf")])["nonfinite"] == {"values[1]": "-inf"}


def test_arrays_and_paths_become_plain_values():
    values = {"a": np.arange(3, dtype=np.int32), "b": np.float32(0.5), "c": Path("runs/x"), "d": np.bool_(True)}
    made = json.loads(dumps(document(**values)))
    assert made == {"schema": 1, "a": [0, 1, 2], "b": 0.5, "c": "runs/x", "d": True}


def branches(inner):
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.recursive(leaves, branches, max_leaves=8))
def test_every_value_gives_strict_json(value):
    def refuse(name):
        raise AssertionError(name)

    json.loads(dumps(document(value=value)), parse_constant=refuse)


def test_every_document_names_the_experiment_by_its_class(trained, nitro, nitro_json):
    (run,) = nitro_json("runs")["runs"]
    made = {
        "runs": run,
        "compare": nitro_json("compare", run["id"], run["id"])["runs"][0],
        "list": nitro_json("list")["experiments"][0],
        "show": nitro_json("show", "Probe"),
        "preset": nitro_json("presets", "show", "Probe", "wide"),
        "evaluate": nitro_json("evaluate", run["id"]),
        "checkpoint": nitro_json("checkpoint", "info", "runs/Probe/" + run["best"]["checkpoint"]),
        "file": nitro_json("evaluate", "experiments/probe.py:Probe", "--set", "width=3", "--weights", "latest:best"),
    }
    assert {name: document["experiment"] for name, document in made.items()} == dict.fromkeys(made, "Probe")
    told = [made[name]["import_path"] for name in ("runs", "compare", "list", "show", "checkpoint")]
    assert all(path.endswith("experiments/probe.py:Probe") for path in told)
