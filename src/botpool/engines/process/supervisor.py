"""The program behind containers: a spawner, and a supervisor for each container.

It is run by its path, so it imports nothing but the standard library. botpool keeps one spawner,
which forks a supervisor whenever it receives a socket: a fork takes a millisecond, and starting
Python twenty.

A supervisor is the parent of its bot. On Linux it is also the parent of every process that the bot
leaves behind, whatever its session and its environment are. It ends when it has no child any more.
So while it lives, something of its container may run; once it has ended by itself, nothing does.
It makes the bot's TMPDIR, and deletes it at the end.

It talks with botpool on its socket, in lines:

    botpool      the folder, the command, the environment and the TMPDIR, as JSON
    supervisor   its process number
    botpool      "go", when it has recorded that number
    supervisor   why it can't start the bot, if it can't

Then the supervisor starts the bot and closes the socket. If botpool ends before it says "go",
nothing is started.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import sys
import traceback
from contextlib import suppress
from typing import Any

_SET_CHILD_SUBREAPER = 36  # in <linux/prctl.h>
_ASKS_TO_END = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# Python ignores some, and so may whoever started botpool in the background.
_AS_USUAL = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# A shell finds the program, runs a file that names no interpreter, and has codes for failures.
_RUN = ("/bin/sh", "-c", 'exec "$@"', "botpool")
_FAILED = 126


def write_whole(folder: int, name: str, content: bytes) -> None:
    """Write a file of an open folder that only its owner can read.

    Even if the machine crashes, the old file is there or the new one. A link is replaced, and what
    it leads to is left alone.
    """
    new = f".{name}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def delete_temporary(path: str) -> None:
    """Delete a TMPDIR, if it is still there and ours. Raises `OSError`."""
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        # If something else has deleted it, another user may have the name now.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            delete_folder(path)


def delete_folder(path: str) -> None:
    """Delete a folder, also if the bot has left folders in it that nobody may write to."""

    def let_write(_: object, failed: str, __: object) -> None:
        os.chmod(os.path.dirname(failed), 0o700)  # noqa: PTH101, PTH120
        if os.path.isdir(failed) and not os.path.islink(failed):  # noqa: PTH112, PTH114
            os.chmod(failed, 0o700)  # noqa: PTH101
            shutil.rmtree(failed)
        else:
            os.unlink(failed)  # noqa: PTH108

    shutil.rmtree(path, onerror=let_write)


def _spawn(botpool: socket.socket) -> None:
    """Fork a supervisor for every socket that arrives, until botpool has ended."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    while received := socket.recv_fds(botpool, 1, 1)[1]:
        if os.fork() == 0:
            # Whatever happens here, the loop is not for this process to continue.
            try:
                botpool.close()
                _supervise(socket.socket(fileno=received[0]))
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.close(received[0])


def _supervise(botpool: socket.socket) -> None:
    """Start a bot as botpool says, and wait for it and for all that it leaves behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if sys.platform == "linux":
        _adopt_orphans()
    botpool.set_inheritable(False)
    said = botpool.makefile("rb")
    order = said.readline()
    if not order:
        return
    told = json.loads(order)
    folder = os.open(told["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    _enter(folder)
    botpool.sendall(b"%d\n" % os.getpid())
    if said.readline() != b"go\n":
        return
    for number in _ASKS_TO_END:
        signal.signal(number, lambda *_: None)  # it ends after its bot
    try:
        _prepare(folder, told["temporary"])
    except OSError as error:
        botpool.sendall(f"{error.strerror}: {error.filename}".encode())
        return
    bot = _start(told)
    said.close()
    botpool.close()
    if bot is None:
        _record_exit(folder, _FAILED)
    _wait_for_all(folder, bot)
    with suppress(OSError):  # then it is deleted with the folder
        delete_temporary(told["temporary"])


def _prepare(folder: int, temporary: str) -> None:
    """Make the bot's TMPDIR, and note that the bot is started. Raises `OSError`."""
    with suppress(FileNotFoundError):
        os.unlink("exit", dir_fd=folder)
    os.mkdir(temporary, 0o700)  # noqa: PTH102 - as all else here
    os.close(os.open("started", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder))


def _wait_for_all(folder: int, bot: int | None) -> None:
    """Return when there is no child any more. The bot's exit is recorded at once."""
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            return
        if ended == bot:
            code = os.waitstatus_to_exitcode(status)
            _record_exit(folder, code if code >= 0 else 128 - code)


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _enter(folder: int) -> None:
    """Go to where the bot works, and write to its output."""
    os.fchdir(os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    output = os.open("output", flags, 0o600, dir_fd=folder)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _start(told: dict[str, Any]) -> int | None:
    """Start the bot, and return its process number. If that fails, its output says why.

    It has a process group of its own, so that a signal to its group doesn't hit the supervisor.
    """
    try:
        return os.posix_spawn(
            _RUN[0],
            [*_RUN, *told["command"]],
            told["environment"],
            setpgroup=0,
            setsigdef=_AS_USUAL,
        )
    except OSError as error:
        print(f"botpool: {error}", file=sys.stderr, flush=True)
        return None


def _record_exit(folder: int, code: int) -> None:
    """Record how the bot ended. If that fails, its output says why."""
    try:
        write_whole(folder, "exit", b"%d\n" % code)
    except OSError as error:
        print(f"botpool: exit code {code}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    _spawn(socket.socket(fileno=os.dup(0)))
