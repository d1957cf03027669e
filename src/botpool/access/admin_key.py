"""The admin's key if no setting gives one: a file in the data folder."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botpool.errors import SettingsInvalid
from botpool.models.keys import new_key
from botpool.settings import KEY_FORM, is_key
from botpool.states import Role

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ADMIN_KEY = "admin.key"
"""The name of the file."""


class AdminKeyFile:
    """`admin.key` in a folder. Only its owner can read it, and it is never half written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ADMIN_KEY

    def key(self, *, instead_of: str | None = None) -> str:
        """The key in the file. A new one if there is none, or if it is still `instead_of`."""
        try:
            with self._locked():
                found = self._read()
                if found is None or found == instead_of:
                    return self._write()
                return found
        except OSError as error:
            raise SettingsInvalid(
                f"{self._path} can't be used: {error.strerror}; fix that, or set BOTPOOL_DATA_DIR"
                " to another folder, or set BOTPOOL_ADMIN_KEY."
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only process that reads or writes it. The kernel frees a dead process's lock."""
        # The mode that the embedded PostgreSQL gives this folder. If root starts it, it runs as
        # another user, and that user must be able to enter the folder.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        self._folder.mkdir(mode, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(self._folder / "admin.lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> str | None:
        try:
            key = self._path.read_bytes().decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        if not is_key(key):
            raise SettingsInvalid(
                f"{self._path} doesn't contain a key ({KEY_FORM}): remove the file."
            )
        return key

    def _write(self) -> str:
        key = new_key(Role.ADMIN)
        new = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o600), "w") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        return key
