from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.checkpoints.names import contained_path, is_checkpoint_name, record_name
from nitro_cli.errors import HookError, IntegrityError


def test_a_metric_name_with_a_slash_stays_one_directory() -> None:
    assert record_name("epoch-0001-step-10-val/acc=0.5") == "epoch-0001-step-10-val_acc=0.5"


@pytest.mark.parametrize(
    "name", ["", "  ", "../up", "a/../../b", "/etc/x", "\\\\host\\x", "C:\\x", ".hidden", "x.corrupt-1"]
)
def test_a_name_that_leads_outside_or_hides_is_refused(name: str) -> None:
    with pytest.raises(HookError, match="cannot be named"):
        record_name(name)


@given(st.text())
def test_every_accepted_name_is_one_plain_directory_name(name: str) -> None:
    try:
        safe = record_name(name)
    except HookError:
        return
    assert Path(safe).name == safe
    assert is_checkpoint_name(safe)
    assert len(safe.encode("utf-8", "surrogatepass")) <= 180


def test_long_names_stay_distinct() -> None:
    assert record_name("x" * 400 + "a") != record_name("x" * 400 + "b")


@pytest.mark.parametrize(
    "relative", ["../x", "/etc/passwd", "a/../../b", "a\\b", "", "C:/x", "a\x00b", "x" * 256, "gs://b/x"]
)
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(IntegrityError, match="leads outside"):
        contained_path(tmp_path, relative, tmp_path / "manifest.json")


def test_a_link_below_the_directory_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "away").symlink_to(tmp_path / "outside")
    (root / "near").symlink_to(root / "inside")
    (root / "loop").symlink_to(root / "loop")
    assert contained_path(root, "inside/x", root / "m") == root / "inside/x"
    for linked in ("away/x", "near/x", "near", "loop", "loop/x"):
        with pytest.raises(IntegrityError, match="is a link"):
            contained_path(root, linked, root / "m")


def test_a_root_that_is_itself_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    assert contained_path(tmp_path / "runs", "a/b", tmp_path / "m") == tmp_path / "runs/a/b"
