from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.checkpoints import Manifest, ManifestEntry, RecordMeta, RunInfo, manifest, read_manifest
from nitro_cli.checkpoints.documents import EntryDocument
from nitro_cli.checkpoints.manifest import dump_manifest, load_manifest, update_manifest
from nitro_cli.errors import IncompatibleError, IntegrityError, NitroWarning, RunNotFoundError

RUN = "aaaaaaaa"


def put(root: Path, *entries: ManifestEntry, **runs: RunInfo) -> None:
    content = Manifest(runs or {RUN: RunInfo(RUN, "Toy")}, entries)
    (root / "manifest.json").write_bytes(dump_manifest(content))
    for entry in entries:
        (root / entry.path).mkdir(parents=True, exist_ok=True)


def entry(name: str = "epoch-1", **facts: object) -> ManifestEntry:
    known: dict[str, object] = {"path": f"{RUN}/checkpoints/{name}", "run": RUN, "epoch": 1, "step": 10, **facts}
    return ManifestEntry(**known)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.floats() | st.none(),
    st.text(st.characters(codec="utf-8")) | st.none(),
    st.booleans(),
    st.floats(0, 2.5e11),
)
def test_an_entry_survives_json_with_any_score(
    score: float | None, metric: str | None, resume_point: bool, written: float
) -> None:
    made = entry(score=score, metric=metric, mode="max", resume_point=resume_point, written=written)
    document = json.loads(json.dumps(made.as_json(), allow_nan=False))
    read = EntryDocument.model_validate(document).entry(document["path"])
    if score is not None and math.isnan(score):
        assert math.isnan(read.score or 0)
        made, read = replace(made, score=None), replace(read, score=None)
    assert read == made


def test_a_score_that_is_not_finite_is_null_with_its_name_beside() -> None:
    document = entry(score=-math.inf).as_json()
    assert (document["score"], document["nonfinite"]) == (None, {"score": "-inf"})


def test_a_manifest_reads_back_as_written(tmp_path: Path) -> None:
    made = entry(score=0.5, metric="loss", mode="min")
    info = RunInfo(RUN, "pkg:Toy", "base", "completed", None, 3, 1.0, 2.0, (f"{RUN}/checkpoints/old",))
    put(tmp_path, made, **{RUN: info})
    assert read_manifest(tmp_path) == Manifest({RUN: info}, (made,))


def test_a_directory_without_a_manifest_is_empty_and_no_directory_is_not_found(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == Manifest()
    with pytest.raises(RunNotFoundError):
        read_manifest(tmp_path / "nowhere")


def test_checkpoints_gone_from_the_disk_are_left_out_with_a_warning(tmp_path: Path) -> None:
    put(tmp_path, entry("epoch-1"), entry("epoch-2"))
    (tmp_path / RUN / "checkpoints" / "epoch-1").rmdir()
    with pytest.warns(NitroWarning, match="epoch-1"):
        assert [e.name for e in read_manifest(tmp_path).entries] == ["epoch-2"]


def test_a_rotation_between_reading_and_looking_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, entry("epoch-1"))
    real = manifest.present_names

    def rotated_just_before(*arguments: object) -> object:
        monkeypatch.setattr(manifest, "present_names", real)
        put(tmp_path, entry("epoch-2"))
        (tmp_path / RUN / "checkpoints" / "epoch-1").rmdir()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(manifest, "present_names", rotated_just_before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [e.name for e in read_manifest(tmp_path).entries] == ["epoch-2"]


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 7, "framework": "8.0.0", "runs": {}, "entries": []}')
    with pytest.raises(IncompatibleError, match="format 7") as caught:
        read_manifest(tmp_path)
    assert "8.0.0" in (caught.value.why or "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "1"}', '{"format": 1}', '{"format": 1, "runs": [], "entries": 3}']
)
def test_a_damaged_manifest_is_an_integrity_error_that_names_the_rescan(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(IntegrityError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "path", ["../x", "/etc", f"{RUN}/checkpoints/..", f"{RUN}/../../x", "bbbbbbbb/checkpoints/x", f"{RUN}/x", "x"]
)
def test_an_entry_that_is_not_a_checkpoint_of_its_run_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "manifest.json").write_bytes(dump_manifest(Manifest({}, (entry(path=path),))))
    with pytest.raises(IntegrityError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("linked", [f"{RUN}/checkpoints/epoch-1", f"{RUN}/checkpoints", RUN])
def test_a_link_that_leads_out_of_the_directory_is_refused(tmp_path: Path, linked: str) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    put(root, entry("epoch-1"))
    (root / linked).rename(tmp_path / "outside")
    (root / linked).symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError, match="leads outside"):
        read_manifest(root)


def test_a_failed_change_leaves_the_old_manifest(tmp_path: Path) -> None:
    put(tmp_path, entry())
    before = (tmp_path / "manifest.json").read_bytes()

    def broken(old: Manifest) -> Manifest:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        update_manifest(tmp_path, broken)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_temporaries_of_killed_writers_are_cleaned(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.tmp-12345678").write_text("half")
    update_manifest(tmp_path, lambda old: old.with_run(RunInfo(RUN)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".manifest.lock", "manifest.json"]


WRITER = """
import sys
from pathlib import Path
from nitro_cli.checkpoints.entries import RunInfo
from nitro_cli.checkpoints.manifest import update_manifest
root, first = Path(sys.argv[1]), int(sys.argv[2])
for number in range(first, first + 8):
    update_manifest(root, lambda old: old.with_run(RunInfo(f"{number:08x}", "Toy")))
"""


def test_no_update_of_many_processes_at_once_is_lost(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(i * 8)]) for i in range(3)]
    read = 0
    while any(process.poll() is None for process in processes):
        load_manifest(tmp_path)
        read += 1
    assert [process.wait() for process in processes] == [0] * 3
    assert read > 0
    assert sorted(load_manifest(tmp_path).runs) == [f"{number:08x}" for number in range(24)]


WITHOUT_JAX = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "orbax", "tensorstore", "optax"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
from nitro_cli import checkpoints
root = sys.argv[1]
assert [s.id for s in checkpoints.runs(root)] == ["aaaaaaaa"]
assert checkpoints.resolve_source("latest:latest", root).epoch == 1
checkpoints.verify(root), checkpoints.rescan(root), checkpoints.prune(root)
print(checkpoints.checkpoint_info(root + "/aaaaaaaa/checkpoints/epoch-1").meta.as_json())
"""


def test_listing_verifying_and_finding_need_no_jax(tmp_path: Path) -> None:
    from nitro_cli.checkpoints import write_record

    put(tmp_path, entry("epoch-1"))
    (tmp_path / RUN / "checkpoints" / "epoch-1").rmdir()
    write_record(tmp_path / RUN / "checkpoints" / "epoch-1", RecordMeta(epoch=1), {})
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "{'epoch': 1}\n"), done.stderr
