"""The queries on API keys. What a key hashes to goes in, and comes out to be compared alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models import ApiKey, KnownKey
from botpool.states import Role
from botpool.store.base import Queries
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Collection

    import asyncpg


class KeyQueries(Queries):
    """The queries of sql/keys.sql."""

    async def add_api_key(self, name: str, role: Role, digest: bytes, prefix: str) -> ApiKey:
        """Let a key be known, unless it is; either way, return it as it is known."""
        (row,) = await self._database.fetch(QUERIES["add_api_key"], name, role, digest, prefix)
        return _api_key(row)

    async def list_api_keys(self) -> list[ApiKey]:
        """Every key, revoked ones too, the oldest first."""
        return [_api_key(row) for row in await self._database.fetch(QUERIES["list_api_keys"])]

    async def revoke_api_key(self, key_id: int) -> ApiKey | None:
        """Let a key open nothing any more."""
        row = await self._database.fetch_one(QUERIES["revoke_api_key"], key_id)
        return None if row is None else _api_key(row)

    async def find_api_keys(
        self, digests: Collection[bytes], ids: Collection[int]
    ) -> list[KnownKey]:
        """The keys with these digests or ids, but for those that are revoked."""
        rows = await self._database.fetch(QUERIES["find_api_keys"], digests, ids)
        return [
            KnownKey(key=_api_key(row), digest=row["digest"], read_at=row["read_at"])
            for row in rows
        ]

    async def note_api_key_uses(self, ids: Collection[int], every_ms: int) -> None:
        """Note that these keys are in use, once in `every_ms`."""
        await self._database.execute(QUERIES["note_api_key_uses"], ids, every_ms)


def _api_key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        id=row["id"],
        name=row["name"],
        role=Role(row["role"]),
        prefix=row["prefix"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )
