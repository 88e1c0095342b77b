"""What the processes of a run tell each other to write together; pretended processes, no second one is started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.distributed import peers, shared_writing
from nitro_cli.distributed.peers import Peers
from nitro_cli.errors import ConfigError, ProcessLostError, StorageError


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Peers, Peers, Peers]]:
    """The main process's watch and those of two others."""
    monkeypatch.setattr(peers, "PROBES", {})  # these sockets are none of a network
    pairs = [socket.socketpair() for _ in range(2)]
    main = Peers(0, {1: pairs[0][0], 2: pairs[1][0]})
    others = [Peers(index, {0: pairs[index - 1][1]}) for index in (1, 2)]
    yield main, others[0], others[1]
    for one in (main, *others):
        one.close()


def test_reports_are_waited_for_and_told_apart_by_process_and_subject(linked: Any) -> None:
    main, one, two = linked
    large = bytes(range(256)) * 20_000
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.extend(main.reports("first")))
    waiting.start()
    two.report("first", b"two")
    two.report("second", b"two again")
    one.report("second", b"")
    one.report("first", large)
    waiting.join(30)
    assert found == [large, b"two"]
    assert main.reports("second") == [b"", b"two again"]


def test_a_process_that_left_without_its_report_ends_the_wait(linked: Any) -> None:
    main, _, two = linked
    two.close()
    with pytest.raises(ProcessLostError, match="process 2 of the run left before"):
        main.reports("first")  # process 1 may still be writing


class Lasting(Peers):
    """A watch that does not end its process."""

    def _end_after(self, peer: int, how: str) -> None:
        pass


def test_a_process_that_dies_in_the_middle_of_its_report_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PROBES", {})
    near, far = socket.socketpair()
    main = Lasting(0, {1: near})
    far.sendall(b"r" + bytes([0, 0, 0, 5, 0, 0, 0, 5]) + b"fir")
    far.close()
    with pytest.raises(ProcessLostError, match="process 1 of the run died"):
        main.reports("first")


class Pretended:
    """What two processes say to each other, seen from one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, index: int, other_sees: bool, token: str = ".tmp-token"):
        self.asked = 0
        monkeypatch.setattr(shared_writing, "is_main", lambda: index == 0)
        monkeypatch.setattr(shared_writing, "SEEN_SECONDS", 0.0)
        monkeypatch.setattr(shared_writing, "main_says", lambda value: value if index == 0 else self.answer(token))

        def gather(answer: bytes) -> list[bytes]:
            other = b"1" if other_sees else b""
            return [answer, other] if index == 0 else [other, answer]

        monkeypatch.setattr(shared_writing, "gather_bytes", gather)

    def answer(self, token: str) -> str:
        self.asked += 1
        return token if self.asked == 1 else ""


@pytest.mark.parametrize("index", [0, 1])
def test_a_directory_that_all_processes_see_is_taken_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    Pretended(monkeypatch, index, other_sees=True)
    if index == 1:
        (tmp_path / ".tmp-token").touch()
    shared_writing.check_common_directory(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ([] if index == 0 else [".tmp-token"])


@pytest.mark.parametrize("index", [0, 1])
def test_a_directory_that_one_process_does_not_see_is_refused_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    Pretended(monkeypatch, index, other_sees=index == 1)
    with pytest.raises(StorageError, match="process 1 of the run cannot see the directory") as caught:
        shared_writing.check_common_directory(tmp_path)
    assert caught.value.where == str(tmp_path)
    assert "set run_dir to a directory that all machines share" in (caught.value.fix or "")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pretended(monkeypatch, 0, other_sees=True)
    with pytest.raises(StorageError, match="cannot be written"):
        shared_writing.check_common_directory(tmp_path / "gone")


def test_processes_joined_without_the_watch_are_told_what_to_call(tmp_path: Path) -> None:
    for call in (shared_writing.begin_with_others, shared_writing.directory_of_main, shared_writing.reporter):
        with pytest.raises(ConfigError) as caught:
            call(tmp_path)
        assert "setup_distributed" in (caught.value.fix or "")
