"""Where a botpool on this machine answers, noted in the data folder for the command line.

    data_dir/serving/….json   one for each process that answers, locked as long as it runs

A note is written whole or not at all. The kernel frees the lock of a dead process, so a note that
nobody has locked is of one that was killed. The next start removes it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import structlog

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from botpool.settings import Settings

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


@dataclass(frozen=True, slots=True)
class ServingNote:
    """Where a botpool answers this machine, its process, and which database it uses.

    `database` has no user and no password; it is `None` for the embedded one.
    """

    url: str
    pid: int
    database: str | None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The note of this process."""
        return cls(settings.local_url, os.getpid(), database_of(settings))


def database_of(settings: Settings) -> str | None:
    """Which database the settings name, without user, password and options."""
    if settings.database_url is None:
        return None
    url = urlsplit(settings.database_url.get_secret_value())
    return url.netloc.rpartition("@")[2] + url.path


@contextmanager
def noted(data_dir: Path, note: ServingNote) -> Iterator[None]:
    """Keep a note in the data folder for the length of the block.

    If it can't be written, a warning is logged, and commands need `BOTPOOL_URL`.
    """
    folder = data_dir / "serving"
    path = folder / f"{note.pid}-{secrets.token_hex(4)}.json"
    try:
        # As the embedded PostgreSQL has it: if root starts that, it runs as another user.
        data_dir.mkdir(0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        folder.mkdir(0o700, exist_ok=True)
        for other in folder.glob("*.json"):
            if not _is_locked(other):
                other.unlink(missing_ok=True)
        lock = _write(path, note)
    except OSError as error:
        _log.warning(
            "commands on this machine need BOTPOOL_URL: where botpool listens can't be noted",
            folder=str(folder),
            error=error.strerror,
        )
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def serving_notes(data_dir: Path) -> tuple[list[ServingNote], list[ServingNote]]:
    """The notes of processes that run, the newest first, and those of processes that were killed.

    Notes that can't be read are none.
    """
    running: list[ServingNote] = []
    dead: list[ServingNote] = []
    found: list[tuple[float, ServingNote, bool]] = []
    for path in (data_dir / "serving").glob("*.json"):
        try:
            found.append((path.stat().st_mtime, _read(path), _is_locked(path)))
        except (OSError, ValueError, TypeError):  # it is gone, or not ours
            continue
    for _, note, locked in sorted(found, key=lambda each: each[0], reverse=True):
        (running if locked else dead).append(note)
    return running, dead


def _write(path: Path, note: ServingNote) -> int:
    """Write and lock a note, then put it in its place. Returns the file that has the lock."""
    new = path.with_suffix(".new")
    lock = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, json.dumps(asdict(note)).encode())
        new.replace(path)
    except OSError:
        os.close(lock)
        raise
    return lock


def _read(path: Path) -> ServingNote:
    return ServingNote(**json.loads(path.read_text("utf-8")))


def _is_locked(path: Path) -> bool:
    """Whether the process that wrote it runs."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
