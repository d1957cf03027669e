"""API keys: random, shown once, and stored only as a hash.

A key is found by its hash, so no secret is ever compared with another. A revoked key stops working
on every replica within `FRESH_SECONDS`.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.access.admin_key import AdminKeyFile
from botpool.errors import InvalidRequest, KeyNotFound, SettingsInvalid
from botpool.models.keys import new_key, token_digest
from botpool.states import Role
from botpool.tasks.background import BackgroundCall
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from botpool.models.keys import ApiKey, KnownKey
    from botpool.settings import Settings
    from botpool.store import Store

FRESH_SECONDS = 3.0
"""How long a key that was read from the database is used without reading it again."""

_ADMIN = "admin"
_LONGEST_NAME = 100
_MOST_REMEMBERED = 10_000
_NOTE_USE_EVERY = timedelta(minutes=1)

_MADE_BY_US = re.compile(r"(bp_(?:admin|client)_[\w-]{6})[\w-]{37}", re.ASCII)


class Keys:
    """Makes, finds and revokes keys. Safe to share between tasks and to use in many replicas.

    `clock` says how long ago a key was read; every other time is the database's.
    """

    def __init__(
        self, store: Store, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        # By digest or by id, the least recently read first.
        self._recent: dict[bytes | int, tuple[float, KnownKey]] = {}
        self._find = Batcher(self._find_keys)
        self._used: set[int] = set()
        self._noting = BackgroundCall(self._note_uses)

    async def create(self, name: str, role: Role) -> tuple[ApiKey, str]:
        """A new key: as it is listed, and the key itself, which can't be shown again.

        Raises `InvalidRequest` for a name that is empty, too long, or not printable.
        """
        if not (name.strip() and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise InvalidRequest(
                f"The name of a key must have 1 to {_LONGEST_NAME} printable characters."
            )
        key = new_key(role)
        return await self._add(name, role, key), key

    async def revoke(self, key_id: int) -> ApiKey:
        """Revoke a key. Revoking it twice is no error. Raises `KeyNotFound`."""
        revoked = await self._store.keys.revoke(key_id)
        if revoked is None:
            raise KeyNotFound(f"There is no key {key_id}.")
        self._recent.clear()
        return revoked

    async def ensure_admin_key(self) -> str:
        """The admin's key. From now on the database knows it.

        It is the setting `admin_key` or, without that, the key in the file `admin.key` in the data
        folder. If the file is missing, or its key is revoked, a new key is made. Processes that
        start at once on one folder all get the same key. Raises `SettingsInvalid`.
        """
        if self._settings.admin_key is not None:
            key = self._settings.admin_key.get_secret_value()
            if not await self._admits_admin(key):
                raise SettingsInvalid(
                    "BOTPOOL_ADMIN_KEY is a revoked key or a client's key: set another one."
                )
            return key
        file = AdminKeyFile(self._settings.data_dir)
        key = await asyncio.to_thread(file.key)
        while not await self._admits_admin(key):
            key = await asyncio.to_thread(file.key, instead_of=key)
        return key

    async def authenticate(self, key: str) -> ApiKey | None:
        """The API key of this text, if it is known and not revoked. Its use is noted later."""
        known = await self.known(token_digest(key))
        return None if known is None else known.key

    async def opens(self, key_id: int) -> bool:
        """Whether a key is still valid."""
        return await self.known(key_id) is not None

    async def known(self, wanted: bytes | int) -> KnownKey | None:
        """The key with this digest or id, unless it is revoked."""
        if wanted in self._recent:
            read_at, known = self._recent[wanted]
            if self._clock() - read_at < FRESH_SECONDS:
                return known
        return await self._find(wanted)

    # Inside

    async def _add(self, name: str, role: Role, key: str) -> ApiKey:
        ours = _MADE_BY_US.fullmatch(key)
        # If a person made the key up, we keep no part of it.
        return await self._store.keys.add(name, role, token_digest(key), ours[1] if ours else "")

    async def _admits_admin(self, key: str) -> bool:
        known = await self._add(_ADMIN, Role.ADMIN, key)
        return known.role is Role.ADMIN and known.revoked_at is None

    async def _find_keys(self, wanted: Sequence[bytes | int]) -> list[KnownKey | None]:
        asked_at = self._clock()
        found: dict[bytes | int, KnownKey] = {}
        for known in await self._store.keys.find(
            [each for each in wanted if isinstance(each, bytes)],
            [each for each in wanted if isinstance(each, int)],
        ):
            found[known.digest] = found[known.key.id] = known
            last = known.key.last_used_at
            if last is None or known.read_at - last >= _NOTE_USE_EVERY:
                self._used.add(known.key.id)
                self._noting.request()
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
        await self._store.keys.note_uses(used, every_ms)
