"""Who may: API keys, and what a browser keeps instead of one.

A key is random, shown once, and kept as its hash alone. It is found by that hash, so no secret is
ever compared with another. A revoked key is dead on every replica within `FRESH_SECONDS`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
import secrets
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.announcer import Announcer
from botpool.combine import Combiner
from botpool.errors import InvalidRequest, KeyNotFound, SettingsInvalid
from botpool.lookups import token_digest
from botpool.settings import KEY_FORM, is_key
from botpool.states import Role

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from botpool.models import ApiKey, KnownKey
    from botpool.settings import Settings
    from botpool.store import Store

FRESH_SECONDS = 3.0
"""So long a key is taken to be what it was when it was last read."""

SIGN_IN_LIFETIME = timedelta(days=7)
"""How long a browser stays signed in."""

_ADMIN = "admin"
_LONGEST_NAME = 100
_MOST_REMEMBERED = 10_000
_NOTE_USE_EVERY = timedelta(minutes=1)
_SECRET_BYTES = 32

_MADE_BY_US = re.compile(r"(bp_(?:admin|client)_[\w-]{6})[\w-]{37}", re.ASCII)
_SIGNED = re.compile(r"(?P<key_id>\d{1,18})\.(?P<expires>\d{1,12})\.(?P<seal>[\w-]+)", re.ASCII)


class Access:
    """Knows keys. Safe to share between tasks; any number may work on one database.

    `clock` tells how long ago a key was read; every other time is the database's.
    """

    def __init__(
        self, store: Store, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        # By digest or by id, the least recently read first.
        self._recent: dict[bytes | int, tuple[float, KnownKey]] = {}
        self._find = Combiner(self._find_keys)
        self._used: set[int] = set()
        self._noting = Announcer(self._note_uses)

    # Keys

    async def create_key(self, name: str, role: Role) -> tuple[ApiKey, str]:
        """A new key: as it is listed, and the key itself, which nobody can see again.

        Raises `InvalidRequest` for a name that is none, or that a list can't show.
        """
        if not (name.strip() and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise InvalidRequest(
                f"The name of a key has 1 to {_LONGEST_NAME} characters that can be shown."
            )
        key = _new_key(role)
        return await self._add(name, role, key), key

    async def list_keys(self) -> list[ApiKey]:
        """Every key, revoked ones too, the oldest first."""
        return await self._store.list_api_keys()

    async def revoke_key(self, key_id: int) -> ApiKey:
        """Let a key open nothing any more. Twice is as good as once. Raises `KeyNotFound`."""
        revoked = await self._store.revoke_api_key(key_id)
        if revoked is None:
            raise KeyNotFound(f"There is no key {key_id}.")
        self._recent.clear()
        return revoked

    async def ensure_admin_key(self) -> str:
        """The key of the admin, which the database knows from now on.

        It is the setting `admin_key`; without it, the one in `admin.key` in the data folder, where
        one is made if there is none, or a revoked one. Of several that start at once on one
        folder, all return the same key. Raises `SettingsInvalid`.
        """
        if self._settings.admin_key is not None:
            key = self._settings.admin_key.get_secret_value()
            if not await self._admits_admin(key):
                raise SettingsInvalid("BOTPOOL_ADMIN_KEY is revoked or a client's: set another.")
            return key
        file = _KeyFile(self._settings.data_dir)
        key = await asyncio.to_thread(file.key)
        while not await self._admits_admin(key):
            key = await asyncio.to_thread(file.key, instead_of=key)
        return key

    # Callers

    async def authenticate(self, key: str) -> ApiKey | None:
        """What this key is known as, if it opens anything. That it was used is noted later."""
        known = await self._known(token_digest(key))
        return None if known is None else known.key

    async def opens(self, key_id: int) -> bool:
        """Whether a key that was let in still opens anything."""
        return await self._known(key_id) is not None

    async def sign_in(self, key: str) -> tuple[ApiKey, str] | None:
        """What this key is known as, and what a browser is to keep instead of it.

        The latter tells nothing of the key, lasts for `SIGN_IN_LIFETIME`, and dies with the key.
        """
        known = await self._known(token_digest(key))
        if known is None:
            return None
        expires = int((known.read_at + SIGN_IN_LIFETIME).timestamp())
        return known.key, f"{known.key.id}.{expires}.{_seal(known, expires)}"

    async def authenticate_browser(self, signed: str) -> ApiKey | None:
        """The key that a browser signed in with, if what it kept is ours and not too old."""
        said = _SIGNED.fullmatch(signed)
        known = await self._known(int(said["key_id"])) if said else None
        if said is None or known is None:
            return None
        expires = int(said["expires"])
        ours = hmac.compare_digest(_seal(known, expires), said["seal"])
        return known.key if ours and known.read_at.timestamp() < expires else None

    # Inside

    async def _add(self, name: str, role: Role, key: str) -> ApiKey:
        ours = _MADE_BY_US.fullmatch(key)
        # Of a key that somebody thought up, no letter is kept.
        return await self._store.add_api_key(name, role, token_digest(key), ours[1] if ours else "")

    async def _admits_admin(self, key: str) -> bool:
        known = await self._add(_ADMIN, Role.ADMIN, key)
        return known.role is Role.ADMIN and known.revoked_at is None

    async def _known(self, wanted: bytes | int) -> KnownKey | None:
        if wanted in self._recent:
            read_at, known = self._recent[wanted]
            if self._clock() - read_at < FRESH_SECONDS:
                return known
        return await self._find(wanted)

    async def _find_keys(self, wanted: Sequence[bytes | int]) -> list[KnownKey | None]:
        asked_at = self._clock()
        found: dict[bytes | int, KnownKey] = {}
        for known in await self._store.find_api_keys(
            [each for each in wanted if isinstance(each, bytes)],
            [each for each in wanted if isinstance(each, int)],
        ):
            found[known.digest] = found[known.key.id] = known
            last = known.key.last_used_at
            if last is None or known.read_at - last >= _NOTE_USE_EVERY:
                self._used.add(known.key.id)
                self._noting.announce()
        for each in wanted:
            self._recent.pop(each, None)
            if each in found:
                self._recent[each] = (asked_at, found[each])
        while len(self._recent) > _MOST_REMEMBERED:
            del self._recent[next(iter(self._recent))]
        return [found.get(each) for each in wanted]

    async def _note_uses(self) -> None:
        used, self._used = self._used, set()
        every_ms = _NOTE_USE_EVERY // timedelta(milliseconds=1)
        await self._store.note_api_key_uses(used, every_ms)


def _new_key(role: Role) -> str:
    return f"bp_{role}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def _seal(known: KnownKey, expires: int) -> str:
    """What only those can write who know what the key hashes to."""
    said = f"botpool sign-in {known.key.id} {expires}"
    seal = hmac.digest(known.digest, said.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(seal).rstrip(b"=").decode()


class _KeyFile:
    """`admin.key` in a folder. Only its owner can read it, and nobody ever sees half of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "admin.key"

    def key(self, *, instead_of: str | None = None) -> str:
        """The key in the file: a new one if there is none, or still the one given."""
        try:
            with self._locked():
                found = self._read()
                if found is None or found == instead_of:
                    return self._write()
                return found
        except OSError as error:
            raise SettingsInvalid(
                f"{self._path} can't be used: {error.strerror}; put that right, or set"
                " BOTPOOL_DATA_DIR to another folder, or BOTPOOL_ADMIN_KEY."
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only process that reads or writes it. The kernel drops a dead one's lock."""
        # As the embedded PostgreSQL makes the folder, which root's must get through.
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
            raise SettingsInvalid(f"{self._path} holds no key, which is {KEY_FORM}: remove it.")
        return key

    def _write(self) -> str:
        key = _new_key(Role.ADMIN)
        new = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o600), "w") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        return key
