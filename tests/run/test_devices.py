"""Several local devices: what four compute agrees with one; the batch, and under fsdp the parameters, are really split.

The runs are made by `four_devices.py` in one process with four forced host devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOLERANCE = 1e-5
"""Sums of a batch in another order differ by float32 rounding; another dropout mask would differ by 1e-2."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("devices")
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "NITRO_CACHE_DIR": str(folder / "programs"),
    }
    script = Path(__file__).with_name("four_devices.py")
    ended = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_four_devices_train_and_evaluate_as_one_does_dropout_and_short_batches_included(found):
    run = found["replicated"]
    assert run["params"] < TOLERANCE
    assert run["state"] < TOLERANCE
    assert max(run["history"]) < TOLERANCE
    one, four = run["test"]
    assert four == pytest.approx(one, abs=TOLERANCE)


def test_the_compiled_step_holds_a_quarter_of_the_batch_and_sums_gradients_over_devices(found):
    run = found["replicated"]
    assert run["batch_specs"] == ["P(None, 'data')"]
    assert run["rows_in_program"]
    assert run["sums_gradients"]
    assert run["devices"] == 4


def test_a_short_batch_is_predicted_on_four_devices_with_and_without_data(found):
    assert found["replicated"]["predicted"] == [5, 3]
    assert found["replicated"]["predict"] < TOLERANCE
    assert found["without_data"]["shape"] == [5, 3]
    assert found["without_data"]["difference"] < TOLERANCE


def test_a_device_field_is_set_on_all_devices_and_compiles_nothing(found):
    run = found["replicated"]
    one, four = run["smoothed"]
    assert four == pytest.approx(one, abs=TOLERANCE)
    assert abs(four - run["test"][1]["loss"]) > 0.1
    assert run["device_value"] == 0.5
    assert run["new_programs"] == 0


def test_the_report_says_how_many_devices_and_that_data_is_streamed_to_them(found):
    report = found["replicated"]["report"]
    assert "whole on each device" in report
    assert "resident" not in report


def test_data_that_stays_on_four_devices_trains_as_on_one_each_gathering_its_rows(found):
    run = found["resident"]
    assert max(run["one"], run["streamed"], run["fsdp"]) < TOLERANCE
    assert run["resumed"]
    assert run["order"] in ("P(None, 'data')", "PartitionSpec(None, 'data')")
    assert run["rows_in_program"]
    assert "resident, whole on each device" in run["report"]
    assert "up to 32" in run["report"]


@pytest.mark.parametrize("kind", ["accum", "manual"])
def test_accumulation_and_manual_steps_agree_with_one_device(found, kind):
    assert found["other_steps"][kind] < TOLERANCE


def test_a_loss_of_terms_is_that_of_the_whole_batch_on_any_devices_in_any_micro_batches(found):
    assert len(found["terms"]) == 9
    assert max(found["terms"].values()) < 1e-6


@pytest.mark.parametrize("way", ["4 to 1", "1 to 4", "4 to 4"])
def test_a_run_resumes_on_another_number_of_devices(found, way):
    difference, bitwise, step, whole = found["resumed"][way]
    assert step == whole == 24
    assert difference < TOLERANCE
    assert bitwise or way != "4 to 4"


def test_fsdp_leaves_a_quarter_of_parameters_and_optimizer_state_on_each_device(found):
    shares = found["fsdp"]["shares"]
    for tree in ("params", "opt", "ema"):
        # Leaves by path: body bias and kernel, head bias and kernel; those below 4,096 elements stay whole.
        assert shares[tree] == [[2048, 2048], [12288, 3072], [3, 3], [6144, 1536]]
    assert shares["state"] == [[2048, 2048]]
    # 4 bytes each: (2048 + 3072 + 3 + 1536) of (2048 + 12288 + 3 + 6144).
    assert "fsdp: 26,636 of 81,932 bytes on each device" in found["fsdp"]["report"]


def test_fsdp_leaves_what_the_devices_do_not_divide_whole(found):
    assert all(whole == held for whole, held in found["fsdp"]["odd"])


def test_fsdp_trains_as_one_device_does_clipping_and_average_included(found):
    run = found["fsdp"]
    assert max(run["params"], run["opt"], run["ema"]) < TOLERANCE
    one, four = run["metrics"]
    assert four == pytest.approx(one, abs=TOLERANCE)


def test_of_shards_that_hold_the_same_one_is_written_and_the_record_of_two_processes_is_whole(found):
    run = found["pieces"]
    # Two devices to a process. What is copied over the axis that tells the processes apart is the first one's.
    assert run["counts"] == {"split": [2, 2], "columns": [2, 2], "copied over b": [1, 1], "copied over a": [2, 0]}
    assert all(run["same"].values())
    assert len(run["same"]) == 4


def test_a_record_of_an_fsdp_run_is_whole_and_resumes_bitwise(found):
    assert found["fsdp"]["record"]
    assert found["fsdp"]["resumed"]


def test_what_cannot_be_shared_is_refused_naming_both_numbers(found):
    refused = found["refused"]
    assert refused["divide"].startswith("DataError: batches of 8 do not divide by 3 devices")
    assert refused["too many"].startswith("ConfigError: n_devs = 5, but 4 devices are visible")
    assert refused["backend"].startswith("ConfigError: the process already runs on cpu")


def test_setup_devices_chooses_for_later_runs_and_the_command_reports_it(found):
    pinned = found["pinned"]
    assert pinned["before"] == [4, False, 4]
    assert pinned["after"] == [2, True, 4]
    assert pinned["used"] == 2
    assert pinned["command"]["n_devs"] == 2
    assert len(pinned["command"]["devices"]) == 4
