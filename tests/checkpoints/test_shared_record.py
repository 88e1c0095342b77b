"""Records that several processes write: the parts of a pretended second process, written by this one."""

from __future__ import annotations

import errno
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.checkpoints import (
    ArrayPieces,
    AverageRef,
    PartWriter,
    RecordMeta,
    RunStore,
    WrittenPart,
    average,
    read_manifest,
    read_record,
    record_info,
    resolve_source,
    shared_record,
    verify_record,
)
from nitro_cli.checkpoints.json_text import dump_sealed, load_sealed
from nitro_cli.checkpoints.pieces import tiling_problem
from nitro_cli.checkpoints.record import prepare_record
from nitro_cli.checkpoints.shared_record import begin_shared, commit_shared
from nitro_cli.errors import IntegrityError, NitroError, ProcessLostError, StorageError
from nitro_cli.experiment import Checkpointer, Every

KERNEL = np.arange(48, dtype=np.float32).reshape(8, 6)
SMALL = np.arange(16).reshape(4, 4).astype(ml_dtypes.int4)
BIAS = np.arange(6, dtype=np.float32)

Begin = Callable[[Path], Callable[[], list[WrittenPart]]]


def shares(scale: float = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two processes hold of one tree, of two devices each; the kernel by rows, the small leaf by columns."""
    kernel, found = KERNEL * np.float32(scale), []
    for process in range(2):
        rows = {(r, 0): kernel[r : r + 2] for r in (4 * process, 4 * process + 2)}
        columns = {(0, c): np.ascontiguousarray(SMALL[:, c : c + 1]) for c in (2 * process, 2 * process + 1)}
        found.append(
            {
                "params/kernel": ArrayPieces((8, 6), np.dtype(np.float32), rows),
                "params/bias": BIAS,
                "opt/small": ArrayPieces((4, 4), SMALL.dtype, columns),
            }
        )
    del found[1]["params/bias"]
    return found[0], found[1]


def begin_with(other: dict[str, Any], writer: PartWriter | None = None) -> Begin:
    """The second process: writes its share where it is told, and reports."""

    def begin(temporary: Path) -> Callable[[], list[WrittenPart]]:
        reports: list[WrittenPart] = []
        one = writer or PartWriter(1, sleep=lambda _: None)
        one.write(temporary, other, lambda part: reports.append(WrittenPart.from_json(json.loads(told(part)))))

        def wait() -> list[WrittenPart]:
            one.wait()
            return reports

        return wait

    def told(part: WrittenPart) -> str:
        return json.dumps(part.as_json())

    return begin


def write(path: Path, begin: Begin | None = None, scale: float = 1) -> Path:
    mine, other = shares(scale)
    temporary = begin_shared(path)
    parts = (begin or begin_with(other))(temporary)
    return commit_shared(path, temporary, prepare_record(RecordMeta(epoch=1), mine, {}), parts, sleep=lambda _: None)


def test_what_two_processes_wrote_reads_as_one_tree_in_the_order_and_bits_of_the_leaves(tmp_path: Path) -> None:
    record = read_record(write(tmp_path / "r"))
    assert list(record.arrays) == ["params/kernel", "params/bias", "opt/small"]
    for name, expected in (("params/kernel", KERNEL), ("params/bias", BIAS), ("opt/small", SMALL)):
        found = record.arrays[name]
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes()), name
    assert read_record(tmp_path / "r", prefixes=("opt/",)).arrays.keys() == {"opt/small"}
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_each_process_writes_its_own_pieces_once_and_the_first_writes_whole_leaves_alone(tmp_path: Path) -> None:
    info = record_info(write(tmp_path / "r"))
    held = {path: [(piece.store, piece.start) for piece in spec.pieces] for path, spec in info.leaves.items()}
    assert held == {
        "params/kernel": [("arrays", (0, 0)), ("arrays", (2, 0)), ("arrays-1", (4, 0)), ("arrays-1", (6, 0))],
        "params/bias": [],
        "opt/small": [("arrays", (0, 0)), ("arrays", (0, 1)), ("arrays-1", (0, 2)), ("arrays-1", (0, 3))],
    }
    assert info.parameters == 48 + 6
    on_disk = {p.relative_to(info.path).as_posix() for p in info.path.rglob("*") if p.is_file()}
    assert on_disk == {*info.files, "record.json"}
    assert {name.split("/")[0] for name in info.files} == {"arrays", "arrays-1"}


def test_any_byte_of_any_file_that_changes_or_is_gone_is_found_and_named(tmp_path: Path) -> None:
    record = write(tmp_path / "r")
    for name in record_info(record).files:
        file = record / name
        content = file.read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        for damage in (bytes(changed), content[:-1], None):
            file.unlink() if damage is None else file.write_bytes(damage)
            for load in (verify_record, read_record):
                with pytest.raises(IntegrityError) as caught:
                    load(record)
                assert caught.value.where == str(file)
            file.write_bytes(content)
    verify_record(record)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pieces: pieces.pop(), "36 of its 48 elements"),
        (lambda pieces: pieces[3].update(start=[4, 0]), "two of them are the same"),
        (lambda pieces: pieces[3].update(start=[7, 0]), r"at \[7, 0\] does not fit"),
        (lambda pieces: pieces[3].update(shape=[1, 6]), "different shapes"),
        (lambda pieces: pieces.clear(), "there are none"),
        (lambda pieces: pieces[3].update(store="../elsewhere"), "array store of the record"),
    ],
)
def test_pieces_that_are_not_the_leaf_are_refused(tmp_path: Path, change: Any, why: str) -> None:
    record = write(tmp_path / "r")
    document = load_sealed((record / "record.json").read_bytes())
    document.pop("sha256")
    change(document["leaves"]["params/kernel"]["pieces"])
    (record / "record.json").write_bytes(dump_sealed(document))
    with pytest.raises(IntegrityError, match=why):
        read_record(record)


def test_a_store_without_listed_files_is_not_read_unverified(tmp_path: Path) -> None:
    record = write(tmp_path / "r")
    document = load_sealed((record / "record.json").read_bytes())
    document.pop("sha256")
    document["files"] = {name: facts for name, facts in document["files"].items() if not name.startswith("arrays-1/")}
    (record / "record.json").write_bytes(dump_sealed(document))
    with pytest.raises(IntegrityError, match="nothing in it was verified") as caught:
        read_record(record)
    assert caught.value.where == str(record / "arrays-1")


def test_a_piece_of_another_shape_than_the_store_holds_is_refused_by_name(tmp_path: Path) -> None:
    record = write(tmp_path / "r")
    document = load_sealed((record / "record.json").read_bytes())
    document.pop("sha256")
    for piece in document["leaves"]["params/kernel"]["pieces"]:
        piece["key"] = "2"
    (record / "record.json").write_bytes(dump_sealed(document))
    with pytest.raises(IntegrityError, match="'params/kernel' is not what the record says"):
        read_record(record)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3), st.data())
def test_pieces_are_a_whole_exactly_when_each_element_lies_in_one_of_them(axes: Any, data: Any) -> None:
    tile = tuple(length for length, _ in axes)
    shape = tuple(length * count for length, count in axes)
    starts = list(itertools.product(*(range(0, length * count, length) for length, count in axes)))
    chosen = data.draw(st.lists(st.sampled_from(starts), min_size=1, max_size=len(starts) + 1))
    counted = np.zeros(shape, int)
    for start in chosen:
        counted[tuple(slice(a, a + n) for a, n in zip(start, tile, strict=True))] += 1
    assert (tiling_problem(shape, [(start, tile) for start in chosen]) is None) == bool((counted == 1).all())
    assert tiling_problem(shape, [(start, tile) for start in starts]) is None


def test_a_process_that_cannot_write_fails_the_checkpoint_which_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writer = shared_record.write_store, PartWriter(1, sleep=lambda _: None)

    def full(temporary: Path, store: str, stored: Any) -> Any:
        if store == "arrays-1":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(temporary, store, stored)

    def begin(temporary: Path) -> Callable[[], list[WrittenPart]]:
        # Only the report reaches the first process; the second one's own error stays there.
        reported = threading.Event()
        parts: list[WrittenPart] = []
        writer.write(temporary, shares()[1], lambda part: (parts.append(part), reported.set()))

        def wait() -> list[WrittenPart]:
            assert reported.wait(120)
            return parts

        return wait

    monkeypatch.setattr(shared_record, "write_store", full)
    with pytest.raises(StorageError, match="process 1 could not write its part") as caught:
        write(tmp_path / "r", begin)
    assert "the disk is full" in (caught.value.why or "")
    assert "arrays-1" in (caught.value.where or "")
    with pytest.raises(StorageError, match="could not be written") as own:
        writer.wait()
    assert "the disk is full" in (own.value.why or "")
    assert list(tmp_path.iterdir()) == []


def test_a_transient_error_of_the_second_process_is_retried_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = shared_record.write_store, [2]

    def busy(temporary: Path, store: str, stored: Any) -> Any:
        found = real(temporary, store, stored)
        if store == "arrays-1" and left[0]:
            left[0] -= 1
            raise OSError(errno.EBUSY, "busy")
        return found

    monkeypatch.setattr(shared_record, "write_store", busy)
    with pytest.warns(match="trying again"):
        write(tmp_path / "r")
    assert left == [0]
    assert np.array_equal(read_record(tmp_path / "r").arrays["params/kernel"], KERNEL)


def test_a_process_that_dies_before_it_reports_leaves_nothing(tmp_path: Path) -> None:
    def begin(temporary: Path) -> Callable[[], list[WrittenPart]]:
        (temporary / "arrays-1").mkdir()

        def lost() -> list[WrittenPart]:
            raise ProcessLostError("process 1 of the run died")

        return lost

    with pytest.raises(ProcessLostError):
        write(tmp_path / "r", begin)
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_lacks_pieces_is_not_published(tmp_path: Path) -> None:
    _, other = shares()
    other.pop("opt/small")
    with pytest.raises(StorageError, match="'opt/small' are not the leaf"):
        write(tmp_path / "r", begin_with(other))
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_not_the_first_writes_whole_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Orbax lets process 0 alone write numpy arrays, and says nothing in the others.
    mine, other = shares()
    temporary = begin_shared(tmp_path / "r")
    with monkeypatch.context() as second:
        second.setattr(jax, "process_index", lambda *_: 1)
        parts = begin_with(other)(temporary)()
    commit_shared(tmp_path / "r", temporary, prepare_record(RecordMeta(), mine, {}), lambda: parts)
    arrays = read_record(tmp_path / "r").arrays
    assert arrays["params/kernel"].tobytes() == KERNEL.tobytes()
    assert arrays["opt/small"].tobytes() == SMALL.tobytes()
    with monkeypatch.context() as second:
        second.setattr(jax, "process_index", lambda *_: 1)
        assert read_record(tmp_path / "r").arrays["params/kernel"].tobytes() == KERNEL.tobytes()


def test_a_run_publishes_when_every_process_has_reported_and_its_records_average(tmp_path: Path) -> None:
    gate = threading.Event()
    seen: list[str] = []

    def begin(scale: float) -> Begin:
        def wait_for_gate(temporary: Path) -> Callable[[], list[WrittenPart]]:
            seen.append(temporary.name)
            parts = begin_with(shares(scale)[1])(temporary)
            return lambda: parts() if gate.wait(120) else []

        return wait_for_gate

    with RunStore.create(tmp_path, experiment="m:E", checkpointer=Checkpointer(keep=(Every(1),))) as run:
        run.save(RecordMeta(), shares(1)[0], epoch=1, step=1, name="one", others=begin(1))
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == seen
        assert read_manifest(tmp_path).entries == ()
        gate.set()
        run.save(RecordMeta(), shares(3)[0], epoch=2, step=2, name="two", others=begin(3), final=True)
        assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["one", "two"]
    refs = resolve_source("latest:average(every(1))", tmp_path)
    assert isinstance(refs, AverageRef)
    assert np.array_equal(average(refs).arrays["params/kernel"], KERNEL * 2)


def test_a_run_whose_other_process_is_lost_says_so_at_the_next_save_and_keeps_what_was_committed(
    tmp_path: Path,
) -> None:
    def lost(_: Path) -> Callable[[], list[WrittenPart]]:
        def wait() -> list[WrittenPart]:
            raise ProcessLostError("process 1 of the run died")

        return wait

    with RunStore.create(tmp_path, experiment="m:E", checkpointer=Checkpointer(keep=(Every(1),))) as run:
        run.save(RecordMeta(), shares()[0], epoch=1, step=1, name="one", others=begin_with(shares()[1]))
        run.save(RecordMeta(), shares()[0], epoch=2, step=2, name="two", others=lost)
        with pytest.raises(NitroError, match="process 1 of the run died"):
            run.wait()
        assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["one"]
        assert [entry.name for entry in run.entries] == ["one"]
