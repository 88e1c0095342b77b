"""Runs of record format 2, stopped half way: they load bit for bit, and end where the version that made them did.

`subjects.py` is what they trained. The version that made them also resumed each and wrote down where it ended.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nitro_cli import Nitro, set_progress_reporter
from tests.legacy.subjects import Manual, MidEpoch, Pieces, digest, machine, norms

MADE = Path(__file__).parent / "format2"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
    previous = set_progress_reporter(None)
    yield
    set_progress_reporter(previous)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("mid_epoch", MidEpoch, id="stopped inside an epoch"),
        pytest.param("manual", Manual, id="manual mode"),
        pytest.param("pieces", Pieces, id="written by two processes in pieces, resumed by one"),
    ],
)
def test_it_loads_and_ends_bit_for_bit_as_the_version_that_made_it_went_on(
    name: str, kind: type, tmp_path: Path
) -> None:
    expected = json.loads((MADE / f"{name}.json").read_text())
    root = shutil.copytree(MADE / name, tmp_path / name)
    resumed = Nitro(kind(run_dir=root, n_devs=1), resume=("latest", "latest"))
    assert (resumed.step, digest(resumed)) == (expected["step"], expected["loaded"])
    resumed.train()
    assert (resumed.step, resumed.stop_reason) == (expected["ended_step"], "completed")
    assert norms(resumed) == pytest.approx(expected["norms"], rel=1e-4)
    if machine() == expected["machine"]:
        assert digest(resumed) == expected["ended"]
    assert len(resumed.history) == 3
