"""The watch over the other processes of a run: one that dies ends the others, with an error that names it.

A collective operation waits for every process, on some backends for ever. So each process keeps a connection to the
main one: the system closes that of a killed process at once, and its keep-alive probes find out about a lost machine.
(Beats sent by a thread would stop whenever a compile holds the interpreter's lock.) The main process passes news on.
Over the same connections the others report to the main one outside the order of the steps, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

from nitro_cli.distributed.processes import gather_bytes
from nitro_cli.errors import ExitCode, NitroError, ProcessLostError
from nitro_cli.text import visible

__all__ = ["Peers", "join_peers", "peers", "watched"]

PROBES = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 17_000}
"""Keep-alive probes: a machine that answers none for 5 + 4 x 3 s is lost. Not every system has each setting."""
PEER_GRACE_SECONDS = 4.0
"""How long the main thread has to notice by itself that a process is gone, and unwind."""
CLOSING_SECONDS = 8.0
"""How long it then has to close the run's files."""

_BYE, _FAILED, _LOST, _REPORT = b"q", b"f", b"L", b"r"
_peers: Peers | None = None


def peers() -> Peers | None:
    """The watch of this process, or None in a run of one process."""
    return _peers


def join_peers(index: int, count: int, host: str) -> Peers:
    """Connect with the other processes; every process must call it.

    Args:
        index: this process.
        count: how many there are.
        host: name or address of the main process's machine.
    """
    global _peers
    token = secrets.token_bytes(16)
    links: dict[int, socket.socket] = {}
    if index == 0:
        with socket.create_server(("", 0), backlog=count) as server:
            server.settimeout(60)
            said = gather_bytes(token + struct.pack("!H", server.getsockname()[1]))[0]
            while len(links) < count - 1:
                link, _ = server.accept()
                link.settimeout(10)
                greeting = _read(link, 18)
                if greeting[:16] == said[:16]:
                    links[struct.unpack("!H", greeting[16:])[0]] = link
                else:
                    link.close()
    else:
        said = gather_bytes(b"")[0]
        link = socket.create_connection((host, struct.unpack("!H", said[16:])[0]), timeout=60)
        link.sendall(said[:16] + struct.pack("!H", index))
        links[0] = link
    _peers = Peers(index, links)
    return _peers


