"""The process that forks supervisors, as botpool sees it."""

from __future__ import annotations

import socket
import subprocess
import sys
from threading import Lock
from typing import TYPE_CHECKING, Self

from botpool.engines.process import supervisor

if TYPE_CHECKING:
    from types import TracebackType

_ANSWER_SECONDS = 10.0


class Spawner:
    """Makes supervisors. Its process starts with the first one, and ends with botpool.

    Supervisors outlive it. If it was killed, it is started again. Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def supervisor(self) -> Supervisor:
        """A new supervisor, which waits for its order. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._hand_over(theirs)
            except OSError:
                ours.close()
                raise
        return Supervisor(ours)

    def close(self) -> None:
        """End its process."""
        with self._lock:
            self._end()

    def _hand_over(self, theirs: socket.socket) -> None:
        with self._lock:
            try:
                self._send(theirs)
            except (BrokenPipeError, ConnectionResetError):
                self._end()
                self._send(theirs)

    def _send(self, theirs: socket.socket) -> None:
        if self._socket is None:
            self._socket, end = socket.socketpair()
            with end:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", supervisor.__file__],
                    env={},
                    cwd="/",
                    stdin=end.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        socket.send_fds(self._socket, [b"\0"], [theirs.fileno()])

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


class Supervisor:
    """A supervisor that has started nothing yet. If this is closed before `go`, it never will."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_SECONDS)
        self._connection = connection
        self._said = connection.makefile("rb")

    def order(self, order: bytes) -> int:
        """Tell it what to start, in one line of JSON. Returns its process number."""
        self._connection.sendall(order + b"\n")
        line = self._said.readline()
        if not line:
            raise ConnectionError("a supervisor ended before it answered")
        return int(line)

    def go(self) -> None:
        """Let it start the bot, and return when it has. Raises `OSError` if it can't."""
        self._connection.sendall(b"go\n")
        if why := self._said.read():
            raise OSError(why.decode(errors="replace"))

    def __enter__(self) -> Self:
        """It is closed at the end of the context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self._said.close()
        self._connection.close()
