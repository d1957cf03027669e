"""API keys: random, shown once, and stored only as a hash.

A client's key belongs to a project, and sees what belongs to it; other keys see all projects. A key
is found by its hash, so no secret is ever compared with another. A revoked key stops working on
every replica within `FRESH_SECONDS`. A key that is rotated works for a while beside the new one.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.access.admin_key import AdminKeyFile
from botpool.errors import (
    ConstraintViolated,
    InvalidRequest,
    KeyNotFound,
    ProjectNotFound,
    SettingsInvalid,
)
from botpool.models.keys import new_key, token_digest
from botpool.models.projects import DEFAULT_PROJECT
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

OVERLAP = timedelta(days=1)
"""How long a key that is rotated works beside the new one, unless told otherwise."""

_ADMIN = "admin"
_LONGEST_NAME = 100
_MOST_REMEMBERED = 10_000
_NOTE_USE_EVERY = timedelta(minutes=1)

_MADE_BY_US = re.compile(r"(bp_(?:admin|viewer|client)_[\w-]{6})[\w-]{37}", re.ASCII)


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

    async def create(
        self, name: str, role: Role, project_id: int | None = None
    ) -> tuple[ApiKey, str]:
        """A new key: as it is listed, and the key itself, which can't be shown again.

        A client's key is of the default project unless another is given. Raises `InvalidRequest`
        for a name that is empty, too long, or not printable, and for a project with another role,
        and `ProjectNotFound`.
        """
        if not (name.strip() and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise InvalidRequest(
                f"The name of a key must have 1 to {_LONGEST_NAME} printable characters."
            )
        if role is Role.CLIENT:
            project_id = DEFAULT_PROJECT if project_id is None else project_id
        elif project_id is not None:
            raise InvalidRequest(
                f"Only a client's key belongs to a project; the role {role} is for all."
            )
        key = new_key(role)
        try:
            return await self._add(name, role, project_id, key), key
        except ConstraintViolated as error:
            raise ProjectNotFound(f"There is no project {project_id}.") from error

    async def rotate(self, key_id: int, overlap: timedelta = OVERLAP) -> tuple[ApiKey, str]:
        """A key like this one, and the key itself. The old one works on for the overlap.

        Raises `KeyNotFound` if there is no such key, or it works no more.
        """
        for known in await self._store.keys.find([], [key_id]):
            key = new_key(known.key.role)
            rotated = await self._store.keys.rotate(
                key_id, token_digest(key), _prefix(key), overlap // timedelta(milliseconds=1)
            )
            if rotated is not None:
                self._recent.clear()
                return rotated, key
        raise KeyNotFound(f"There is no key {key_id} that works.")

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
                    "BOTPOOL_ADMIN_KEY is a revoked key, or not an admin's: set another one."
                )
            return key
        file = AdminKeyFile(self._settings.data_dir)
        key = await asyncio.to_thread(file.key)
        while not await self._admits_admin(key):
            key = await asyncio.to_thread(file.key, instead_of=key)
        return key

    async def admin(self) -> ApiKey:
        """The admin's key as it is listed. Raises what `ensure_admin_key` raises."""
        while (found := await self.authenticate(await self.ensure_admin_key())) is None:
            pass  # it was revoked at the same moment: there is another one now
        return found

    async def authenticate(self, key: str) -> ApiKey | None:
        """The API key of this text, if it is known and works. Its use is noted later."""
        known = await self.known(token_digest(key))
        return None if known is None else known.key

    def last_read(self, key: str) -> ApiKey | None:
        """The API key of this text as it was last read, however long ago that is.

        For what may be told while the database is away: it may have been revoked since.
        """
        _, known = self._recent.get(token_digest(key), (0.0, None))
        return None if known is None else known.key

    async def opens(self, key_id: int) -> bool:
        """Whether a key is still valid."""
        return await self.known(key_id) is not None

    async def known(self, wanted: bytes | int) -> KnownKey | None:
        """The key with this digest or id, if it works."""
        if wanted in self._recent:
            read_at, known = self._recent[wanted]
            if self._clock() - read_at < FRESH_SECONDS:
                return known
        return await self._find(wanted)

    # Inside

    async def _add(self, name: str, role: Role, project_id: int | None, key: str) -> ApiKey:
        return await self._store.keys.add(name, role, project_id, token_digest(key), _prefix(key))

    async def _admits_admin(self, key: str) -> bool:
        await self._add(_ADMIN, Role.ADMIN, None, key)
        found = await self._store.keys.find([token_digest(key)], [])
        return any(known.key.role is Role.ADMIN for known in found)

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


def _prefix(key: str) -> str:
    """How a key begins, if we made it. If a person made it up, no part of it is kept."""
    ours = _MADE_BY_US.fullmatch(key)
    return ours[1] if ours else ""
