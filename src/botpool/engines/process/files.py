"""Read files in a folder in which a bot may have put anything.

A bot may replace a file by a link that leads out of its folder, or by a pipe that nobody writes to.
Links are not followed and pipes are not waited for: such a file is refused. So is a file that this
user can't read, and one that is far too long. These are `EngineRefused`; any other `OSError` is a
failure of the machine.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botpool.errors import EngineRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LONGEST = 10_000_000
_UNREADABLE = frozenset(
    {errno.EACCES, errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EPERM}
)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A folder, for calls that take a `dir_fd`. Raises `FileNotFoundError` and `EngineRefused`."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        _refuse_unreadable(path.name, error)
        raise
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def open_file(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A file of a folder. Raises `FileNotFoundError` and `EngineRefused`."""
    with open_folder(path.parent) as folder:
        try:
            file = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            _refuse_unreadable(f"{path.parent.name}/{path.name}", error)
            raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise EngineRefused(f"{path.parent.name}/{path.name} is not a file.")
        yield file
    finally:
        os.close(file)


def read_whole(path: Path) -> bytes:
    """What is in a file. Raises `FileNotFoundError` and `EngineRefused`."""
    with open_file(path) as number, os.fdopen(number, "rb", closefd=False) as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise EngineRefused(f"{path.parent.name}/{path.name} is too long.")
    return content


def _refuse_unreadable(name: str, error: OSError) -> None:
    if error.errno in _UNREADABLE:
        raise EngineRefused(f"{name} can't be read: {error.strerror}.") from error