class Peers:
    """Connections to other processes, watched by threads.

    Args:
        index: this process.
        links: the main process's connections to all others, or another process's one to the main.
    """

    def __init__(self, index: int, links: dict[int, socket.socket]) -> None:
        self.index = index
        self.lost: tuple[int, str] | None = None
        self.exit_code: int | None = None
        self._links = links
        self._noticed = threading.Event()
        self._unwound = threading.Event()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._news = threading.Condition()
        self._reports: dict[tuple[str, int], bytes] = {}
        self._left: set[int] = set()
        for link in links.values():
            link.settimeout(None)
            _probe(link)
        for peer, link in links.items():
            threading.Thread(target=self._listen, args=(peer, link), name=f"nitro-peer-{peer}", daemon=True).start()

    def error(self) -> ProcessLostError:
        """What to raise because of the process that is gone."""
        assert self.lost is not None
        return self._lost_error(*self.lost)

    def _lost_error(self, peer: int, how: str) -> ProcessLostError:
        return ProcessLostError(
            f"process {peer} of the run {how}",
            where=f"noticed by process {self.index}",
            why="every step needs all processes",
            fix=f"look at the output of process {peer}; then start all processes again with --resume auto",
        )

    def wait_lost(self, seconds: float) -> bool:
        """Whether a process is known to be gone, waiting for the news a little."""
        return self._noticed.wait(seconds)

    def report(self, subject: str, body: bytes) -> None:
        """Send the main process a message of this one."""
        name = subject.encode()
        self._send(_REPORT + struct.pack("!II", len(name), len(body)) + name + body)

    def reports(self, subject: str) -> list[bytes]:
        """In the main process: wait for every other process's message of this subject; by process index.

        Raises:
            ProcessLostError: one is gone without having sent it.
        """

        def missing() -> set[int]:
            return {peer for peer in self._links if (subject, peer) not in self._reports}

        with self._news:
            self._news.wait_for(lambda: not missing() or self.lost is not None or missing() & self._left)
            if missing() and self.lost is not None:
                raise self.error()
            if left := missing() & self._left:
                raise self._lost_error(min(left), "left before it had written its part")
            return [self._reports.pop((subject, peer)) for peer in sorted(self._links)]

    def fail(self, code: int) -> None:
        """This process ends with an error: tell the others, and do not wait for them at the end."""
        if self.exit_code is None:
            self.exit_code = code
        self._unwound.set()
        self._send(_FAILED)

    def close(self) -> None:
        """This process ends as it should."""
        self._send(_BYE)

    def _send(self, message: bytes, but: int = -1) -> None:
        for peer, link in self._links.items():
            if peer != but:
                with contextlib.suppress(OSError), self._sending:
                    link.sendall(message)

    def _listen(self, peer: int, link: socket.socket) -> None:
        while True:
            try:
                message = link.recv(1)
                if message == _REPORT:
                    self._take_report(peer, link)
                    continue
            except TimeoutError:
                return self._gone(peer, "is out of reach: its machine does not answer")
            except OSError:
                message = b""
            if message == _BYE:
                with self._news:
                    self._left.add(peer)
                    self._news.notify_all()
                return None
            if message == b"":
                return self._gone(peer, "died: its connection broke")
            if message == _FAILED:
                return self._gone(peer, "ended with an error")
            if message == _LOST:
                other, size = struct.unpack("!HB", _read(link, 3))
                return self._gone(other, _read(link, size).decode())

    def _take_report(self, peer: int, link: socket.socket) -> None:
        name, size = struct.unpack("!II", _read(link, 8))
        subject, body = _read(link, name).decode(), _read(link, size)
        with self._news:
            self._reports[subject, peer] = body
            self._news.notify_all()

    def _gone(self, peer: int, how: str) -> None:
        with self._lock:
            if self.lost is not None:
                return
            self.lost = (peer, how)
        self._noticed.set()
        with self._news:
            self._news.notify_all()
        if self.index == 0:
            text = how.encode()[:255]
            self._send(_LOST + struct.pack("!HB", peer, len(text)) + text, but=peer)
        self._end_after(peer, how)

    def _end_after(self, peer: int, how: str) -> None:
        """End this process because another is gone, once the main thread has had time to unwind."""
        # JAX ends a process at once when its coordinator, process 0, is gone: say why before it does.
        if peer != 0 or how.startswith("ended"):
            self._unwound.wait(PEER_GRACE_SECONDS)
            if self._unwound.is_set():
                time.sleep(CLOSING_SECONDS)
                os._exit(self.exit_code or ExitCode.FAILED)
        os.write(2, f"error: {visible(str(self.error()))}\n".encode())
        os._exit(ExitCode.FAILED)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Work that needs all processes: an error that a lost one caused becomes an error that names it."""
    found = _peers
    if found is None:
        yield
        return
    try:
        yield
    except BaseException as error:
        if not isinstance(error, NitroError) and _of_runtime(error) and found.wait_lost(PEER_GRACE_SECONDS):
            lost = found.error()
            found.fail(lost.exit_code)
            raise lost from error
        found.fail(_code(error))
        raise


def _of_runtime(error: BaseException) -> bool:
    """Whether an exception is one that XLA raises when a collective breaks."""
    text = str(error)
    return type(error).__name__ in {"JaxRuntimeError", "XlaRuntimeError"} or any(
        word in text for word in ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "coordination service")
    )


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return getattr(error, "exit_code", ExitCode.FAILED)


def _probe(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        number = getattr(socket, name, None)
        if number is not None:
            link.setsockopt(socket.IPPROTO_TCP, number, value)


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection ended early")
        data += more
    return bytes(data)


def leave_now() -> None:
    """End the process without waiting for the others, if it or another failed; for the end of the interpreter."""
    found = _peers
    if found is not None and (found.lost is not None or found.exit_code is not None):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(found.exit_code or ExitCode.FAILED)
